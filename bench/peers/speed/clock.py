"""Times of several parties, in turns."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Party = Callable[[], float]
"""Runs once and returns how many milliseconds that took."""

PAUSE = 0.01
"""Seconds between two runs, in which the threads of the one before go to sleep."""

LONG = 100.0
"""Milliseconds of a run from which on what the pause costs it is lost in it."""


@dataclass(frozen=True)
class Times:
    """Milliseconds of some runs."""

    median: float
    p10: float
    p90: float
    runs: int

    @classmethod
    def of(cls, runs: Sequence[float]) -> Times:
        ordered = sorted(runs)
        return cls(_quantile(ordered, 0.5), _quantile(ordered, 0.1), _quantile(ordered, 0.9), len(ordered))


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def timed(run: Callable[[], object]) -> Party:
    """A party of this process."""

    def party() -> float:
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) * 1e3

    return party


@dataclass(frozen=True)
class Patience:
    """How often parties run."""

    seconds: float
    """No new round once all runs have taken so long."""
    least: int
    """Rounds there are in any case."""
    most: int
    """Rounds there are at most."""
    warm_up: int = 1
    """Untimed rounds."""

    def after(self, checking: float) -> Patience:
        """What is left after a check of so many seconds: one of a second has warmed up whatever it checked, and where
        one takes five, three rounds must do."""
        least = min(self.least, 3) if checking > 5.0 else self.least
        return Patience(self.seconds, least, self.most, 0 if checking > 1.0 else self.warm_up)


def in_turns(parties: Sequence[Party], patience: Patience) -> list[Times]:
    """Every round times each party once, so that a machine that slows down slows all of them; who is first changes.

    A timed run of few milliseconds follows an untimed one of the same party: sleeping threads and cold caches would cost
    both sides the same two or three milliseconds, and hide what is compared.
    """
    for _ in range(patience.warm_up):
        for party in parties:
            party()
    runs: list[list[float]] = [[] for _ in parties]
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        for turn in range(patience.most):
            if turn >= patience.least and time.perf_counter() - start > patience.seconds:
                break
            for place in range(len(parties)):
                which = (turn + place) % len(parties)
                time.sleep(PAUSE)
                if not runs[which] or runs[which][-1] < LONG:
                    parties[which]()
                runs[which].append(parties[which]())
    finally:
        gc.enable()
    return [Times.of(each) for each in runs]
