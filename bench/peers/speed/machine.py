"""Where and with what a benchmark ran."""

from __future__ import annotations

import os
import re
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


def _told(field: str) -> str:
    """What Linux tells of the first processor; nothing elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")


def processor() -> str:
    """The name of the processor."""
    return _told("model name") or "unknown processor"


def folder() -> str:
    """A name for records of this machine: the processor and the vectors in use."""
    flags = _told("flags").split()
    widest = next((name for name, flag in (("avx512", "avx512f"), ("avx2", "avx2")) if flag in flags), "")
    words = re.sub(r"\(.*?\)|\bProcessor\b|\b\d+-Core\b|@.*", "", processor()).split()
    return "-".join([*words, os.environ.get("REGARD_VECTORS") or widest]).strip("-").lower()


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
