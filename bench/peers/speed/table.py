"""The record as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

COLUMNS = ("what", "size", "compared with", "ours", "other", "ratio", "target", "met", "agreement")
RULE = "| :-- | :-- | :-- | --: | --: | --: | --: | :-- | --: |"
OPERATORS = "Operators"
SECTIONS = {
    "fastformer": "Layers",
    "moa": "Layers",
    "step-decoder": "Training",
    "step-text": "Training",
    "curve": "Training",
    "decode": "Decoding",
    "threads": "Two threads",
    "binary": "The program",
    "build": "The program",
}
"""Where rows stand that are not of operators alone."""
INTRODUCTION = """\
Times are medians, with the tenth and the ninetieth percentile, of runs in turns, in one process where nothing else is
said, on the same tensors: float32, batch 1, 8 heads of 64 channels. The ratio is ours by the other's, so less than 1 is
faster; a target is the most it may be. Agreement is the largest difference between both, outputs and gradients,
relative to the largest number; where both compute different things it is that of ours to the float64 twin or to the
same mechanism in PyTorch. A row that fails this check has no times."""


def markdown(record: dict[str, Any], title: str = "Speed beside PyTorch and the published peers") -> str:
    """The whole file."""
    rows = record["rows"]
    results = [result for row in rows.values() for result in row["results"]]
    met = [result["met"] for result in results if result["met"] is not None]
    lines = [f"# {title}", "", *_head([row["environment"] for row in rows.values()], record), "", INTRODUCTION, ""]
    lines += [f"{sum(met)} of {len(met)} targets met."]
    notes = list(dict.fromkeys(result["note"] for result in results if result["note"]))
    sections = dict.fromkeys(SECTIONS.get(name, OPERATORS) for name in rows)
    for section in sections:
        lines += ["", f"## {section}", "", _cells(COLUMNS), RULE]
        there = [row for name, row in rows.items() if SECTIONS.get(name, OPERATORS) == section]
        lines += [line(result, notes) for row in there for result in row["results"]]
    lines += ["", *(f"{number}. {note[0].upper()}{note[1:]}." for number, note in enumerate(notes, 1))]
    return "\n".join(lines).rstrip() + "\n"


def _narrowed(environment: dict[str, Any]) -> str:
    """Words for vectors narrower than the processor has. Earlier records have none."""
    vectors = environment.get("vectors")
    return f", both kept to {vectors}" if vectors else ""


def _head(environments: list[dict[str, Any]], record: dict[str, Any]) -> list[str]:
    def each(key: str) -> list[str]:
        return list(dict.fromkeys(str(environment[key]) for environment in environments))

    machines = dict.fromkeys(
        f"{e['processor']}, {e['processors']} logical, {e['threads']} threads" + _narrowed(e) for e in environments
    )
    dates = sorted(each("date"))
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    head = [
        "- command: " + "; ".join(f"`{command}`" for command in each("command")),
        "- commit: " + ", ".join(each("commit")),
        "- processor: " + "; ".join(machines),
        "- date: " + " to ".join(dict.fromkeys([dates[0], dates[-1]])) if dates else "- date: none",
        f"- versions: {versions}",
    ]
    return head + [f"- not installed: {name} ({reason})" for name, reason in record["missing"].items()]


def line(result: dict[str, Any], notes: Sequence[str] = ()) -> str:
    """A row of the table; its note is a number there."""
    unit = result["unit"]
    if result["disagrees"]:
        times, ratio = ["differs", "", ""], ""
    else:
        times = [_times(result["ours"], unit), _times(result["theirs"], unit)]
        ratio = "" if result["ratio"] is None else f"{result['ratio']:.3g}"
        times.append(ratio)
    met = {True: "yes", False: "**no**", None: ""}[result["met"]]
    if result["note"].startswith("not measured"):
        met = "not measured"
    other = result["other"]
    if result["note"] in notes:
        other = f"{other} [{notes.index(result['note']) + 1}]".strip()
    cells = [result["what"], result["size"], other, *times, _target(result), met, result["agreement"]]
    return _cells(cells)


def _cells(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _times(times: dict[str, Any] | None, unit: str) -> str:
    if times is None:
        return ""
    median, low, high = (_number(times[name]) for name in ("median", "p10", "p90"))
    return f"{median} {unit}" if low == high else f"{median} {unit} ({low}–{high})"


def _number(x: float) -> str:
    return f"{x:.0f}" if x >= 100 else f"{x:.3g}"


def _target(result: dict[str, Any]) -> str:
    bound = result["bound"]
    if bound["ratio"] is not None:
        return f"{bound['ratio']:.3g}"
    return "" if bound["value"] is None else f"{bound['value']:g} {result['unit']}"
