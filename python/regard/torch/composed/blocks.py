"""Functions of a block of queries that keep nothing for the backward pass but their inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

_block_bytes = 64 << 20


def set_block_bytes(count: int) -> None:
    """Sets how many bytes the scores of one block of queries may take, 64 MiB at first.

    A backward pass holds about four such tensors at a time. A block has at least one query, whatever it takes.
    """
    global _block_bytes
    if count < 1:
        raise ValueError(f"block_bytes is {count}, expected at least 1")
    _block_bytes = count


def get_block_bytes() -> int:
    """Bytes that the scores of one block of queries may take."""
    return _block_bytes


def rows_in_block(queries: int, bytes_of_row: int) -> int:
    """How many queries fit into a block, evenly over the blocks."""
    most = max(1, min(queries, _block_bytes // max(1, bytes_of_row)))
    blocks = max(1, -(-queries // most))
    return max(1, -(-queries // blocks))


def without_autocast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Inside, sums keep the type of their inputs."""
    return contextlib.nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


class _Recomputed(torch.autograd.Function):
    """Applies a function of tensors; the backward pass applies it again instead of keeping what it made."""

    generate_vmap_rule = True

    @staticmethod
    def forward(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
        return function(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.function = inputs[0]
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        tensors = ctx.saved_tensors
        wanted = [n for n, needs in enumerate(ctx.needs_input_grad[1:]) if needs]

        def of_wanted(*chosen: torch.Tensor) -> torch.Tensor:
            every = list(tensors)
            for n, tensor in zip(wanted, chosen):
                every[n] = tensor
            out: torch.Tensor = ctx.function(*every)
            return out

        with without_autocast(grad.device):
            _, pull = torch.func.vjp(of_wanted, *[tensors[n] for n in wanted])
            gradients = dict(zip(wanted, pull(grad)))
        return (None, *[gradients.get(n) for n in range(len(tensors))])


def recomputed(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
    """``function(*tensors)``, computed again in the backward pass. All tensors that it uses must be among them."""
    out: torch.Tensor = _Recomputed.apply(function, *tensors)
    return out


def products(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """``q [B,H,N,D]`` times ``k [B,Hk,S,D]``: ``[B,H,N,S]``, head ``h`` reading key head ``h // (H / Hk)``."""
    batch, heads, queries, width = q.shape
    folded = q.reshape(batch, k.shape[1], heads // k.shape[1] * queries, width)
    return (folded @ k.transpose(-1, -2)).reshape(batch, heads, queries, k.shape[2])


def averages(weights: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """``weights [B,H,N,S]`` times ``v [B,Hk,S,Dv]``: ``[B,H,N,Dv]``."""
    batch, heads, queries, keys = weights.shape
    folded = weights.reshape(batch, v.shape[1], heads // v.shape[1] * queries, keys)
    return (folded @ v).reshape(batch, heads, queries, v.shape[-1])


def spread(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """A tensor ``[B,Hk,...]`` for each of the ``heads`` query heads."""
    groups = heads // tensor.shape[1]
    return tensor if groups == 1 else tensor.repeat_interleave(groups, 1)
