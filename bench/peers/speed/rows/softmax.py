"""Exact attention against that of PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

from regard.torch import attention
from torch.nn.functional import scaled_dot_product_attention as sdpa

from ..case import Case, Side, cases
from ..results import Bound
from ..sizes import head_first
from . import Settings, row


@row("softmax")
def exact(settings: Settings) -> Iterator[Case]:
    for length in settings.lengths(1024, 2048, 4096, 8192):
        q, k, v = x = head_first(length)
        yield from cases(
            "exact softmax",
            length,
            "PyTorch scaled_dot_product_attention",
            Side(lambda: attention(q, k, v), x),
            Side(lambda: sdpa(q, k, v), x),
            {"forward": Bound(ratio=0.92), "both": Bound(ratio=0.9)},
        )


@row("causal")
def causal(settings: Settings) -> Iterator[Case]:
    for length in settings.lengths(2048, 8192):
        q, k, v = x = head_first(length)
        ours = Side(lambda: attention(q, k, v, causal=True), x)
        theirs = Side(lambda: sdpa(q, k, v, is_causal=True), x)
        yield from cases(
            "causal softmax",
            length,
            "our bidirectional softmax",
            ours,
            Side(lambda: attention(q, k, v), x),
            {"forward": Bound(ratio=0.55), "both": Bound(ratio=0.55)},
            check=theirs,
            same=False,
        )
        yield from cases(
            "causal softmax",
            length,
            "PyTorch scaled_dot_product_attention, causal",
            ours,
            theirs,
            {"forward": Bound(), "both": Bound()},
        )
