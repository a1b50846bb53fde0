"""Exact attention at many shapes: batches, widths of heads, shared keys, few queries."""

from __future__ import annotations

from collections.abc import Iterator

import regard.torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from ..case import Case, Side, cases
from ..results import Bound
from ..sizes import drawer
from . import Settings, row

SHAPES = (
    # Batch, query heads, key heads, queries, keys, channels of a head, causal.
    (1, 8, 8, 2048, 2048, 64, False),
    (1, 8, 8, 512, 512, 64, False),
    (8, 8, 8, 128, 128, 64, False),
    (32, 4, 4, 128, 128, 32, False),
    (1, 12, 12, 1024, 1024, 128, True),
    (1, 4, 4, 2048, 2048, 256, False),
    (1, 16, 16, 1024, 1024, 80, False),
    (1, 8, 8, 2048, 2048, 48, False),
    (1, 9, 3, 2048, 2048, 64, True),
    (1, 9, 3, 1, 4096, 64, False),
    (8, 8, 8, 1, 2048, 64, False),
    (1, 8, 8, 16, 4096, 64, False),
)


@row("shapes", on_request=True)
def shapes(settings: Settings) -> Iterator[Case]:
    for batch, heads, key_heads, queries, keys, width, causal in SHAPES[:3] if settings.quick else SHAPES:
        draw = drawer()
        q = draw(batch, heads, queries, width)
        k, v = draw(batch, key_heads, keys, width), draw(batch, key_heads, keys, width)
        shared = f" on {key_heads}" if key_heads != heads else ""
        yield from cases(
            "causal softmax" if causal else "exact softmax",
            queries,
            "PyTorch scaled_dot_product_attention",
            Side(lambda: regard.torch.attention(q, k, v, causal=causal), (q, k, v)),
            Side(lambda: sdpa(q, k, v, is_causal=causal, enable_gqa=heads != key_heads), (q, k, v)),
            {"forward": Bound(ratio=0.95), "both": Bound(ratio=0.95)},
            size=f"B {batch}, H {heads}{shared}, S {keys}, D {width}",
        )
