"""Kernels or composed forms: which a call runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensor

Function = TypeVar("Function", bound=Callable[..., Any])
BACKENDS = ("kernels", "composed")
PLAIN = (torch.Tensor, torch.nn.Parameter)


def constant(function: Function) -> Function:
    """Marks a function of constants whose result is a constant to a compiler that traces its call.

    This is what ``torch.compiler.assume_constant_result`` does, without importing the compiler, which takes a second.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def check_backend(backend: str | None) -> None:
    """Refuses a name that is none of a backend."""
    if backend is not None and backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}, expected 'kernels', 'composed' or None")


def choose(backend: str | None, tensors: dict[str, torch.Tensor]) -> str:
    """The backend of a call: the one that was asked for, else kernels if all tensors are on the CPU."""
    elsewhere = None
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor) and not tensor.is_cpu:
            elsewhere = name
            break
    if backend is None:
        return "composed" if elsewhere else "kernels"
    check_backend(backend)
    if backend == "kernels" and elsewhere:
        device = tensors[elsewhere].device
        raise ValueError(f"tensor {elsewhere!r} is on {device}, expected the CPU, or backend='composed' there")
    return backend


def asked(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """The tensor whose type the output has: queries or tokens."""
    for name in ("q", "x"):
        if name in tensors:
            return tensors[name]
    return next(iter(tensors.values()))


def is_fake(tensors: dict[str, torch.Tensor]) -> bool:
    """Whether tensors have shapes and no memory, so that kernels have to be an operator that PyTorch knows."""
    for tensor in tensors.values():
        if isinstance(tensor, FakeTensor):
            return True
    return False


def refuse_transforms() -> None:
    """Refuses to run kernels inside ``torch.func``: they see numbers, not tensors that stand for many."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise ValueError("kernels inside a transform of torch.func, expected backend='composed' there")


def refuse_shards(tensors: dict[str, torch.Tensor]) -> None:
    """Refuses tensors of which each process has a part: kernels see what lies in this one."""
    for name, tensor in tensors.items():
        if type(tensor) not in PLAIN and hasattr(tensor, "to_local"):
            raise ValueError(
                f"tensor {name!r} is a {type(tensor).__name__}, expected a whole one: parameters inside the pass of a "
                "module that fully_shard was given, or what full_tensor() returns"
            )
