"""Mixture of Gaussian keys, two components, soft: against exact attention and against its dense form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from regard.torch import attention

from .. import dense, memory
from ..agreement import Agreement
from ..case import Case, Side, agreement, cases
from ..clock import Times
from ..results import Bound, Result, skipped
from ..sizes import head_first, mixture
from . import MEMORY, Settings, row

WHAT = "MGK, M = 2"
DENSE = "dense PyTorch form"


def _sides(length: int) -> tuple[Side, Side]:
    q, k, v, log_prior = x = mixture(length)
    ours = Side(lambda: attention(q, k, v, "mgk", log_prior=log_prior), x)
    return ours, Side(lambda: dense.gaussian_mixture(q, k, v, log_prior), x)


def _check(passes: str) -> Agreement:
    return agreement(*_sides(512), passes)


@row("mgk")
def beside_softmax(settings: Settings) -> Iterator[Case]:
    for length in settings.lengths(2048, 4096):
        q, k, v = x = head_first(length)
        yield from cases(
            WHAT,
            length,
            "our softmax",
            _sides(length)[0],
            Side(lambda: attention(q, k, v), x),
            {"forward": Bound(ratio=1.6), "both": Bound(ratio=1.6)},
            check=_check,
            same=False,
        )


@row("mgk-dense")
def beside_dense(settings: Settings) -> Iterator[Case]:
    for length in settings.lengths(2048, 4096):
        bounds = {"forward": Bound(ratio=0.1), "both": Bound(ratio=0.1)}
        yield from cases(WHAT, length, DENSE, *_sides(length), bounds)


def _runs(length: int) -> Mapping[str, Callable[[], object]]:
    ours, theirs = _sides(length)
    return {"ours": ours.once, "dense": theirs.once}


MEMORY["mgk"] = _runs


@row("mgk-memory")
def bytes_at_most(settings: Settings) -> Iterator[Result]:
    what = f"{WHAT}, memory of forward + backward"
    ours: dict[int, Times] = {}
    for length in settings.lengths(2048, 4096):
        seen = {side: memory.of_side("mgk", side, length, settings.threads) for side in ("ours", "dense")}
        if None in seen.values():
            yield skipped(what, "this system does not tell the peak of a process")
            return
        mebibytes = {side: Times.of([bytes_ / 2**20]) for side, bytes_ in seen.items() if bytes_ is not None}
        ours[length] = mebibytes["ours"]
        yield Result(what, f"N = {length}", DENSE, mebibytes["ours"], mebibytes["dense"], unit="MiB")
    if len(ours) == 2:
        # Linear is 2; tiles and code that is loaded take the same at any length.
        note = "twice the length: 2 is linear, 4 quadratic"
        short, long = ours.values()
        yield Result(
            what, "N = 4096", "itself at N = 2048", long, short, "MiB", Bound(ratio=2.1), same=False, note=note
        )
