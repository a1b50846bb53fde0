"""The program itself: its size, and the time of its first build."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ..clock import Times
from ..machine import ROOT
from ..results import Bound, Result, skipped
from . import Settings, row

# The target is in millions of bytes.
MEGABYTE = 1e6


@row("binary")
def size(settings: Settings) -> Iterator[Result]:
    what = "size of the program"
    path: Path = settings.program.path
    if not path.is_file():
        yield skipped(what, "no program")
        return
    yield Result(what, "", "", Times.of([path.stat().st_size / MEGABYTE]), unit="MB", bound=Bound(value=40.0))


@row("build", on_request=True)
def first_build(settings: Settings) -> Iterator[Result]:
    what = "first build from clean, release"
    with tempfile.TemporaryDirectory() as target:
        command = ["cargo", "build", "--release", "--locked", "--package", "regard-cli", "--target-dir", target]
        start = time.perf_counter()
        done = subprocess.run([*command, "--jobs", str(settings.threads)], cwd=ROOT, capture_output=True, text=True)
        minutes = (time.perf_counter() - start) / 60
    if done.returncode != 0:
        yield skipped(what, f"cargo ended with {done.returncode}")
        return
    note = f"{settings.threads} jobs"
    yield Result(what, "", "", Times.of([minutes]), unit="min", bound=Bound(value=8.0), note=note)
