"""Dropout on weights, the same choice as the kernels': a function of a key and of where a weight stands."""

from __future__ import annotations

import torch

# Constants of SplitMix64 (Steele, Lea and Flood 2014) as signed integers, and of a mixer of 32 bits.
_ADD, _FIRST, _SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
_LOW = 0xFFFFFFFF


def factors(key: int, rate: float, rows: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Factors of weights: 0, or ``1 / (1 - rate)`` where kept.

    ``rows [B,H,n]`` number the queries, ``(b H + h) N + i``; ``keys [k]``: factors ``[B,H,n,k]``.
    """
    start = torch.full_like(rows, key - (1 << 64) if key >= 1 << 63 else key)
    # Whitened twice: once for the key of the row, once for that of its bits.
    stream = _whiten(_whiten(_whiten(start) ^ rows))[..., None]
    bits = _mix(_mix((keys ^ stream) & _LOW) ^ ((stream >> 32) & _LOW))
    # The kernels keep the rate in 32 bits.
    rate = torch.tensor(rate, dtype=torch.float32).item() if not torch.compiler.is_compiling() else rate
    return (bits >= int(rate * 4294967296.0)).to(torch.float32) / (1.0 - rate)


def _shift(x: torch.Tensor, by: int) -> torch.Tensor:
    """A shift to the right that brings in zeros."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _whiten(x: torch.Tensor) -> torch.Tensor:
    x = x + _ADD
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x ^ _shift(x, 31)


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & _LOW
    x = ((x ^ (x >> 15)) * 0x735A2D97) & _LOW
    return x ^ (x >> 15)
