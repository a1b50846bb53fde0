"""Kernels or composed forms: which a call runs."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor

BACKENDS = ("kernels", "composed")


def choose(backend: str | None, tensors: dict[str, torch.Tensor]) -> str:
    """The backend of a call: the one that was asked for, else kernels if all tensors are on the CPU."""
    if backend is not None and backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}, expected 'kernels', 'composed' or None")
    elsewhere = [name for name, tensor in tensors.items() if isinstance(tensor, torch.Tensor) and not tensor.is_cpu]
    if backend is None:
        return "composed" if elsewhere else "kernels"
    if backend == "kernels" and elsewhere:
        device = tensors[elsewhere[0]].device
        raise ValueError(f"tensor {elsewhere[0]!r} is on {device}, expected the CPU, or backend='composed' there")
    return backend


def is_traced(tensors: dict[str, torch.Tensor]) -> bool:
    """Whether a compiler looks on, so that kernels have to be an operator that it knows."""
    return torch.compiler.is_compiling() or any(isinstance(tensor, FakeTensor) for tensor in tensors.values())
