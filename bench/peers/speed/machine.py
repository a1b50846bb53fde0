"""Where and with what a benchmark ran."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
"""The checkout."""
PACKAGES = (
    "torch",
    "pytorch-fast-transformers",
    "performer-pytorch",
    "reformer-pytorch",
    "linear-attention-transformer",
    "x-transformers",
    "flash-linear-attention",
)


def processor() -> str:
    """The name of the processor, as Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown processor"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown processor"


def versions() -> dict[str, str]:
    """Versions of PyTorch and of the peers that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def missing(environment: Path) -> dict[str, str]:
    """Peers that could not be installed, with the reason."""
    try:
        lines = (environment / "missing.tsv").read_text().splitlines()
    except OSError:
        return {}
    return dict(line.partition("\t")[::2] for line in lines)


def facts(environment: Path, threads: int, command: str) -> Mapping[str, object]:
    """What the head of a record says."""
    return {
        "command": command,
        "commit": (environment / "commit").read_text(),
        "processor": processor(),
        "processors": os.cpu_count(),
        "threads": threads,
        "vectors": os.environ.get("REGARD_VECTORS", ""),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
