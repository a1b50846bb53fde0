"""The random choices of the kernels, bit for bit: functions of a key and of where a number stands."""

from __future__ import annotations

from typing import Any

import torch

# Constants of SplitMix64 (Steele, Lea and Flood 2014) as signed integers, and of a mixer of 32 bits.
_ADD, _FIRST, _SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
_LOW = 0xFFFFFFFF


def factors(key: int, rate: float, rows: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Factors of weights under dropout: 0, or ``1 / (1 - rate)`` where kept.

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


def _mix(x: Any) -> Any:
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & _LOW
    x = ((x ^ (x >> 15)) * 0x735A2D97) & _LOW
    return x ^ (x >> 15)


def blocks(seed: int, query_block: int, key_blocks: int, count: int) -> list[int]:
    """The random key blocks of a query block (algorithm of Bentley and Floyd 1987)."""
    stream = _whiten_number(_substream(_substream(seed, 4), query_block))
    chosen: list[int] = []
    for end in range(max(key_blocks - count, 0), key_blocks):
        choice = (_mix(_mix(end ^ stream & _LOW) ^ stream >> 32) * (end + 1)) >> 32
        chosen.append(end if choice in chosen else choice)
    return chosen


def _substream(key: int, part: int) -> int:
    return _whiten_number(_whiten_number(key) ^ part)


def _whiten_number(x: int) -> int:
    """:func:`_whiten` for one number without a sign."""
    whole = (1 << 64) - 1
    x = (x + _ADD) & whole
    x = ((x ^ (x >> 30)) * _FIRST) & whole
    x = ((x ^ (x >> 27)) * _SECOND) & whole
    return x ^ (x >> 31)
