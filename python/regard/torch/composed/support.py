"""Supports: which keys have exact weights for which queries, block by block."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from .mask import Mask
from .random import blocks

Ranges = tuple[tuple[int, int], ...]
HASHED = ("smyrf", "lsh")
"""Supports that the contents of tokens decide: all keys are near."""


@dataclasses.dataclass(frozen=True)
class Support:
    """``support.*``: ``local``, ``longformer``, ``bigbird``, ``block``, ``full``, ``smyrf`` or ``lsh``."""

    kind: str
    radius: int
    globals: int
    random: int
    seed: int
    block: int
    blocks: tuple[str, ...]
    bucket: int
    cyclic: bool

    def plans(self, mask: Mask, rows: int) -> list[Plan]:
        """Blocks of at most ``rows`` queries."""
        if self.kind == "block":
            return self._of_layout(mask, rows)
        if self.kind == "bigbird":
            return self._of_random_blocks(mask, rows)
        if self.kind == "full" or self.kind in HASHED:
            bounds = [(first, min(first + rows, mask.queries)) for first in range(0, mask.queries, rows)]
            return [Plan(first, last, ((0, mask.reach(first, last)[1]),)) for first, last in bounds]
        return self._of_bands(mask, rows)

    def _of_bands(self, mask: Mask, rows: int) -> list[Plan]:
        offset, leading = mask.keys - mask.queries, 0 if self.kind == "local" else self.globals
        leading = min(leading, mask.keys)
        # Global queries see all; they go in blocks of their own.
        bounds = [0, *(n for n in (min(max(n - offset, 0), mask.queries) for n in (0, leading)) if n), mask.queries]
        plans = []
        for start, end in zip(bounds, bounds[1:]):
            for first in range(start, end, rows):
                last = min(first + rows, end)
                seen = mask.reach(first, last)[1]
                if 0 <= first + offset < leading:
                    plans.append(Plan(first, last, ((0, seen),)))
                    continue
                low = min(max(first + offset - self.radius, 0), seen)
                high = max(low, min(last + offset + self.radius, seen))
                # Global keys are near too, before the band or next to it.
                apart = min(leading, low)
                high = max(high, min(leading, seen)) if low < leading else high
                plans.append(Plan(first, last, ((0, apart), (low, high)), (apart, low), (high, seen)))
        return plans

    def _of_random_blocks(self, mask: Mask, rows: int) -> list[Plan]:
        offset, plans = mask.keys - mask.queries, []
        for band in self._of_bands(mask, rows):
            first = band.first
            while first < band.last:
                # Queries before the first key are in the first block.
                row = max(first + offset, 0) // self.block
                last = min(band.last, (row + 1) * self.block - offset)
                seen = mask.reach(first, last)[1]
                chosen = blocks(self.seed, row, -(-mask.keys // self.block), self.random)
                ranges = [*band.near, *((n * self.block, (n + 1) * self.block) for n in chosen)]
                near = _joined(ranges, seen)
                far = [(a, b) for (_, a), (b, _) in zip(((0, 0), *near), (*near, (seen, seen))) if b > a]
                plans.append(Plan(first, last, near, apart=tuple(far), row=row))
                first = last
        return plans

    def _of_layout(self, mask: Mask, rows: int) -> list[Plan]:
        plans = []
        for row in range(-(-mask.queries // self.block)):
            for first in range(row * self.block, min((row + 1) * self.block, mask.queries), rows):
                last = min(first + rows, (row + 1) * self.block, mask.queries)
                seen = mask.reach(first, last)[1]
                # Keys that only some of the queries see are near, whether in the support or not.
                common = mask.reach(first, first + 1)[1]
                near, far = [], []
                for column in range(-(-seen // self.block)):
                    start, end = column * self.block, min((column + 1) * self.block, seen)
                    if self.blocks[row][column] == "1" or end > common:
                        near.append((start, end))
                    else:
                        far.append((start, end))
                plans.append(Plan(first, last, tuple(near), apart=tuple(far), row=row))
        return plans

    def contains(self, mask: Mask, plan: Plan, distances: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Which ``keys [k]`` are in the support of a block's queries, by ``distances [n,k]``; not for hashes."""
        if self.kind == "block":
            chosen = torch.tensor([entry == "1" for entry in self.blocks[plan.row]], device=keys.device)
            return chosen[keys // self.block].expand(distances.shape)
        if self.kind == "full":
            return torch.ones_like(distances, dtype=torch.bool)
        near = distances.abs() <= self.radius
        if self.kind != "local":
            positions = keys - distances
            near = near | (keys < self.globals) | ((positions >= 0) & (positions < self.globals))
        if self.kind == "bigbird":
            count = -(-mask.keys // self.block)
            chosen = blocks(self.seed, plan.row, count, self.random)
            flags = torch.tensor([n in chosen for n in range(count)], device=keys.device)
            near = near | flags[keys // self.block]
        return near

    def meets(self, total: int, queries: torch.Tensor, groups: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
        """Which of ``total`` keys share a group in some round: groups ``[R,B,H,n]``, ``[R,B,H,k]`` to ``[B,H,n,k]``."""
        met = None
        for own, other in zip(queries.unbind(0), groups.unbind(0)):
            own, other = own[..., None], other[..., None, :]
            round_met = own == other
            if self.kind == "lsh":
                last = -(-total // self.bucket) - 1
                before = torch.where(own > 0, own - 1, last if self.cyclic else -1)
                round_met = round_met | (other == before)
            met = round_met if met is None else met | round_met
        assert met is not None
        return met & (distances != 0) if self.kind == "lsh" else met


@dataclasses.dataclass(frozen=True)
class Plan:
    """Queries ``first`` to ``last - 1`` and where their keys are."""

    first: int
    last: int
    near: Ranges
    """Keys to look at pair by pair."""
    before: tuple[int, int] = (0, 0)
    """Keys to sum as features, a range that grows from block to block."""
    after: tuple[int, int] = (0, 0)
    """The same, a range that shrinks."""
    apart: Ranges = ()
    """The same, in any order."""
    row: int = 0
    """Row of a block layout."""


def _joined(ranges: Sequence[tuple[int, int]], end: int) -> Ranges:
    """Ranges up to ``end`` in order, those that overlap or touch as one."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted((min(a, end), min(b, end)) for a, b in ranges):
        if stop <= start:
            continue
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], stop)
        else:
            joined.append((start, stop))
    return tuple(joined)
