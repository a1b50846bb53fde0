"""The most memory that a run needs, in a process of its own."""

from __future__ import annotations

import ctypes
import gc
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

STATUS = Path("/proc/self/status")
PEAK_RESET = Path("/proc/self/clear_refs")


def _resident(field: str) -> int:
    match = re.search(rf"^{field}:\s+(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    if match is None:
        raise OSError(f"{STATUS} has no {field}")
    return int(match[1]) * 1024


def peak(run: Callable[[], object]) -> int:
    """Bytes of resident memory at most while ``run`` runs, beyond those before. Linux alone."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = _resident("VmRSS")
    PEAK_RESET.write_text("5")
    run()
    return max(0, _resident("VmHWM") - before)


def of_side(row: str, side: str, length: int, threads: int) -> int | None:
    """Bytes of one side of a row at a length; nothing where the system does not tell."""
    command = [sys.executable, "-m", "speed.side", row, side, str(length), str(threads)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        print(f"memory of {row}, {side}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return int(done.stdout)
