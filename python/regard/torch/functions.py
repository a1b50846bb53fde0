"""Operators as functions that autograd differentiates."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]

from ..functions import take_tensors
from ..operator import Operator
from .backend import asked, choose, is_fake, refuse_shards, refuse_transforms
from .composed import compose
from .composed.inputs import PADDING
from .draws import with_draws
from .settings import settings_of, spec_of
from .traced import apply_traced, attend_traced

Named = dict[str, torch.Tensor]


class _Lent:
    """The numbers of a tensor on the CPU, where they lie and without its history.

    Not as an array of NumPy, which would mark the memory as one that nobody may release, as FSDP does between the
    passes. Tensors have this protocol themselves, with checks that take twice as long as this.
    """

    __slots__ = ("_tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor.detach().resolve_neg()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None) -> Any:
        return to_dlpack(self._tensor)


def _shared(padding: Named, names: tuple[str, ...], tensors: tuple[torch.Tensor, ...]) -> dict[str, Any]:
    """Tensors by name, as kernels take them."""
    return {**padding, **{name: _Lent(tensor) for name, tensor in zip(names, tensors)}}


HALVES = (torch.float16, torch.bfloat16)


def _rounded(array: Any, dtype: torch.dtype) -> torch.Tensor:
    """An array as a tensor, of 16 bits where what it belongs to is."""
    tensor = from_dlpack(array)
    return tensor.to(dtype) if dtype in HALVES else tensor


def _in_order(names: tuple[str, ...], dtypes: list[torch.dtype], gradients: dict[str, Any]) -> tuple[Any, ...]:
    """What a backward pass returns: nothing for operator, padding and names, then a gradient for each tensor."""
    pairs = zip(names, dtypes)
    return (None, None, None, *(_rounded(gradients[name], dtype) if name in gradients else None for name, dtype in pairs))


def _saves_elsewhere() -> bool:
    """Whether saved tensors are dropped or moved, as under activation checkpointing."""
    hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return hooks is not None and hooks(True) is not None


class _Kernel(torch.autograd.Function):
    """The float32 kernels."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(
        ctx: Any, operator: Operator, padding: Named, names: tuple[str, ...], *tensors: torch.Tensor
    ) -> torch.Tensor:
        array, saved = operator._native.forward(_shared(padding, names, tensors))
        ctx.names, ctx.saved, ctx.dtypes = names, saved, [tensor.dtype for tensor in tensors]
        if _saves_elsewhere():
            # `saved` would hold all tensors; without it the backward pass goes forward once more.
            ctx.saved, ctx.operator = None, operator
            ctx.padding = {name: tensor.clone() for name, tensor in padding.items()}
        out = _rounded(array, asked(dict(zip(names, tensors))).dtype)
        # What the kernel goes back through lies in `saved`; this lets autograd notice changes in place.
        ctx.save_for_backward(*tensors, out)
        ctx.places = [tensor.data_ptr() for tensor in tensors]
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        saved, moved = ctx.saved, {}
        if saved is None:
            _, saved = ctx.operator._native.forward(_shared(ctx.padding, ctx.names, ctx.saved_tensors[:-1]))
        else:
            pairs = zip(ctx.names, ctx.saved_tensors, ctx.places)
            # Parameters that FSDP shares among processes come back in other memory; what `saved` refers to was released.
            moved = {name: _Lent(tensor) for name, tensor, place in pairs if tensor.data_ptr() != place}
        needed = zip(ctx.names, ctx.needs_input_grad[3:])
        wanted = [name for name, needs in needed if needs and name in saved.differentiable]
        return _in_order(ctx.names, ctx.dtypes, saved.backward(_Lent(grad_out), wanted, moved))


class _Twin(torch.autograd.Function):
    """The float64 twins."""

    @staticmethod
    def forward(
        ctx: Any, operator: Operator, padding: Named, names: tuple[str, ...], *tensors: torch.Tensor
    ) -> torch.Tensor:
        out, _, _ = operator._native.reference(_shared(padding, names, tensors))
        # The backward pass computes the whole anew: padding must still be what it was.
        ctx.padding = {name: tensor.clone() for name, tensor in padding.items()}
        ctx.operator, ctx.names = operator, names
        ctx.save_for_backward(*tensors)
        return from_dlpack(out)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        tensors = _shared(ctx.padding, ctx.names, ctx.saved_tensors)
        _, _, gradients = ctx.operator._native.reference(tensors, _Lent(grad_out))
        return _in_order(ctx.names, [tensor.dtype for tensor in ctx.saved_tensors], gradients)


def apply(operator: Operator, *, backend: str | None = None, **tensors: torch.Tensor | None) -> torch.Tensor:
    """The output of an operator for tensors by name, differentiable in all that are not drawn.

    ``valid [B,S]`` and ``query_valid [B,N]`` are padding, true for real tokens. Tensors are float32, or float16 and
    bfloat16, which become float32 inside and are rounded again on the way out; where all of them are float64, the slow
    float64 twin runs, as ``torch.autograd.gradcheck`` asks for.

    ``backend`` is ``"kernels"``, for tensors on the CPU, ``"composed"``, operations of PyTorch for tensors on any
    device, or None: kernels on the CPU and composed forms elsewhere. See :mod:`regard.torch.composed`.

    Raises
    ------
    ValueError
        Shapes that do not fit together, a tensor that is missing, unknown, or on another device; an option without a
        composed form, where one is asked for.
    TypeError
        Numbers other than float32.
    """
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    if torch.compiler.is_compiling():
        kept = operator.__dict__.get("_settings")
        spec = spec_of(operator._name, operator._arguments, operator._options) if kept is None else kept.spec
        return apply_traced(spec, backend, given)
    if choose(backend, given) == "composed":
        settings = settings_of(operator)
        return compose(settings, with_draws(settings, given))
    padding = {name: given.pop(name) for name in PADDING if name in given}
    if is_fake(given):
        return attend_traced(settings_of(operator).spec, given, padding)
    refuse_transforms()
    refuse_shards(given)
    wide = bool(given) and all(getattr(tensor, "dtype", None) == torch.float64 for tensor in given.values())
    function = _Twin if wide else _Kernel
    out: torch.Tensor = function.apply(operator, padding, tuple(given), *given.values())
    return out


def attention(
    q: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    mechanism: str = "softmax",
    *,
    valid: torch.Tensor | None = None,
    query_valid: torch.Tensor | None = None,
    backend: str | None = None,
    **options: Any,
) -> torch.Tensor:
    """:func:`regard.attention` for autograd.

    ``q [B,H,N,D]``, ``k [B,Hk,S,D]``, ``v [B,Hk,S,Dv]`` to out ``[B,H,N,Dv]``.

    Options and further tensors are those of :func:`regard.attention`, ``reference`` aside: float64 tensors run the
    twin. ``backend`` is that of :func:`apply`.
    """
    if torch.compiler.is_compiling():
        names = [name for name, value in options.items() if isinstance(value, torch.Tensor)]
        tensors = {name: options.pop(name) for name in names}
        tensors |= {"q": q, "k": k, "v": v, "valid": valid, "query_valid": query_valid}
        given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        return apply_traced(spec_of(mechanism, {}, options), backend, given)
    tensors = take_tensors(options)
    operator = Operator(mechanism, **options)
    return apply(operator, backend=backend, q=q, k=k, v=v, valid=valid, query_valid=query_valid, **tensors)


def router_losses(
    x: torch.Tensor,
    w_gate: torch.Tensor,
    active: int,
    valid: torch.Tensor | None = None,
    *,
    group: torch.distributed.ProcessGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Balance loss and z-loss of the router of ``moa`` (arXiv 2210.05144, section 3.3), for the loss of a model.

    ``x [B,N,d]``, ``w_gate [d,E]``, ``valid [B,N]`` to two numbers. The balance loss is ``E sum_i f_i P_i`` with ``f``
    the share of experts among all choices and ``P`` the share of probability: 1 where balanced, ``E / active`` where
    collapsed. The z-loss is the mean of the squared log-sum-exp of the logits. Usual weights are 0.01 and 0.001.

    Where processes have parts of a batch, ``f`` is that of each part; with ``group``, their process group, it is that
    of the batch, and the mean of either loss over processes with as many tokens each is the loss of the batch.
    """
    logits = x @ w_gate
    logits = logits.flatten(0, -2) if valid is None else logits[valid.bool()]
    experts = logits.shape[-1]
    probabilities = logits.softmax(-1)
    # Ties go to the lowest index, as in the kernels.
    chosen = probabilities.sort(dim=-1, descending=True, stable=True).indices[:, :active]
    counts = torch.bincount(chosen.flatten(), minlength=experts)
    if group is not None:
        torch.distributed.all_reduce(counts, group=group)
    shares = counts.to(logits.dtype) / counts.sum()
    balance = experts * (shares * probabilities.mean(0)).sum()
    return balance, logits.logsumexp(-1).square().mean()
