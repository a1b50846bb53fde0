"""Trains a small character model twice, from the same weights and on the same batches: once with the attention of
PyTorch, once with that of regard.

    python examples/loss_curve.py
    python examples/loss_curve.py --mechanism mgk --option keys__components=2 --steps 500

prints both losses side by side. With ``softmax``, the default, both compute the same, and the curves lie on each other.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from regard.torch import MultiheadAttention

TEXT = Path(__file__).resolve().parents[2] / "crates" / "tasks" / "data" / "tinyshakespeare.txt.gz"
"""Plays of Shakespeare, from the checkout."""


@dataclass(frozen=True)
class Sizes:
    """Of a model and of its batches."""

    width: int = 64
    heads: int = 4
    layers: int = 2
    context: int = 128
    batch: int = 16


class TorchAttention(nn.Module):
    """Causal attention of PyTorch, with parameters named as those of :class:`regard.torch.MultiheadAttention`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x [B,N,width]`` to the same shape."""
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (project(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for project in projections)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out_proj(out.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and feed-forward, each behind a layer norm and a residual sum."""

    def __init__(self, width: int, attention: nn.Module) -> None:
        super().__init__()
        self.norm_1, self.attention, self.norm_2 = nn.LayerNorm(width), attention, nn.LayerNorm(width)
        self.ff = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x [B,N,width]`` to the same shape."""
        x = x + self.attention(self.norm_1(x))
        return x + self.ff(self.norm_2(x))


class Model(nn.Module):
    """A causal model of characters."""

    def __init__(self, vocabulary: int, sizes: Sizes, attentions: Sequence[nn.Module]) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, sizes.width), nn.Embedding(sizes.context, sizes.width)
        self.blocks = nn.Sequential(*(Block(sizes.width, attention) for attention in attentions))
        self.norm, self.head = nn.LayerNorm(sizes.width), nn.Linear(sizes.width, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """``ids [B,N]`` to logits ``[B,N,vocabulary]``."""
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def models(vocabulary: int, sizes: Sizes, mechanism: str = "softmax", **options: Any) -> tuple[Model, Model]:
    """A model with the attention of PyTorch and one with that of regard; whatever both have starts the same."""
    torch.manual_seed(0)
    theirs = Model(vocabulary, sizes, [TorchAttention(sizes.width, sizes.heads) for _ in range(sizes.layers)])
    attentions = [
        MultiheadAttention(sizes.width, sizes.heads, mechanism, causal=True, seed=layer, **options)
        for layer in range(sizes.layers)
    ]
    ours = Model(vocabulary, sizes, attentions)
    own = ours.state_dict()
    alike = {name: x for name, x in theirs.state_dict().items() if name in own and own[name].shape == x.shape}
    ours.load_state_dict(alike, strict=False)
    return theirs, ours


def read(path: Path) -> tuple[torch.Tensor, int]:
    """The characters of a file as numbers, and how many different ones there are."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    numbers = {character: number for number, character in enumerate(sorted(set(text)))}
    return torch.tensor([numbers[character] for character in text]), len(numbers)


def train(model: nn.Module, text: torch.Tensor, sizes: Sizes, steps: int) -> tuple[list[float], float]:
    """Losses in nats a character, one a step, and seconds. Batches are the same for every model."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(1)
    losses = []
    start = time.perf_counter()
    for _ in range(steps):
        places = torch.randint(len(text) - sizes.context, (sizes.batch,), generator=generator)
        rows = torch.stack([text[place : place + sizes.context + 1] for place in places.tolist()])
        loss = functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, time.perf_counter() - start


def values(options: Sequence[str]) -> dict[str, Any]:
    """``NAME=VALUE`` as options by name: numbers and the like as JSON has them, else text."""
    named = {}
    for option in options:
        name, _, value = option.partition("=")
        try:
            named[name] = json.loads(value)
        except json.JSONDecodeError:
            named[name] = value
    return named


def main() -> None:
    """Trains both and prints their curves."""
    parser = argparse.ArgumentParser(description="The same model with the attention of PyTorch and of regard.")
    parser.add_argument("--mechanism", default="softmax")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the mechanism"
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--text", type=Path, default=TEXT, help="UTF-8, plain or gzip (default: plays of Shakespeare)")
    given = parser.parse_args()
    options = values(given.option)
    text, vocabulary = read(given.text)
    sizes = Sizes()
    theirs, ours = models(vocabulary, sizes, given.mechanism, **options)
    (expected, their_seconds), (seen, our_seconds) = (
        train(model, text, sizes, given.steps) for model in (theirs, ours)
    )
    print(f"{'step':>5} {'PyTorch':>9} {given.mechanism:>9}")
    for step in [*range(0, given.steps, max(1, given.steps // 10)), given.steps - 1]:
        print(f"{step + 1:5} {expected[step]:9.4f} {seen[step]:9.4f}")
    largest = max(abs(a - b) for a, b in zip(seen, expected))
    print(f"largest difference {largest:.1e} nats; {their_seconds:.1f} s and {our_seconds:.1f} s")


if __name__ == "__main__":
    main()
