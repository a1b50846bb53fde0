"""Locality-sensitive hashing against reformer-pytorch."""

from __future__ import annotations

from collections.abc import Iterator

import regard
import torch
from regard.torch import apply

from ..agreement import Agreement
from ..case import Case, Side, agreement, cases
from ..results import Bound, Result, skipped
from ..sizes import HEADS, WIDTH, drawer
from . import Settings, row

BUCKET = 64
WHAT = "LSH attention"
BOUNDS = {"forward": Bound(), "both": Bound()}


def _sides(length: int, rounds: int) -> tuple[Side, Side]:
    from reformer_pytorch.reformer_pytorch import LSHAttention

    draw = drawer()
    qk, v = x = [draw(1, HEADS, length, WIDTH) for _ in range(2)]
    values = length // BUCKET
    support = {"kind": "lsh", "rounds": rounds, "bucket": BUCKET, "hash_values": values}
    operator = regard.Operator("sparse", support=support)
    torch.manual_seed(0)
    # Its rotations [1,D,rounds,values/2]: the draw that follows this seed in the peer.
    rotations = torch.randn(1, WIDTH, rounds, values // 2)[0].permute(1, 0, 2).contiguous()
    attend = LSHAttention(bucket_size=BUCKET, n_hashes=rounds).eval()

    def peer() -> torch.Tensor:
        torch.manual_seed(0)
        return attend(qk.flatten(0, 1), v.flatten(0, 1))[0].view_as(v)

    return Side(lambda: apply(operator, q=qk, v=v, rotations=rotations), x), Side(peer, x)


def _check(passes: str) -> Agreement:
    return agreement(*_sides(1024, 1), passes)


@row("lsh")
def reformer(settings: Settings) -> Iterator[Case | Result]:
    peer = "reformer-pytorch"
    for length in settings.lengths(4096, 8192):
        try:
            one = _sides(length, 1)
        except ImportError as error:
            yield skipped(f"{WHAT} against {peer}", str(error))
            return
        yield from cases(WHAT, length, peer, *one, BOUNDS, size=f"1 round, buckets of {BUCKET}")
    if settings.quick:
        return
    size = f"4 rounds, buckets of {BUCKET}"
    note = "the peer counts a pair once for each round that has it, and chunks look back across rounds"
    four = _sides(4096, 4)
    yield from cases(WHAT, 4096, peer, *four, BOUNDS, check=_check, size=size, same=False, note=note)
