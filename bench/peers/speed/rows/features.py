"""Positive random features, alone and around an exact window."""

from __future__ import annotations

from collections.abc import Iterator

import regard
from regard.torch import apply

from ..agreement import Agreement
from ..case import Case, Side, agreement, cases
from ..results import Bound, Result, skipped
from ..sizes import WIDTH, drawer, head_first
from ..twin import with_twin
from . import Settings, row


@row("performer")
def performer(settings: Settings) -> Iterator[Case | Result]:
    try:
        from performer_pytorch.performer_pytorch import FastAttention, linear_attention, softmax_kernel
    except ImportError as error:
        yield skipped("Performer against performer-pytorch", str(error))
        return
    peer = FastAttention(dim_heads=WIDTH, nb_features=64, causal=False)
    projection = peer.projection_matrix
    operator = regard.Operator("performer", features={"kind": "plain", "rows": 64})
    for length in settings.lengths(2048, 8192):
        q, k, v = x = head_first(length)
        ours = Side(lambda: apply(operator, q=q, k=k, v=v, projection=projection), x)

        def check(passes: str) -> Agreement:
            # It adds 1e-4 to every feature; the check does without.
            def features(y, is_query):  # type: ignore[no-untyped-def]
                return softmax_kernel(y, projection_matrix=projection, is_query=is_query, eps=0.0)

            return agreement(ours, Side(lambda: linear_attention(features(q, True), features(k, False), v), x), passes)

        yield from cases(
            "Performer",
            length,
            "performer-pytorch",
            ours,
            Side(lambda: peer(q, k, v), x),
            {"forward": Bound(ratio=0.25), "both": Bound(ratio=0.25)},
            check=check,
            size="64 features",
            note="compared without the 1e-4 that the peer adds to every feature",
        )


@row("scatterbrain")
def scatterbrain(settings: Settings) -> Iterator[Case]:
    for length in settings.lengths(16384):
        q, k, v = x = head_first(length)
        # Hyperbolic features are two a row.
        operator = regard.Operator("scatterbrain", support={"kind": "local", "radius": 32}, features={"rows": 16})
        projection = drawer(1)(16, WIDTH).detach()

        def check(passes: str) -> Agreement:
            small = dict(zip("qkv", head_first(300)))
            return with_twin(operator, passes, {**small, "projection": projection})

        yield from cases(
            "Scatterbrain",
            length,
            "",
            Side(lambda: apply(operator, q=q, k=k, v=v, projection=projection), x),
            None,
            {"forward": Bound(value=40.0), "both": Bound(value=160.0)},
            check=check,
            size="radius 32, 32 features",
            note="its authors' code is not on a package registry",
        )
