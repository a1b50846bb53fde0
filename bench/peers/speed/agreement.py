"""Whether two implementations compute the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

BOUND = 1e-3
"""Largest difference by the largest number expected, of outputs and of gradients: float32 sums of thousands."""


@dataclass(frozen=True)
class Agreement:
    """Largest differences relative to the largest number expected."""

    out: float
    gradients: float | None

    @property
    def holds(self) -> bool:
        # A number that is not one fails either comparison.
        return self.out <= BOUND and (self.gradients is None or self.gradients <= BOUND)

    def words(self) -> str:
        return f"{self.out:.0e}" if self.gradients is None else f"{max(self.out, self.gradients):.0e}"


def difference(seen: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference relative to the largest number expected; infinite where one of them is no number."""
    if seen.shape != expected.shape:
        return float("inf")
    largest = expected.abs().max().clamp(min=1e-30)
    found = ((seen - expected).abs().max() / largest).item()
    return found if found == found else float("inf")


def compare(
    ours: Callable[[], torch.Tensor],
    theirs: Callable[[], torch.Tensor],
    inputs: Sequence[torch.Tensor],
    grad_out: torch.Tensor | None,
) -> Agreement:
    """Compares outputs and, where there is a gradient of the output, the gradients of all inputs."""
    seen, expected = ours(), theirs()
    out = difference(seen.detach(), expected.detach())
    if grad_out is None:
        return Agreement(out, None)
    pairs = zip(torch.autograd.grad(seen, inputs, grad_out), torch.autograd.grad(expected, inputs, grad_out))
    return Agreement(out, max(difference(a, b) for a, b in pairs))
