"""Positive features instead of scores: linear attention, its mixture, Performer; time linear in the length.

Features are logarithms until they are multiplied: each feature of the keys has a scale, which the queries undo, and
each query has one, which cancels.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from .blocks import averages, recomputed, rows_in_block, spread
from .mask import Mask

LOWEST = -1e30
"""A log scale below that of any feature."""
CHUNK = 64
"""Keys from one state of causal attention to the next, fewer where there are fewer."""
PAIRS = 16
"""Keys that causal queries look at pair by pair, a divisor of the chunk.

In logarithms: no later key can hide an earlier one, however much larger its features are."""


def log_elu(x: torch.Tensor) -> torch.Tensor:
    """``ln(elu(x) + 1)``."""
    return torch.where(x < 0, x, x.clamp(min=0).log1p())


def log_exponential(x: torch.Tensor, projection: torch.Tensor, scale: float, hyperbolic: bool) -> torch.Tensor:
    """Logs of features whose products approximate ``exp(scale x.y)``, of ``x [...,D]`` with ``projection [R,D]``."""
    scaled = x * math.sqrt(scale)
    projected = scaled @ projection.to(x.dtype).T
    rows = torch.cat([projected, -projected], -1) if hyperbolic else projected
    return rows - scaled.square().sum(-1, keepdim=True) / 2 - math.log(rows.shape[-1]) / 2


def log_mixture(k: torch.Tensor, log_prior: torch.Tensor | None, heads: int) -> torch.Tensor:
    """Logs of ``sum_r exp(log_prior_r) phi(k_r)`` for ``k [B,Hk,M,S,D]``, ``log_prior [H,M]``: ``[B,Hk or H,S,D]``."""
    logs = log_elu(k)
    if log_prior is None:
        return logs.logsumexp(2)
    logs = spread(logs, heads)
    return (logs + log_prior.to(k.dtype)[:, :, None, None]).logsumexp(2)


def with_ones(v: torch.Tensor) -> torch.Tensor:
    """Values with a channel of ones, whose sum is the denominator."""
    return torch.cat([v, torch.ones_like(v[..., :1])], -1)


def divide(sums: torch.Tensor) -> torch.Tensor:
    """Sums by their last channel; 0 where there is nothing to divide by."""
    total = sums[..., -1:]
    return sums[..., :-1] / torch.where(total > 0, total, 1.0)


class Sums:
    """``sum_j phi(k_j) [v_j, 1]`` for each feature, with the log scale of the feature.

    ``scale [B,Hk,1,m]``; ``sums [B,Hk,m,Dv+1]`` are those of features divided by ``exp(scale)``.
    """

    def __init__(self, scale: torch.Tensor, sums: torch.Tensor) -> None:
        self.scale, self.sums = scale, sums

    @classmethod
    def of(cls, logs: torch.Tensor, values: torch.Tensor) -> Sums:
        """Of ``logs [B,Hk,S,m]``, -inf for padding, and ``values [B,Hk,S,Dv+1]``."""
        if logs.shape[2] == 0:
            return cls.empty(logs, values)
        scale = logs.detach().amax(2, keepdim=True).clamp(min=LOWEST)
        return cls(scale, (logs - scale).exp().transpose(-1, -2) @ values)

    @classmethod
    def empty(cls, logs: torch.Tensor, values: torch.Tensor) -> Sums:
        """Of no keys."""
        batch, heads, _, features = logs.shape
        scale = logs.new_full((batch, heads, 1, features), LOWEST)
        return cls(scale, values.new_zeros((batch, heads, features, values.shape[-1])))

    def under(self, scale: torch.Tensor) -> torch.Tensor:
        """The sums under a scale that is no smaller."""
        return self.sums * (self.scale - scale).exp().transpose(-1, -2)

    def __add__(self, other: Sums) -> Sums:
        scale = torch.maximum(self.scale, other.scale)
        return Sums(scale, self.under(scale) + other.under(scale))


def queries_under(logs: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of queries ``[B,H,n,m]`` for keys under a scale ``[B,Hk,1,m]``, and the log scale of each query."""
    lifted = logs + spread(scale, logs.shape[1])
    top = lifted.detach().amax(-1, keepdim=True)
    return (lifted - top).exp(), top


def attend_linearly(
    log_q: torch.Tensor, log_k: torch.Tensor, v: torch.Tensor, mask: Mask, valid: torch.Tensor | None
) -> torch.Tensor:
    """``phi(q_i) sum_j phi(k_j) v_j / phi(q_i) sum_j phi(k_j)`` over the keys that are seen.

    ``log_q [B,H,N,m]``, ``log_k [B,Hk,S,m]``, ``v [B,Hk,S,Dv]``, ``valid [B,S]`` to ``[B,H,N,Dv]``.
    """
    v = spread(v, log_k.shape[1])
    if valid is not None:
        log_k = log_k.masked_fill(~valid[:, None, :, None], -math.inf)
    values = with_ones(v)
    if mask.causal:
        return _causal(log_q, log_k, values)
    state = Sums.of(log_k, values)
    features, _ = queries_under(log_q, state.scale)
    return divide(averages(features, state.sums))


def _causal(log_q: torch.Tensor, log_k: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    batch, heads, queries, features = log_q.shape
    keys = log_k.shape[2]
    # All queries see the keys before the first one's position; queries before the first key see nothing.
    early, blind = max(keys - queries, 0), max(queries - keys, 0)
    tokens = queries - blind
    chunk = min(CHUNK, -(-tokens // PAIRS) * PAIRS)
    chunks = -(-tokens // chunk)

    def chunked(x: torch.Tensor, fill: float = 0.0) -> torch.Tensor:
        x = functional.pad(x, (0, 0, 0, chunks * chunk - tokens), value=fill)
        return x.unflatten(2, (chunks, chunk)).transpose(1, 2).flatten(0, 1)

    q, k, v = chunked(log_q[:, :, blind:]), chunked(log_k[:, :, early:], -math.inf), chunked(values[:, :, early:])
    each = Sums.of(k, v)
    scales, sums = (x.unflatten(0, (batch, chunks)).unbind(1) for x in (each.scale, each.sums))
    state = Sums.of(log_k[:, :, :early], values[:, :, :early])
    states = []
    for scale, total in zip(scales, sums):
        states.append(state)
        state = state + Sums(scale, total)
    before = [torch.stack([getattr(s, name) for s in states], 1).flatten(0, 1) for name in ("scale", "sums")]

    size = rows_in_block(batch * chunks, heads * PAIRS * PAIRS * features * q.element_size())
    parts = zip(*(x.split(size) for x in (q, k, v, *before)))
    seen = torch.cat([recomputed(_chunk, *part) for part in parts])
    seen = seen.unflatten(0, (batch, chunks)).transpose(1, 2).flatten(2, 3)[:, :, :tokens]
    return functional.pad(seen, (0, 0, blind, 0)) if blind else seen


def _chunk(
    log_q: torch.Tensor, log_k: torch.Tensor, values: torch.Tensor, scale: torch.Tensor, sums: torch.Tensor
) -> torch.Tensor:
    """Outputs of the queries of a chunk, with the sums over all keys before it."""
    outs = []
    for first in range(0, log_q.shape[2], PAIRS):
        state = Sums(scale, sums)
        if first:
            state = state + Sums.of(log_k[:, :, :first], values[:, :, :first])
        q, k, v = (x[:, :, first : first + PAIRS] for x in (log_q, log_k, values))
        features, top = queries_under(q, state.scale)
        far = averages(features, state.sums)
        k = spread(k, q.shape[1])
        near_top = (q + k.detach().cummax(2).values).detach().amax(-1, keepdim=True).clamp(min=LOWEST)
        logs = q[:, :, :, None] + k[:, :, None] - near_top[..., None]
        later = torch.ones(PAIRS, PAIRS, dtype=torch.bool, device=q.device).triu(1)
        near = averages(logs.masked_fill(later[..., None], -math.inf).exp().sum(-1), v)
        # Where there is nothing before, its scale means nothing.
        top = torch.where(far[..., -1:].detach() > 0, top, LOWEST)
        common = torch.maximum(top, near_top)
        outs.append(divide(far * (top - common).exp() + near * (near_top - common).exp()))
    return torch.cat(outs, 2)
