"""What operators draw from their seed, for composed forms."""

from __future__ import annotations

import functools

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.dlpack import from_dlpack

from .settings import Settings, operator_of


def with_draws(settings: Settings, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors, with a projection where the operator needs one that nobody gave: the numbers of the kernels."""
    if "projection" not in settings.constants or "projection" in tensors or settings.budget or "q" not in tensors:
        return tensors
    q = tensors["q"]
    if q.is_meta or isinstance(q, FakeTensor):
        return {**tensors, "projection": q.new_empty((settings.rows, q.shape[-1]))}
    return {**tensors, "projection": _projection(settings.spec, q.shape[-1]).to(q.device)}


# A constant to a compiler, as are its arguments.
@torch.compiler.assume_constant_result
def _projection(spec: str, width: int) -> torch.Tensor:
    return _drawn(spec, width)


@functools.lru_cache(maxsize=64)
def _drawn(spec: str, width: int) -> torch.Tensor:
    operator = operator_of(spec)
    token = torch.zeros(1, 1, 1, width)
    tensors = {name: token for name in ("q", "k", "v") if name in operator.inputs}
    _, saved = operator.forward(**tensors)
    return from_dlpack(saved.draws["projection"])
