"""The program `regard` as a party: what Python does not reach, its training steps and its decoding."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .clock import Times


class Unavailable(Exception):
    """Why there is no measurement of the program."""


@dataclass(frozen=True)
class Program:
    """A binary and how many threads it may use."""

    path: Path
    threads: int

    def bench(self, *arguments: str) -> list[dict[str, Any]]:
        """Measurements of `regard bench`."""
        if not self.path.is_file():
            raise Unavailable("no program; install it with bench/peers/install")
        command = [str(self.path), "bench", "--json", "--quiet", "--threads", str(self.threads), *arguments]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("REGARD_")}
        done = subprocess.run(command, capture_output=True, text=True, env=clean)
        # With 1 a mechanism differs from its twin, which its measurement says.
        if done.returncode not in (0, 1) or not done.stdout:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise Unavailable(f"`regard bench {' '.join(arguments)}` ended with {done.returncode}: {last}")
        return json.loads(done.stdout)["measurements"]


def times(measurement: dict[str, Any], passes: str) -> Times:
    """Times of one pass: ``forward``, ``both``, ``step`` or ``token``."""
    timing = measurement[passes]
    return Times(timing["median"], timing["p10"], timing["p90"], measurement["runs"])


def check(measurement: dict[str, Any]) -> tuple[str, bool]:
    """How far the mechanism is from its float64 twin, in words, and whether that is too far."""
    found = measurement.get("check")
    if not found:
        return "", False
    error = found["error"]
    return "not finite" if error is None else f"{error:.0e}", not found["passed"]
