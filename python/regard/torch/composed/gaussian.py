"""Gaussian kernels and mixtures of them, as exact softmax of dot products.

``log_prior_r - |q - k_r|^2 / (2 s_r)`` is the product of an expanded query ``[q, 1, |q|^2, log_prior]`` and an expanded
key ``[k_r / s_r, -|k_r|^2 / (2 s_r), -1 / (2 s_r), e_r]``; the sum over components is part of the sum of the softmax.
"""

from __future__ import annotations

import math

import torch

from .blocks import spread
from .mask import Mask
from .softmax import Weighing, attend


def gaussian(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: Mask,
    *,
    variance: torch.Tensor | tuple[float, ...],
    log_prior: torch.Tensor | None = None,
    dot: bool = False,
    hard: bool = False,
    dropout: float = 0.0,
    dropout_key: int = 0,
    valid: torch.Tensor | None = None,
) -> torch.Tensor:
    """``q [B,H,N,D]``, ``k [B,Hk,M,S,D]``, ``v [B,Hk,S,Dv]``, ``variance [M]``, ``log_prior [H,M]`` or ``[H,M,S]``."""
    components = k.shape[2]
    # |q|^2 takes part only where it does not cancel.
    equal = components == 1 or (isinstance(variance, tuple) and len(set(variance)) == 1)
    if not isinstance(variance, torch.Tensor):
        variance = torch.tensor(variance, dtype=q.dtype, device=q.device)
    variance = variance.to(q.dtype)[:, None, None]
    queries, keys = [q], [k / variance]
    ones = torch.ones_like(k[..., :1])
    if not dot:
        queries.append(torch.ones_like(q[..., :1]))
        keys.append(-k.square().sum(-1, keepdim=True) / (2 * variance))
        if not equal:
            queries.append(q.square().sum(-1, keepdim=True))
            keys.append(-ones / (2 * variance))
    if log_prior is not None and not hard:
        log_prior = log_prior.to(q.dtype)
        if log_prior.ndim == 3:
            heads = q.shape[1]
            keys, v = [spread(part, heads) for part in keys], spread(v, heads)
            queries.append(torch.ones_like(q[..., :1]))
            keys.append(log_prior[..., None].expand(q.shape[0], -1, -1, -1, -1))
        else:
            queries.append(log_prior[:, None].expand(q.shape[0], -1, q.shape[2], -1))
            keys.append(torch.eye(components, dtype=k.dtype, device=k.device)[:, None] * ones)
    expanded = torch.cat(keys, -1)
    # The components of a position stand next to each other, as a causal mask wants them.
    expanded = expanded.transpose(2, 3).flatten(2, 3)
    weighing = Weighing(1.0, components, hard, dropout=dropout, dropout_key=dropout_key)
    return attend(torch.cat(queries, -1), expanded, v, mask, weighing, valid)


def variances(chosen: str | tuple[float, ...], components: int, width: int) -> tuple[float, ...]:
    """``mixture.variances`` in numbers."""
    if not isinstance(chosen, str):
        return chosen
    root = math.sqrt(width)
    second = {"paper": root, "paper-1-3": 3 * root, "released-lm": root / 3}[chosen]
    return (root, *[second] * (components - 1))
