"""Mixture of attention heads: each token goes through the query heads that a router chooses (arXiv 2210.05144)."""

from __future__ import annotations

import math

import torch

from .mask import Mask
from .softmax import Weighing, attend


def mixture_of_heads(
    x: torch.Tensor,
    x_kv: torch.Tensor,
    w_gate: torch.Tensor,
    w_query: torch.Tensor,
    w_key: torch.Tensor,
    w_value: torch.Tensor,
    w_out: torch.Tensor,
    mask: Mask,
    *,
    active: int,
    divided: bool,
    dropout: float,
    dropout_key: int,
    valid: torch.Tensor | None,
    query_valid: torch.Tensor | None,
) -> torch.Tensor:
    """Tokens ``x [B,N,d]`` and ``x_kv [B,S,d]`` to ``[B,N,d]``.

    ``w_gate [d,E]``, ``w_query [E,d,D]``, ``w_key w_value [d,D]``, ``w_out [E,D,d]``. All experts
    are applied to all tokens and those chosen are picked: no token is ever dropped.
    """
    experts, _, width = w_query.shape
    probabilities = (x @ w_gate).softmax(-1)
    # Ties go to the lowest index, as in the kernels.
    chosen = probabilities.detach().sort(dim=-1, descending=True, stable=True).indices[..., :active]
    weights = probabilities.gather(-1, chosen)
    if divided:
        weights = weights / weights.detach().sum(-1, keepdim=True)
    index = chosen[..., None].expand(-1, -1, -1, width)
    queries = torch.einsum("bnd,edh->bneh", x, w_query).gather(2, index)
    keys, values = ((x_kv @ w)[:, None] for w in (w_key, w_value))
    weighing = Weighing(1 / math.sqrt(width), dropout=dropout, dropout_key=dropout_key)
    attended = attend(queries.transpose(1, 2), keys, values, mask, weighing, valid).transpose(1, 2)
    by_expert = attended.new_zeros(*x.shape[:2], experts, width).scatter(2, index, attended * weights[..., None])
    out = torch.einsum("bneh,ehd->bnd", by_expert, w_out)
    return out if query_valid is None else out.masked_fill(~query_valid[..., None], 0.0)
