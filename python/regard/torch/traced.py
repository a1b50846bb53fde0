"""The kernels as an operator of PyTorch, for ``torch.compile`` and tensors without memory.

Autograd of a compiled graph keeps tensors alone, so the backward pass of this operator runs the forward pass again; the
bits are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from .backend import asked, choose
from .composed import compose
from .composed.inputs import PADDING
from .draws import with_draws
from .settings import Settings, operator_of, settings_of, settings_of_spec


def _named(names: str, tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
    return {name: tensor.detach().contiguous() for name, tensor in zip(names.split(","), tensors)}


@torch.library.custom_op("regard::attend", mutates_args=())
def _attend(spec: str, names: str, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    operator, given = operator_of(spec), _named(names, tensors)
    if tensors[0].dtype == torch.float64:
        return from_dlpack(operator._native.reference(given)[0])
    return from_dlpack(operator._native.forward(given)[0])


@_attend.register_fake
def _(spec: str, names: str, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return tensors[0].new_empty(_out_shape(settings_of(operator_of(spec)), dict(zip(names.split(","), tensors))))


def _out_shape(settings: Settings, given: dict[str, torch.Tensor]) -> tuple[int, ...]:
    if settings.mechanism == "moa":
        return tuple(given["x"].shape)
    q = given["q"]
    if settings.mechanism == "fastformer":
        heads, tokens = (2, 1) if settings.token_first else (1, 2)
        return (q.shape[0], q.shape[tokens], q.shape[heads] * q.shape[3])
    return (*q.shape[:3], given["v"].shape[3])


@torch.library.custom_op("regard::attend_backward", mutates_args=())
def _attend_backward(
    spec: str, names: str, tensors: Sequence[torch.Tensor], grad: torch.Tensor, wanted: str
) -> list[torch.Tensor]:
    operator, given = operator_of(spec), _named(names, tensors)
    grad = grad.detach().contiguous()
    if tensors[0].dtype == torch.float64:
        gradients = operator._native.reference(given, grad)[2]
    else:
        saved = operator._native.forward(given)[1]
        gradients = saved.backward(grad, [name for name in wanted.split(",") if name in saved.differentiable])
    return [
        from_dlpack(gradients[name]) if name in gradients else torch.zeros_like(given[name])
        for name in wanted.split(",")
    ]


@_attend_backward.register_fake
def _(
    spec: str, names: str, tensors: Sequence[torch.Tensor], grad: torch.Tensor, wanted: str
) -> list[torch.Tensor]:
    given = dict(zip(names.split(","), tensors))
    return [given[name].new_empty(given[name].shape) for name in wanted.split(",")]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.spec, ctx.names, tensors = inputs
    ctx.needed = [tensor.requires_grad for tensor in tensors]
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[None, None, list[torch.Tensor | None]]:
    names = ctx.names.split(",")
    wanted = [name for name, needed in zip(names, ctx.needed) if needed]
    gradients = torch.ops.regard.attend_backward(ctx.spec, ctx.names, ctx.saved_tensors, grad, ",".join(wanted))
    by_name = dict(zip(wanted, gradients))
    return None, None, [by_name.get(name) for name in names]


_attend.register_autograd(_backward, setup_context=_keep)


def attend_traced(
    spec: str, given: dict[str, torch.Tensor], padding: dict[str, torch.Tensor]
) -> torch.Tensor:
    """The output of the kernels, for a compiler to trace: float32 inside, of the type of the queries outside."""
    dtypes = {tensor.dtype for tensor in given.values()}
    outside = asked(given).dtype
    if dtypes != {torch.float64}:
        given = {name: tensor.float() for name, tensor in given.items()}
    names = ",".join([*given, *padding])
    out: torch.Tensor = torch.ops.regard.attend(spec, names, [*given.values(), *padding.values()])
    return out if torch.is_autocast_enabled("cpu") else out.to(outside)


def apply_traced(spec: str, backend: str | None, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """What ``apply`` does, in steps that a compiler can trace: the operator itself is a text to it."""
    if choose(backend, given) == "composed":
        settings = settings_of_spec(spec)
        return compose(settings, with_draws(settings, given))
    padding = {name: given.pop(name) for name in PADDING if name in given}
    return attend_traced(spec, given, padding)
