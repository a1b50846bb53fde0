"""The record: results of all rows so far in one JSON file, from which the table is written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .results import Result

Rows = dict[str, dict[str, Any]]
"""``{row: {"environment": ..., "results": [...]}}``"""


def read(path: Path) -> dict[str, Any]:
    """What was recorded before; nothing where there is no file."""
    return json.loads(path.read_text()) if path.is_file() else {"rows": {}}


def as_json(result: Result) -> dict[str, Any]:
    """A result with what follows from it."""
    return {**asdict(result), "ratio": result.ratio, "met": result.met}


def write(
    path: Path,
    order: Iterable[str],
    new: Mapping[str, list[Result]],
    facts: Mapping[str, object],
    versions: Mapping[str, str],
    missing: Mapping[str, str],
) -> dict[str, Any]:
    """Puts new rows in the place of old ones, in the order of the table, and returns the whole record."""
    rows: Rows = read(path)["rows"]
    for name, results in new.items():
        rows[name] = {"environment": dict(facts), "results": [as_json(result) for result in results]}
    rows = {name: rows[name] for name in order if name in rows}
    record = {"versions": dict(versions), "missing": dict(missing), "rows": rows}
    path.write_text(json.dumps(record, indent=1) + "\n")
    return record
