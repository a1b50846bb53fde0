"""Measures rows and writes the table."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from pathlib import Path

from . import machine, record, table
from .case import Case
from .program import Program
from .results import Result, skipped
from .rows import ON_REQUEST, ROWS, Settings
from .sizes import use_threads


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/peers/run", description="Times Regard beside PyTorch and its peers.")
    parser.add_argument(
        "--rows", metavar="NAME,...", help="rows to measure, others keep their record: " + ", ".join(ROWS)
    )
    parser.add_argument("--quick", action="store_true", help="shortest lengths and few runs: a look, not a record")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of each party (default: all)")
    parser.add_argument(
        "--out", type=Path, help="directory of speed.md and speed.json (default: results/speed/PROCESSOR-VECTORS; none with --quick)"
    )
    parser.add_argument("--program", type=Path, help="the binary `regard` (default: the one that was installed)")
    return parser.parse_args()


def chosen(names: str | None) -> list[str]:
    """The rows that are named; all but the slowest by default."""
    if names is None:
        return [name for name in ROWS if name not in ON_REQUEST]
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in ROWS]
    if unknown:
        sys.exit(f"unknown row '{unknown[0]}', expected some of: {', '.join(ROWS)}")
    return [name for name in ROWS if name in wanted]


def measure(name: str, settings: Settings) -> list[Result]:
    """All lines of one row, each shown as it comes. What a peer throws costs its own row alone."""
    results: list[Result] = []
    try:
        for item in ROWS[name](settings):
            results.append(item.measure(settings.patience) if isinstance(item, Case) else item)
            print(_words(results[-1]), flush=True)
    except (ArithmeticError, AttributeError, ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
        results.append(skipped(name, f"{type(error).__name__}: {error}"))
        print(_words(results[-1]), flush=True)
    return results


def _words(result: Result) -> str:
    cells = [cell for cell in table.line(record.as_json(result)).strip("| ").split(" | ") if cell.strip()]
    return "  " + " · ".join([*cells, result.note] if result.note.startswith("not measured") else cells)


def main() -> None:
    given = arguments()
    environment = Path(os.environ["REGARD_PEERS_ENV"])
    if given.threads < 1:
        sys.exit(f"--threads is {given.threads}, expected at least 1")
    use_threads(given.threads)
    program = Program(given.program or environment / "regard", given.threads)
    settings = Settings(program, given.threads, given.quick)
    names = chosen(given.rows)
    command = " ".join(["bench/peers/run", *(shlex.quote(word) for word in sys.argv[1:])])
    facts = machine.facts(environment, given.threads, command)
    out = given.out or (None if given.quick else machine.ROOT / "results" / "speed" / machine.folder())
    for name in names:
        start = time.perf_counter()
        print(f"== {name}", flush=True)
        results = measure(name, settings)
        print(f"   {time.perf_counter() - start:.0f} s", flush=True)
        if out is not None:
            # After each row, so that an interrupt loses one.
            out.mkdir(parents=True, exist_ok=True)
            path = out / "speed.json"
            missing = machine.missing(environment)
            whole = record.write(path, ROWS, {name: results}, facts, machine.versions(), missing)
            (out / "speed.md").write_text(table.markdown(whole))


if __name__ == "__main__":
    main()
