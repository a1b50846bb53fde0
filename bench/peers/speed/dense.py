"""Mechanisms as a few tensor operations of PyTorch, with all N x N weights."""

from __future__ import annotations

import math

import torch


def gaussian_mixture(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_prior: torch.Tensor) -> torch.Tensor:
    """Soft mixture of Gaussian keys with the variance ``sqrt(D)``.

    ``q [B,H,N,D]``, ``k [B,H,M,S,D]``, ``v [B,H,S,Dv]``, ``log_prior [H,M]`` to ``[B,H,N,Dv]``. As all variances are
    one, ``|q|^2`` cancels in the softmax and is left out, to the advantage of this form.
    """
    variance = math.sqrt(q.shape[-1])
    of_keys = log_prior[None, :, :, None] - k.square().sum(-1) / (2 * variance)
    logits = q.unsqueeze(2) @ k.mT / variance + of_keys.unsqueeze(-2)
    return logits.logsumexp(2).softmax(-1) @ v


def linear_mixture(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_prior: torch.Tensor) -> torch.Tensor:
    """Mixture of linear keys, bidirectional; shapes as above. The prior weighs feature maps, not keys."""
    feature = lambda x: torch.nn.functional.elu(x) + 1  # noqa: E731
    keys = (log_prior.exp()[None, :, :, None, None] * feature(k)).sum(2)
    weights = feature(q) @ keys.mT
    return weights / weights.sum(-1, keepdim=True) @ v
