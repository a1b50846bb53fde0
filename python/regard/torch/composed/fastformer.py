"""Fastformer: averages of queries and keys with additive weights (arXiv 2108.09084, section 3)."""

from __future__ import annotations

import math

import torch

from .linear import LOWEST, divide, with_ones

CHUNK = 64
"""Tokens that a running average weighs pair by pair."""


def fastformer(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    w_q: torch.Tensor,
    w_k: torch.Tensor,
    w_t: torch.Tensor,
    causal: bool,
    valid: torch.Tensor | None,
) -> torch.Tensor:
    """``q k v [B,H,N,D]``, ``w_q w_k [H,D]`` or ``[H,H*D]``, ``w_t [H*D,H*D]``, ``valid [B,N]`` to ``[B,N,H*D]``."""
    average = _running if causal else _whole
    global_query = average(q, _scores(q, w_q), valid)
    gated = global_query * k
    global_key = average(gated, _scores(gated, w_k), valid)
    out = (global_key * v).transpose(1, 2).flatten(2) @ w_t + q.transpose(1, 2).flatten(2)
    if valid is None:
        return out
    sees = valid.cumsum(1) > 0 if causal else valid.any(1, keepdim=True)
    return out.masked_fill(~sees[..., None], 0.0)


def _scores(x: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """Scores ``[B,H,N]`` of tokens ``x [B,H,N,D]``, from the channels of the head or of all heads."""
    width = x.shape[-1]
    if vectors.shape[-1] == width:
        scores = (x * vectors[:, None]).sum(-1)
    else:
        scores = (x.transpose(1, 2).flatten(2) @ vectors.T).transpose(1, 2)
    return scores / math.sqrt(width)


def _whole(x: torch.Tensor, scores: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
    """One average of all tokens, ``[B,H,1,D]``."""
    if valid is not None:
        scores = scores.masked_fill(~valid[:, None], torch.finfo(scores.dtype).min)
    return scores.softmax(-1)[:, :, None] @ x


def _running(x: torch.Tensor, scores: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
    """The average of the tokens up to each, ``[B,H,N,D]``: chunks with a state and its log scale."""
    if valid is not None:
        scores = scores.masked_fill(~valid[:, None], -math.inf)
    values = with_ones(x)
    state = values.new_zeros((*values.shape[:2], 1, values.shape[-1]))
    scale = torch.full_like(scores[:, :, :1], LOWEST)
    later = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=x.device).triu(1)
    outs = []
    for first in range(0, x.shape[2], CHUNK):
        s, chunk = scores[:, :, first : first + CHUNK], values[:, :, first : first + CHUNK]
        size = s.shape[-1]
        # The largest score up to each token.
        top = torch.maximum(s.detach().cummax(-1).values, scale)
        weights = (s[:, :, None] - top[..., None]).masked_fill(later[:size, :size], -math.inf).exp()
        outs.append(divide(weights @ chunk + (scale - top).exp()[..., None] * state))
        last = top[:, :, -1:]
        state = state * (scale - last).exp()[..., None] + (s - last).exp()[:, :, None] @ chunk
        scale = last
    return torch.cat(outs, 2)
