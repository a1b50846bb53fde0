"""The rows of the table, by name. A row yields cases that are to be measured, or results that are already."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..case import Case
from ..clock import Patience
from ..program import Program
from ..results import Result


@dataclass(frozen=True)
class Settings:
    """How a benchmark runs."""

    program: Program
    threads: int
    quick: bool = False

    @property
    def patience(self) -> Patience:
        """How long a case may take."""
        return Patience(seconds=1.0, least=3, most=9) if self.quick else Patience(seconds=5.0, least=5, most=41)

    def lengths(self, *lengths: int) -> list[int]:
        """Those that this benchmark measures: the first alone where it is quick."""
        return list(lengths[:1] if self.quick else lengths)


Row = Callable[[Settings], Iterable[Case | Result]]
Sides = Callable[[int], Mapping[str, Callable[[], object]]]
"""From a length to runs by the name of the side, whose memory is measured."""

ROWS: dict[str, Row] = {}
"""In the order of the table."""
ON_REQUEST: set[str] = set()
"""Those that take minutes and run only where they are named."""
MEMORY: dict[str, Sides] = {}


def row(name: str, on_request: bool = False) -> Callable[[Row], Row]:
    """Makes a function a row."""

    def add(function: Row) -> Row:
        ROWS[name] = function
        if on_request:
            ON_REQUEST.add(name)
        return function

    return add


# Each adds its rows, in the order of the table.
from . import softmax, shapes, frameworks, mixture, linear, features, hashing, layers, training, curve, decoding, scaling, build  # noqa: E402, F401, I001
