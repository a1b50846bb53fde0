"""Softmax over a support, and Scatterbrain: exact weights on it, features off it (arXiv 2110.15343).

Blocks of queries look at the keys near them pair by pair, exactly or by features as the support says; keys that no
query of a block has in its support are summed as features alone. So no part of a sum is ever subtracted again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch

from .blocks import averages, products, recomputed, rows_in_block
from .linear import LOWEST, Sums, divide, queries_under, with_ones
from .mask import Mask
from .support import HASHED, Plan, Ranges, Support

def attend_to_support(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Mask,
    support: Support,
    scale: float,
    logs: tuple[torch.Tensor, torch.Tensor] | None = None,
    naive: bool = False,
    valid: torch.Tensor | None = None,
    groups: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Weights ``exp(scale q.k)`` on the support and, with ``logs`` of features, their products off it.

    ``q [B,H,N,D]``, ``k [B,Hk,S,D]``, ``v [B,Hk,S,Dv]``, logs ``[B,H,N,m]`` and ``[B,Hk,S,m]``, ``valid [B,S]`` to
    ``[B,H,N,Dv]``. With ``naive`` products count on the support too. ``groups [R,B,H,N]`` and ``[R,B,H,S]`` are those
    of a support by hashes.
    """
    batch, heads, queries, _ = q.shape
    most, width = queries, mask.keys
    if support.kind in ("block", "bigbird"):
        most = support.block
    elif support.kind not in HASHED:
        most = max(128, support.radius)
        width = min(mask.keys, 2 * support.radius + 1 + most + support.globals)
    rows = min(most, rows_in_block(queries, batch * heads * width * q.element_size()))
    plans, values = support.plans(mask, rows), with_ones(v)
    far: list[Sums] = []
    if logs is not None:
        log_q, log_k = logs
        if valid is not None:
            log_k = log_k.masked_fill(~valid[:, None, :, None], -math.inf)
        far = _far(plans, log_k, values)
    outs = []
    for n, plan in enumerate(plans):
        given = [q[:, :, plan.first : plan.last], _cut(k, plan.near, 2), _cut(values, plan.near, 2)]
        if logs is not None:
            given += [log_q[:, :, plan.first : plan.last], _cut(log_k, plan.near, 2), far[n].scale, far[n].sums]
        if groups is not None:
            given += [groups[0][..., plan.first : plan.last], _cut(groups[1], plan.near, 3)]
        if valid is not None:
            given.append(_cut(valid, plan.near, 1))
        block = _Block(mask, support, plan, scale, naive, logs is not None, valid is not None)
        outs.append(recomputed(block, *given))
    return torch.cat(outs, 2)


def _cut(tensor: torch.Tensor, ranges: Ranges, axis: int) -> torch.Tensor:
    parts = [tensor.narrow(axis, start, end - start) for start, end in ranges if end > start]
    if not parts:
        return tensor.narrow(axis, 0, 0)
    return parts[0] if len(parts) == 1 else torch.cat(parts, axis)


def _far(plans: Sequence[Plan], logs: torch.Tensor, values: torch.Tensor) -> list[Sums]:
    """The sums over the keys that each block sums as features."""

    def of(*ranges: tuple[int, int]) -> Sums:
        return Sums.of(_cut(logs, ranges, 2), _cut(values, ranges, 2))

    befores, afters = [], []
    start = end = 0
    state = Sums.empty(logs, values)
    for plan in plans:
        new_start, new_end = plan.before
        grows = new_start == start and new_end >= end
        state = state + of((end, new_end)) if grows and new_end > end else state if grows else of(plan.before)
        start, end = plan.before
        befores.append(state)
    start = end = 0
    state = Sums.empty(logs, values)
    for plan in reversed(plans):
        new_start, new_end = plan.after
        grows = new_end == end and new_start <= start
        state = state + of((new_start, start)) if grows and new_start < start else state if grows else of(plan.after)
        start, end = plan.after
        afters.append(state)
    pairs = zip(plans, befores, reversed(afters))
    return [of(*plan.apart) if plan.apart else before + after for plan, before, after in pairs]


@dataclasses.dataclass(frozen=True)
class _Block:
    mask: Mask
    support: Support
    plan: Plan
    scale: float
    naive: bool
    has_features: bool
    has_valid: bool

    def __call__(self, q: torch.Tensor, k: torch.Tensor, values: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        places = torch.arange(self.mask.keys, device=q.device)
        keys = _cut(places, self.plan.near, 0)
        distances = self.mask.distances(self.plan.first, self.plan.last, keys)
        seen = self.mask.seen(distances, rest[-1] if self.has_valid else None)
        on = self._support(distances, keys, seen, rest[4:6] if self.has_features else rest[:2])
        if k.shape[2] == 0:
            sums, top = values.new_zeros((*q.shape[:3], values.shape[-1])), q.new_full((1,), LOWEST)
        else:
            scores = products(q * self.scale, k).masked_fill(~on, -math.inf)
            top = scores.detach().amax(-1, keepdim=True).clamp(min=LOWEST)
            sums = averages((scores - top).exp(), values)
        if not self.has_features:
            return divide(sums)
        low, low_top = self._low_rank(on, seen, values, *rest[:4])
        common = torch.maximum(top, low_top)
        return divide(sums * (top - common).exp() + low * (low_top - common).exp())

    def _support(
        self, distances: torch.Tensor, keys: torch.Tensor, seen: torch.Tensor | None, groups: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        """The pairs of the support that are seen."""
        if self.support.kind not in HASHED:
            on = self.support.contains(self.mask, self.plan, distances, keys)
            return on if seen is None else on & seen
        on = self.support.meets(self.mask.keys, *groups, distances)
        on = on if seen is None else on & seen
        if self.support.kind == "lsh":
            # A token looks at itself only where there is nothing else.
            own = distances == 0 if seen is None else (distances == 0) & seen
            on = on | own & ~on.any(-1, keepdim=True)
        return on

    def _low_rank(
        self,
        on: torch.Tensor,
        seen: torch.Tensor | None,
        values: torch.Tensor,
        log_q: torch.Tensor,
        log_k: torch.Tensor,
        far_scale: torch.Tensor,
        far_sums: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums of products of features, and the log scale of each row."""
        far, scale = Sums(far_scale, far_sums), far_scale
        if log_k.shape[2]:
            scale = torch.maximum(scale, log_k.detach().amax(2, keepdim=True))
        features, top = queries_under(log_q, scale)
        sums = averages(features, far.under(scale))
        if log_k.shape[2]:
            off = (torch.ones_like(on) if self.naive else ~on) if seen is None else seen if self.naive else seen & ~on
            pairs = products(features, (log_k - scale).exp()).masked_fill(~off, 0.0)
            sums = sums + averages(pairs, values)
        # Rows without any such key: nothing to scale by.
        return sums, torch.where(sums[..., -1:].detach() > 0, top, LOWEST)
