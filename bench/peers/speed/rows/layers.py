"""Attention layers 512 wide: Fastformer against its matrix products, a mixture of heads against a plain layer."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from regard.torch import MultiheadAttention
from torch.nn.functional import linear

from ..agreement import Agreement
from ..case import Case, Side, cases
from ..results import Bound
from ..sizes import HEADS, WIDTH, drawer
from ..twin import with_twin
from . import Settings, row

CHANNELS = HEADS * WIDTH


@row("fastformer")
def fastformer(settings: Settings) -> Iterator[Case]:
    torch.manual_seed(0)
    layer = MultiheadAttention(CHANNELS, HEADS, "fastformer", bias=False)
    for length in settings.lengths(2048, 8192):
        x = drawer()(1, length, CHANNELS)
        named = dict(layer.named_parameters())
        weights = [named[name] for name in ("q_proj.weight", "k_proj.weight", "w_t")]

        def products(x: torch.Tensor = x) -> tuple[torch.Tensor, ...]:
            return tuple(linear(x, weight) for weight in weights)

        def check(passes: str) -> Agreement:
            draw = drawer(1)
            q, k = draw(1, 300, HEADS, WIDTH), draw(1, 300, HEADS, WIDTH)
            rest = {name: parameter for name, parameter in layer.named_parameters() if name in ("w_q", "w_k", "w_t")}
            return with_twin(layer.operator, passes, {"q": q, "k": k, **rest})

        yield from cases(
            "Fastformer layer",
            length,
            "its three matrix products alone",
            Side(lambda: layer(x), [x, *layer.parameters()]),
            Side(products, [x, *weights]),
            {"forward": Bound(ratio=1.3), "both": Bound(ratio=1.3)},
            check=check,
            size=f"{CHANNELS} wide",
            same=False,
        )


@row("moa")
def mixture_of_heads(settings: Settings) -> Iterator[Case]:
    torch.manual_seed(0)
    experts = 4 * HEADS
    layer = MultiheadAttention(CHANNELS, HEADS, "moa", moa={"experts": experts})
    plain = MultiheadAttention(CHANNELS, HEADS, "softmax", bias=False)

    def check(passes: str) -> Agreement:
        x = drawer(1)(1, 300, CHANNELS)
        return with_twin(layer.operator, passes, {"x": x, **dict(layer.named_parameters())})

    for length in settings.lengths(2048):
        x = drawer()(1, length, CHANNELS)
        yield from cases(
            "MoA layer",
            length,
            "our softmax layer with 8 heads",
            Side(lambda: layer(x), [x, *layer.parameters()]),
            Side(lambda: plain(x), [x, *plain.parameters()]),
            {"forward": Bound(ratio=1.1), "both": Bound(ratio=1.1)},
            check=check,
            size=f"{CHANNELS} wide, {HEADS} of {experts} heads",
            same=False,
        )
