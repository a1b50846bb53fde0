"""Sizes that all rows share, and tensors of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import regard
import torch

HEADS = 8
WIDTH = 64
"""Channels of a head."""


def use_threads(count: int) -> None:
    """The same number of threads for PyTorch and for Regard."""
    torch.set_num_threads(count)
    regard.set_threads(count)


def drawer(seed: int = 0) -> Callable[..., torch.Tensor]:
    """Draws leaves of unit variance, the same ones for the same seed."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).requires_grad_()

    return draw


def head_first(length: int) -> list[torch.Tensor]:
    """``q k v [1,H,N,D]``."""
    draw = drawer()
    return [draw(1, HEADS, length, WIDTH) for _ in range(3)]


def token_first(length: int) -> list[torch.Tensor]:
    """``q k v [1,N,H,D]``."""
    draw = drawer()
    return [draw(1, length, HEADS, WIDTH) for _ in range(3)]


def mixture(length: int, components: int = 2) -> list[torch.Tensor]:
    """``q [1,H,N,D]``, ``k [1,H,M,N,D]``, ``v [1,H,N,D]``, ``log_prior [H,M]``."""
    draw = drawer()
    q, v = draw(1, HEADS, length, WIDTH), draw(1, HEADS, length, WIDTH)
    k = draw(1, HEADS, components, length, WIDTH)
    log_prior = draw(HEADS, components).detach() * 0.5 - math.log(components)
    return [q, k, v, log_prior.requires_grad_()]
