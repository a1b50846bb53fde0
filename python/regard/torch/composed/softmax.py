"""Softmax of scores, and of cosines.

One fused operation of PyTorch where nothing but causality is asked, else blocks of queries.
"""

from __future__ import annotations

import dataclasses

import torch
from torch.nn import functional

from .blocks import averages, products, recomputed, rows_in_block, spread
from .mask import Mask
from .random import factors

FUSED = ("cpu", "cuda")
"""Devices whose ``scaled_dot_product_attention`` keeps no matrix of scores."""


@dataclasses.dataclass(frozen=True)
class Weighing:
    """How scores become weights."""

    scale: float
    components: int = 1
    """Keys a position: the scores of a position are next to each other."""
    hard: bool = False
    """Whether only the best component counts, instead of all."""
    slopes: tuple[float, ...] | None = None
    """What a score loses by distance, one a head."""
    dropout: float = 0.0
    dropout_key: int = 0

    @property
    def is_plain(self) -> bool:
        return not self.hard and self.slopes is None and self.dropout == 0.0


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Mask,
    weighing: Weighing,
    valid: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """``softmax_j(scale q_i.k_j + bias_ij) v_j`` over the keys that are seen; 0 where none is.

    ``q [B,H,N,D]``, ``k [B,Hk,S*M,D]``, ``v [B,Hk,S,Dv]``, ``valid [B,S]``, ``bias [H,N,S]`` to ``[B,H,N,Dv]``.
    """
    square = mask.queries == mask.keys and weighing.components == 1
    open_or_causal = mask.window is None and (square or not mask.causal)
    narrow = q.dtype != torch.float64 or q.device.type == "cpu"
    if valid is None and bias is None and weighing.is_plain and open_or_causal and narrow and q.device.type in FUSED:
        v = v if weighing.components == 1 else v.repeat_interleave(weighing.components, 2)
        return _fused(q, k, v, mask.causal, weighing.scale)
    return _by_blocks(q, k, v, mask, weighing, valid, bias)


def _fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    # Fused kernels want widths that are equal and multiples of eight.
    value_width = v.shape[-1]
    width = -(-max(q.shape[-1], value_width) // 8) * 8
    q, k, v = (functional.pad(x, (0, width - x.shape[-1])) for x in (q, k, v))
    grouped = k.shape[1] != q.shape[1]
    if grouped and (q.device.type != "cuda" or q.dtype == torch.float32):
        # Only the kernels for 16 bits on CUDA read one head of keys for several of queries.
        k, v = (spread(x, q.shape[1]) for x in (k, v))
        grouped = False
    # An argument that PyTorch has since 2.5.
    shares = {"enable_gqa": True} if grouped else {}
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, **shares)
    return out[..., :value_width]


def _by_blocks(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Mask,
    weighing: Weighing,
    valid: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    batch, heads, queries, _ = q.shape
    components, keys = weighing.components, mask.keys
    width, most = keys, queries
    if mask.window is not None:
        # Few queries more than the window reaches, so that most of what a block computes is seen.
        most = max(128, mask.window)
        width = min(keys, 2 * mask.window + 1 + most)
    # Random numbers are integers of 64 bits, several at a time.
    size = max(4, q.element_size()) * (8 if weighing.dropout else 1)
    rows = min(most, rows_in_block(queries, batch * heads * width * components * size))
    outs = []
    for first in range(0, queries, rows):
        last = min(first + rows, queries)
        start, end = mask.reach(first, last)
        given = [q[:, :, first:last], k[:, :, start * components : end * components], v[:, :, start:end]]
        given += [] if valid is None else [valid[:, start:end]]
        given += [] if bias is None else [bias[:, first:last, start:end]]
        block = _Block(mask, weighing, first, last, start, end, valid is not None, bias is not None)
        outs.append(recomputed(block, *given))
    return torch.cat(outs, 2)


@dataclasses.dataclass(frozen=True)
class _Block:
    """Queries ``first`` to ``last - 1`` with the keys ``start`` to ``end - 1``."""

    mask: Mask
    weighing: Weighing
    first: int
    last: int
    start: int
    end: int
    has_valid: bool
    has_bias: bool

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        weighing, dtype = self.weighing, q.dtype
        if dtype != torch.float64:
            q, k, v = q.float(), k.float(), v.float()
        scores = products(q * weighing.scale, k)
        if weighing.hard:
            scores = _best(scores.unflatten(-1, (-1, weighing.components)))
        keys = torch.arange(self.start, self.end, device=q.device)
        distances = self.mask.distances(self.first, self.last, keys)
        if weighing.slopes is not None:
            slopes = torch.tensor(weighing.slopes, dtype=scores.dtype, device=q.device)
            scores = scores - slopes[:, None, None] * distances.abs()
        if self.has_bias:
            scores = scores + rest[-1].to(scores.dtype)
        seen = self.mask.seen(distances, rest[0] if self.has_valid else None)
        alike = 1 if weighing.hard else weighing.components
        if alike > 1 and seen is not None:
            seen = seen.repeat_interleave(alike, -1)
        weights = self._weights(scores, seen)
        if weighing.dropout:
            # The components of a position are kept or dropped together.
            kept = self._kept(q, keys).to(weights.dtype)
            weights = weights * (kept if alike == 1 else kept.repeat_interleave(alike, -1))
        return averages(weights, v if alike == 1 else v.repeat_interleave(alike, 2)).to(dtype)

    def _weights(self, scores: torch.Tensor, seen: torch.Tensor | None) -> torch.Tensor:
        if seen is None:
            return scores.softmax(-1)
        weights = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1)
        # A row that sees nothing is uniform after the softmax, and 0 after the mask.
        may_see_nothing = self.has_valid or self.mask.queries > self.mask.keys
        return weights.masked_fill(~seen, 0.0) if may_see_nothing else weights

    def _kept(self, q: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        batch, heads, _, _ = q.shape
        first = torch.arange(batch * heads, device=q.device).reshape(batch, heads, 1) * self.mask.queries
        rows = first + torch.arange(self.first, self.last, device=q.device)
        return factors(self.weighing.dropout_key, self.weighing.dropout, rows, keys)


def _best(logits: torch.Tensor) -> torch.Tensor:
    """The largest of each row; the first of several takes the gradient."""
    return logits.gather(-1, logits.detach().argmax(-1, keepdim=True)).squeeze(-1)


SHORTEST = 1e-12
"""Vectors shorter than this have no direction."""


def directions(x: torch.Tensor) -> torch.Tensor:
    """Vectors of length 1."""
    return functional.normalize(x, dim=-1, eps=SHORTEST)
