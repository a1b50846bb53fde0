"""Attention of other frameworks as it runs on a processor: FlexAttention compiled, x-transformers, flash-linear-attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from regard.torch import attention
from torch.nn.functional import elu
from torch.nn.functional import scaled_dot_product_attention as sdpa

from .. import memory
from ..case import Case, Side, cases
from ..clock import Times
from ..results import Bound, Result, skipped
from ..sizes import head_first, token_first
from . import MEMORY, Settings, row

FLEX = "FlexAttention, compiled"
DENSE = "x-transformers"
CHUNKS = "flash-linear-attention, its chunked form in PyTorch"


def _flex(length: int, causal: bool) -> Callable[..., torch.Tensor]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention)

    def before(_b: torch.Tensor, _h: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return query >= key

    mask = create_block_mask(before, None, None, length, length, device="cpu") if causal else None
    return lambda q, k, v: compiled(q, k, v, block_mask=mask)


@row("flex", on_request=True)
def flex_attention(settings: Settings) -> Iterator[Case | Result]:
    for length in settings.lengths(1024, 2048):
        for causal in (False, True):
            q, k, v = (tensor.detach() for tensor in head_first(length))
            what = "causal softmax" if causal else "exact softmax"
            try:
                peer = _flex(length, causal)
                with torch.no_grad():
                    peer(q, k, v)
            except Exception as error:  # noqa: BLE001 (whatever a compiler raises)
                yield skipped(f"{what} against {FLEX}", str(error).splitlines()[0])
                return
            yield from cases(
                what,
                length,
                FLEX,
                Side(lambda: attention(q, k, v, causal=causal), ()),
                Side(lambda: peer(q, k, v), ()),
                {"forward": Bound(ratio=0.95)},
                note="its backward pass is not for processors",
            )


def _dense() -> Callable[..., torch.Tensor]:
    from x_transformers.attend import Attend

    attend = Attend()
    return lambda q, k, v: attend(q, k, v)[0]


@row("x-transformers", on_request=True)
def dense(settings: Settings) -> Iterator[Case | Result]:
    for length in settings.lengths(512, 2048):
        q, k, v = x = head_first(length)
        try:
            peer = _dense()
        except ImportError as error:
            yield skipped(f"exact softmax against {DENSE}", str(error))
            return
        bounds = {"forward": Bound(ratio=0.95), "both": Bound(ratio=0.95)}
        ours = Side(lambda: attention(q, k, v), x)
        yield from cases("exact softmax", length, DENSE, ours, Side(lambda: peer(q, k, v), x), bounds)


@row("flash-linear", on_request=True)
def chunked_linear(settings: Settings) -> Iterator[Case | Result]:
    for length in settings.lengths(2048, 8192):
        q, k, v = x = token_first(length)
        try:
            from fla.ops.linear_attn.naive import naive_chunk_linear_attn as peer
        except ImportError as error:
            yield skipped(f"causal linear attention against {CHUNKS}", str(error))
            return
        yield from cases(
            "causal linear attention",
            length,
            CHUNKS,
            Side(lambda: attention(q, k, v, "linear", causal=True, layout="token_first"), x),
            Side(lambda: peer(elu(q) + 1, elu(k) + 1, v, normalize=True), x),
            {"forward": Bound(ratio=0.5), "both": Bound(ratio=0.5)},
            note="its kernels are for graphics processors",
        )


def _runs(length: int) -> Mapping[str, Callable[[], object]]:
    q, k, v = x = head_first(length)
    sides = {"ours": lambda: attention(q, k, v), "sdpa": lambda: sdpa(q, k, v), "dense": lambda: _dense()(q, k, v)}
    return {name: Side(run, x).once for name, run in sides.items()}


MEMORY["frameworks"] = _runs


@row("softmax-memory", on_request=True)
def bytes_at_most(settings: Settings) -> Iterator[Result]:
    what = "exact softmax, memory of forward + backward"
    for length in settings.lengths(1024, 4096):
        seen = {side: memory.of_side("frameworks", side, length, settings.threads) for side in ("ours", "sdpa", "dense")}
        mebibytes = {side: Times.of([bytes_ / 2**20]) for side, bytes_ in seen.items() if bytes_ is not None}
        if "ours" not in mebibytes:
            yield skipped(what, "this system does not tell the peak of a process")
            return
        for side, other in (("sdpa", "PyTorch scaled_dot_product_attention"), ("dense", DENSE)):
            if side in mebibytes:
                yield Result(what, f"N = {length}", other, mebibytes["ours"], mebibytes[side], unit="MiB")
