"""Linear attention and mixtures of linear keys, with features `elu + 1`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from regard.torch import attention

from .. import dense
from ..agreement import Agreement
from ..case import Case, Side, agreement, cases
from ..results import Bound, Result, skipped
from ..sizes import WIDTH, head_first, mixture, token_first
from . import Settings, row

PEER = "pytorch-fast-transformers"


def _fast_transformers(length: int, causal: bool) -> Callable[..., torch.Tensor]:
    from fast_transformers.attention import CausalLinearAttention, LinearAttention
    from fast_transformers.masking import FullMask, LengthMask, TriangularCausalMask

    # Masks compute what they know once: they are made, and asked, before the clock runs.
    mask = TriangularCausalMask(length) if causal else FullMask(length)
    lengths = LengthMask(torch.full((1,), length))
    lengths.float_matrix  # noqa: B018
    attend = (CausalLinearAttention if causal else LinearAttention)(WIDTH)
    return lambda q, k, v: attend(q, k, v, mask, lengths, lengths)


def _beside_peer(settings: Settings, causal: bool, bound: Bound) -> Iterator[Case | Result]:
    what = "causal linear attention" if causal else "linear attention"
    for length in settings.lengths(2048, 8192):
        # Its layout, token first, is one of ours.
        q, k, v = x = token_first(length)
        try:
            peer = _fast_transformers(length, causal)
        except ImportError as error:
            yield skipped(f"{what} against {PEER}", str(error))
            return
        yield from cases(
            what,
            length,
            PEER,
            Side(lambda: attention(q, k, v, "linear", causal=causal, layout="token_first"), x),
            Side(lambda: peer(q, k, v), x),
            {"forward": Bound(), "both": bound},
        )


@row("linear")
def bidirectional(settings: Settings) -> Iterator[Case | Result]:
    yield from _beside_peer(settings, False, Bound(ratio=0.5))


@row("causal-linear")
def causal(settings: Settings) -> Iterator[Case | Result]:
    yield from _beside_peer(settings, True, Bound(ratio=0.25))


@row("mlk")
def mixtures(settings: Settings) -> Iterator[Case]:
    def sides(length: int) -> tuple[Side, Side]:
        q, k, v, log_prior = x = mixture(length)
        # The scale of the prior cancels, its difference between components does not.
        ours = Side(lambda: attention(q, k, v, "mlk", log_prior=log_prior), x)
        return ours, Side(lambda: dense.linear_mixture(q, k, v, log_prior), x)

    def check(passes: str) -> Agreement:
        return agreement(*sides(512), passes)

    for length in settings.lengths(2048, 8192):
        q, k, v = x = head_first(length)
        yield from cases(
            "MLK, M = 2",
            length,
            "our linear attention",
            sides(length)[0],
            Side(lambda: attention(q, k, v, "linear"), x),
            {"forward": Bound(ratio=1.4), "both": Bound(ratio=1.4)},
            check=check,
            same=False,
        )


@row("linear-attention-transformer")
def softmax_features(settings: Settings) -> Iterator[Case | Result]:
    what = "linear attention"
    try:
        from linear_attention_transformer.linear_attention_transformer import linear_attn
    except ImportError as error:
        yield skipped(f"{what} against linear-attention-transformer", str(error))
        return
    for length in settings.lengths(2048, 8192):
        q, k, v = x = head_first(length)

        def twin(passes: str) -> Agreement:
            q, k, v, _ = x = mixture(512, 1)
            zero = torch.zeros(k.shape[1], 1)
            ours = Side(lambda: attention(q, k[:, :, 0], v, "linear"), x[:3])
            return agreement(ours, Side(lambda: dense.linear_mixture(q, k, v, zero), x[:3]), passes)

        yield from cases(
            what,
            length,
            "linear-attention-transformer",
            Side(lambda: attention(q, k, v, "linear"), x),
            Side(lambda: linear_attn(q, k, v), x),
            {"forward": Bound(), "both": Bound()},
            check=twin,
            same=False,
            note="its features are softmaxes, over channels and over tokens",
        )
