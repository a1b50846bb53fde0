"""What operators draw from their seed, for composed forms."""

from __future__ import annotations

import functools

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.dlpack import from_dlpack

from .backend import constant
from .settings import Settings, operator_of


def with_draws(settings: Settings, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors, with those that the operator draws where nobody gave them: the numbers of the kernels."""
    missing = [name for name in settings.constants if name not in tensors]
    if not missing or settings.budget or "q" not in tensors or tensors["q"].ndim != 4:
        return tensors
    q = tensors["q"]
    # Rotations are as many as the length asks for.
    tokens = q.shape[1 if settings.token_first else 2] if "rotations" in missing else 1
    if q.is_meta or isinstance(q, FakeTensor):
        draws = {name: q.new_empty(_shape(settings, name, q.shape[-1], tokens)) for name in missing}
    else:
        draws = {name: _draw(settings.spec, name, q.shape[-1], tokens).to(q.device) for name in missing}
    return {**tensors, **draws}


def _shape(settings: Settings, name: str, width: int, tokens: int) -> tuple[int, ...]:
    if name == "projection":
        return settings.rows, width
    if name == "directions":
        return settings.rounds, width + 2
    values = settings.hash_values or max(2 * -(-tokens // settings.bucket), 2)
    return settings.rounds, width, values // 2


@constant
def _draw(spec: str, name: str, width: int, tokens: int) -> torch.Tensor:
    return _drawn(spec, width, tokens)[name]


@functools.lru_cache(maxsize=64)
def _drawn(spec: str, width: int, tokens: int) -> dict[str, torch.Tensor]:
    operator = operator_of(spec)
    shape = (1, tokens, 1, width) if operator.layout == "token_first" else (1, 1, tokens, width)
    zeros = torch.zeros(shape)
    tensors = {name: zeros for name in ("q", "k", "v") if name in operator.inputs}
    _, saved = operator.forward(**tensors)
    return {name: from_dlpack(draw) for name, draw in saved.draws.items()}
