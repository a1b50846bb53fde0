"""Transformers of PyTorch as `regard` has them, and a step of their training."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from . import dense


class SelfAttention(nn.Module):
    """Causal softmax attention through the fused function of PyTorch."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (self._split(y) for y in (self.q_proj(x), self.k_proj(x), self.v_proj(x)))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out_proj(out.transpose(1, 2).flatten(2))

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class DenseMixture(nn.Module):
    """Mixture of two Gaussian keys, bidirectional, with all N x N weights."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.v_proj, self.out_proj = (nn.Linear(width, width) for _ in range(3))
        self.k_proj = nn.Linear(width, 2 * width)
        self.log_prior = nn.Parameter(torch.full((heads, 2), -math.log(2)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (self.q_proj(x), self.v_proj(x)))
        k = self.k_proj(x).unflatten(-1, (2, self.heads, -1)).permute(0, 3, 2, 1, 4)
        out = dense.gaussian_mixture(q, k, v, self.log_prior)
        return self.out_proj(out.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and feed-forward, each behind a layer norm and a residual sum."""

    def __init__(self, width: int, hidden: int, attention: nn.Module) -> None:
        super().__init__()
        self.norm_1, self.attention, self.norm_2 = nn.LayerNorm(width), attention, nn.LayerNorm(width)
        self.ff = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.ff(self.norm_2(x))


class Body(nn.Module):
    """Learned token and position vectors, blocks, a last norm."""

    def __init__(self, vocabulary: int, context: int, width: int, blocks: list[Block]) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)
        self.blocks, self.norm = nn.Sequential(*blocks), nn.LayerNorm(width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.norm(self.blocks(self.tokens(ids) + self.positions.weight[: ids.shape[1]]))


class LanguageModel(nn.Module):
    """A causal decoder with a head of its own, without bias."""

    def __init__(self, vocabulary: int, context: int, width: int, layers: int, heads: int, hidden: int) -> None:
        super().__init__()
        blocks = [Block(width, hidden, SelfAttention(width, heads)) for _ in range(layers)]
        self.body = Body(vocabulary, context, width, blocks)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def loss(self, ids: torch.Tensor) -> torch.Tensor:
        """Of the next token, for ``ids [B,N+1]``."""
        logits = self.head(self.body(ids[:, :-1]))
        return functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


class Classifier(nn.Module):
    """Mixture of Gaussian keys, the mean over tokens, a linear head."""

    def __init__(
        self, vocabulary: int, context: int, width: int, layers: int, heads: int, hidden: int, classes: int
    ) -> None:
        super().__init__()
        blocks = [Block(width, hidden, DenseMixture(width, heads)) for _ in range(layers)]
        self.body = Body(vocabulary, context, width, blocks)
        self.head = nn.Linear(width, classes)

    def loss(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """For ``ids [B,N]`` and ``labels [B]``."""
        return functional.cross_entropy(self.head(self.body(ids).mean(1)), labels)


def step(model: nn.Module, loss: Callable[[], torch.Tensor], fused: bool = False) -> Callable[[], None]:
    """One update: loss, gradients, their norm clipped to 1, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=fused or None)

    def update() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return update


def parameters(model: nn.Module) -> int:
    """How many numbers are learned."""
    return sum(parameter.numel() for parameter in model.parameters())
