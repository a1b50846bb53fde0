"""The keys that a block of queries sees."""

from __future__ import annotations

import dataclasses

import torch


@dataclasses.dataclass(frozen=True)
class Mask:
    """Causality and a window, aligned at the last query and key: query ``i`` stands at position ``i + keys - queries``.

    Padding is a tensor and goes beside it.
    """

    queries: int
    keys: int
    causal: bool
    window: int | None

    def reach(self, first: int, last: int) -> tuple[int, int]:
        """The range of keys that queries ``first`` to ``last - 1`` see."""
        offset = self.keys - self.queries
        start = 0 if self.window is None else first + offset - self.window
        end = self.keys
        if self.causal:
            end = last + offset
        elif self.window is not None:
            end = last + offset + self.window
        start = min(max(start, 0), self.keys)
        return start, max(start, min(max(end, 0), self.keys))

    def distances(self, first: int, last: int, keys: torch.Tensor) -> torch.Tensor:
        """Positions of ``keys [k]`` less those of queries: ``[last - first, k]``."""
        positions = torch.arange(first, last, device=keys.device) + (self.keys - self.queries)
        return keys - positions[:, None]

    def seen(self, distances: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor | None:
        """Which keys are seen, ``[n,k]`` or with ``valid [B,k]`` ``[B,1,n,k]``; None for all."""
        seen = None
        if self.causal:
            seen = distances <= 0
        if self.window is not None:
            near = distances.abs() <= self.window
            seen = near if seen is None else seen & near
        if valid is not None:
            real = valid[:, None, None, :]
            seen = real if seen is None else seen & real
        return seen
