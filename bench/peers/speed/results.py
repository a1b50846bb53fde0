"""What a row says in the end."""

from __future__ import annotations

from dataclasses import dataclass

from .clock import Times


@dataclass(frozen=True)
class Bound:
    """The target of a row."""

    ratio: float | None = None
    """Ours by theirs, at most."""
    value: float | None = None
    """Ours alone, at most, in the unit of the row."""


@dataclass(frozen=True)
class Result:
    """One line of the table."""

    what: str
    size: str
    other: str
    """What ours is compared with."""
    ours: Times | None = None
    theirs: Times | None = None
    unit: str = "ms"
    bound: Bound = Bound()
    agreement: str = ""
    """Largest relative difference between both, where both compute the same."""
    disagrees: bool = False
    """Whether that difference is too large: then times mean nothing."""
    same: bool = True
    """Whether both compute the same; a ratio between different things is no speed-up."""
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours by theirs."""
        if self.disagrees or self.ours is None or self.theirs is None:
            return None
        return self.ours.median / self.theirs.median

    @property
    def met(self) -> bool | None:
        """Whether the target is met; nothing where there is none or nothing was measured."""
        if self.disagrees:
            return None
        if self.bound.ratio is not None and self.ratio is not None:
            return self.ratio <= self.bound.ratio
        if self.bound.value is not None and self.ours is not None:
            return self.ours.median <= self.bound.value
        return None


def skipped(what: str, why: str) -> Result:
    """A row that cannot be measured here."""
    return Result(what=what, size="", other="", note=f"not measured: {why}")
