"""Mechanisms as functions and modules of PyTorch, for tensors in the memory of the processor.

Tensors pass through DLPack without a copy; the backward passes are those of the kernels.
"""

from __future__ import annotations

import math
from typing import Any

try:
    import torch
    from torch import nn
except ImportError as error:
    raise ImportError("regard.torch needs PyTorch: pip install torch") from error

from .functions import _tensors
from .operator import Operator

__all__ = ["MultiheadAttention", "apply", "attention"]

PADDING = ("valid", "query_valid")


def _shared(
    padding: dict[str, torch.Tensor], names: tuple[str, ...], tensors: tuple[torch.Tensor, ...]
) -> dict[str, torch.Tensor]:
    """Tensors by name, as DLPack takes them: without their history."""
    return {**padding, **{name: tensor.detach() for name, tensor in zip(names, tensors)}}


class _Kernel(torch.autograd.Function):
    """The float32 kernels."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx: Any, operator: Operator, padding: dict[str, torch.Tensor], names: tuple[str, ...], *tensors: torch.Tensor) -> torch.Tensor:
        out, saved = operator._native.forward(_shared(padding, names, tensors))
        out = torch.from_dlpack(out)
        ctx.names, ctx.saved = names, saved
        # What the kernel goes back through lies in `saved`; this has autograd notice changes in place.
        ctx.save_for_backward(*tensors, out)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        _ = ctx.saved_tensors
        known = ctx.saved.differentiable
        needed = ctx.needs_input_grad[3:]
        wanted = [name for name, needs in zip(ctx.names, needed) if needs and name in known]
        gradients = ctx.saved.backward(grad_out, wanted)
        found = (gradients.get(name) for name in ctx.names)
        return (None, None, None, *(None if gradient is None else torch.from_dlpack(gradient) for gradient in found))


class _Twin(torch.autograd.Function):
    """The float64 twins."""

    @staticmethod
    def forward(ctx: Any, operator: Operator, padding: dict[str, torch.Tensor], names: tuple[str, ...], *tensors: torch.Tensor) -> torch.Tensor:
        out, _, _ = operator._native.reference(_shared(padding, names, tensors))
        ctx.operator, ctx.padding, ctx.names = operator, padding, names
        ctx.save_for_backward(*tensors)
        return torch.from_dlpack(out)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        given = _shared(ctx.padding, ctx.names, ctx.saved_tensors)
        _, _, gradients = ctx.operator._native.reference(given, grad_out)
        found = (gradients.get(name) for name in ctx.names)
        return (None, None, None, *(None if gradient is None else torch.from_dlpack(gradient) for gradient in found))


def apply(operator: Operator, **tensors: torch.Tensor | None) -> torch.Tensor:
    """The output of an operator for tensors by name, differentiable with respect to all that are not drawn.

    ``valid [B,S]`` and ``query_valid [B,N]`` are padding, true for real tokens. Float64 tensors run the float64 twin.
    """
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    padding = {name: given.pop(name) for name in PADDING if name in given}
    wide = any(isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float64 for tensor in given.values())
    function = _Twin if wide else _Kernel
    return function.apply(operator, padding, tuple(given), *given.values())


def attention(
    q: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    mechanism: str = "softmax",
    *,
    valid: torch.Tensor | None = None,
    query_valid: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor:
    """:func:`regard.attention` for autograd: ``q [B,H,N,D]``, ``k [B,Hk,S,D]``, ``v [B,Hk,S,Dv]`` to out ``[B,H,N,Dv]``.

    All options and further tensors of :func:`regard.attention`, ``reference`` aside: float64 tensors run the twin.
    """
    tensors = _tensors(options)
    operator = Operator(mechanism, **options)
    return apply(operator, q=q, k=k, v=v, valid=valid, query_valid=query_valid, **tensors)


MIXTURES = ("mgk", "mlk")
"""Mechanisms with several keys a position."""
TRANSFORMED = ("fastformer",)
"""Mechanisms whose output transform takes the place of an output projection."""
DRAWN = ("projection", "directions")
"""What is drawn once and kept with the parameters."""


class MultiheadAttention(nn.Module):
    """Projections around any mechanism, from tokens ``[B,N,embed_dim]`` to tokens ``[B,N,embed_dim]``.

    Projections are ``nn.Linear`` of PyTorch (``q_proj``, ``k_proj``, ``v_proj``, ``out_proj``), what lies between is ours; tokens
    are never transposed. Other parameters have the names of the operator's inputs: ``log_prior [H,M]``, ``shift [Hk,M,D]``,
    ``w_gate`` and the like. With ``moa``, each token has ``moa.active`` of ``moa.experts`` heads, and there are no biases.

    Parameters
    ----------
    embed_dim : int
        Channels of a token.
    num_heads : int
        Query heads ``H``; heads are ``embed_dim / num_heads`` wide. With ``moa`` the experts that a token uses.
    mechanism : str
        One of :func:`regard.mechanisms`.
    key_value_heads : int, optional
        Key and value heads ``Hk``, a divisor of ``num_heads``.
    bias : bool
        Whether projections have biases.
    dropout : float
        Dropout on attention weights while training, drawn from PyTorch's generator.
    **options
        Options of :class:`regard.Operator`: ``causal``, ``window``, ``scale``, ``seed``, ``keys__components`` ...

    Raises
    ------
    ValueError
        Sizes or options that do not fit together.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        mechanism: str = "softmax",
        *,
        key_value_heads: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__()
        if num_heads < 1 or embed_dim < 1 or embed_dim % num_heads:
            raise ValueError(f"embed_dim is {embed_dim} with {num_heads} heads, expected a multiple of the heads")
        key_value_heads = num_heads if key_value_heads is None else key_value_heads
        if key_value_heads < 1 or num_heads % key_value_heads:
            raise ValueError(f"key_value_heads is {key_value_heads}, expected a divisor of num_heads ({num_heads})")
        if mechanism == "moa":
            options.setdefault("moa__active", num_heads)
        self._settings = {"mechanism": mechanism, "layout": "token_first", **options}
        self.operator = Operator(**self._settings)
        if "layout" in options:
            raise ValueError("layout is an option of operators, expected none: modules are token first")
        self.embed_dim, self.num_heads, self.key_value_heads = embed_dim, num_heads, key_value_heads
        self.head_dim, self.dropout = embed_dim // num_heads, dropout
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout is {dropout}, expected at least 0 and less than 1")
        chosen = self.operator.options
        self.components = chosen["keys"]["components"] if self.operator.mechanism in MIXTURES else 1
        self.shifted = self.components_have_shift(chosen)
        self._make_parameters(chosen, bias)
        self.reset_parameters()

    def components_have_shift(self, chosen: dict[str, Any]) -> bool:
        """Whether the keys of a position are shifted copies of one."""
        return self.operator.mechanism in MIXTURES and chosen["keys"]["design"] == "shifted"

    def _make_parameters(self, chosen: dict[str, Any], bias: bool) -> None:
        inputs, width = self.operator.inputs, self.head_dim
        heads, key_heads, components = self.num_heads, self.key_value_heads, self.components
        channels, experts = heads * width, chosen["moa"]["experts"]
        expert_width = chosen["moa"].get("head_width") or self.embed_dim // chosen["moa"]["active"]
        if self.operator.mechanism == "mgk" and (
            chosen["mixture"]["inference"] == "soft-em" or chosen["mixture"]["prior"] == "per-position"
        ):
            raise ValueError(
                "a prior per position is that of one length, expected mixture.prior = 'tied' and mixture.inference = "
                "'soft' or 'hard'; regard.torch.apply takes any prior"
            )
        if chosen["fastformer"]["sharing"] == "head-wise" and self.operator.mechanism == "fastformer":
            raise ValueError("fastformer.sharing is 'head-wise', expected 'query-value' or 'none'")
        released = chosen["fastformer"]["scores"] == "released"
        copies = 1 if self.shifted else components
        linear = {
            "q": ("q_proj", channels),
            "k": ("k_proj", copies * key_heads * width),
            "v": ("v_proj", key_heads * width),
        }
        shapes = {
            "log_prior": (heads, components),
            "shift": (key_heads, components, width),
            "w_q": (heads, channels if released else width),
            "w_k": (heads, channels if released else width),
            "w_t": (channels, channels),
            "w_gate": (self.embed_dim, experts),
            "w_query": (experts, self.embed_dim, expert_width),
            "w_key": (self.embed_dim, expert_width),
            "w_value": (self.embed_dim, expert_width),
            "w_out": (experts, expert_width, self.embed_dim),
        }
        # One component, or the defaults of the operator, which are not learned.
        defaults = {"variance", *(() if self.operator.mechanism in MIXTURES else ("log_prior",))}
        self._names: list[str] = []
        for name in inputs:
            if name in linear:
                projection, size = linear[name]
                setattr(self, projection, nn.Linear(self.embed_dim, size, bias=bias))
            elif name in shapes and name not in defaults:
                setattr(self, name, nn.Parameter(torch.empty(shapes[name])))
                self._names.append(name)
            elif name not in {"x", "rotations", *defaults, *DRAWN}:
                raise ValueError(f"{self.operator.mechanism} takes '{name}', which this module has no parameter for")
        self.log_variance: nn.Parameter | None = None
        if "variance" in inputs and chosen["mixture"]["learn_variances"]:
            self.log_variance = nn.Parameter(torch.empty(components))
        self.out_proj: nn.Linear | None = None
        self.transform_bias: nn.Parameter | None = None
        if self.operator.mechanism in TRANSFORMED:
            self.transform_bias = nn.Parameter(torch.empty(channels)) if bias else None
        elif "q" in inputs:
            self.out_proj = nn.Linear(channels, self.embed_dim, bias=bias)
        drawn = [name for name in DRAWN if name in inputs]
        if drawn:
            token = torch.zeros(1, 1, heads, width)
            given = {name: token for name in ("q", "k", "v") if name in inputs}
            # A single token is enough to draw: only sizes of heads and options matter.
            settings = {key: value for key, value in self._settings.items() if key != "budget"}
            _, saved = Operator(**settings).forward(**given)
            if "budget" in self._settings:
                drawn = []
            for name in drawn:
                self.register_buffer(name, torch.from_dlpack(saved.draws[name]))
                self._names.append(name)

    def reset_parameters(self) -> None:
        """Draws all parameters anew: projections as Glorot and Bengio do, score vectors small, shifts standard normal."""
        width = self.head_dim
        for module in self.children():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        with torch.no_grad():
            for name, parameter in self.named_parameters(recurse=False):
                if name == "log_prior":
                    parameter.fill_(-math.log(self.components))
                elif name == "log_variance":
                    parameter.fill_(math.log(math.sqrt(width)))
                elif name == "transform_bias":
                    parameter.zero_()
                elif name == "shift":
                    parameter.normal_()
                elif name in ("w_q", "w_k", "w_gate"):
                    parameter.normal_(std=0.02)
                else:
                    bound = math.sqrt(6 / (parameter.shape[-2] + parameter.shape[-1]))
                    parameter.uniform_(-bound, bound)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor | None = None,
        value: torch.Tensor | None = None,
        *,
        valid: torch.Tensor | None = None,
        query_valid: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention of ``query [B,N,embed_dim]`` to ``key [B,S,embed_dim]`` (itself, if None); out ``[B,N,embed_dim]``.

        ``value [B,S,embed_dim]`` is ``key`` if None. ``valid [B,S]`` is true for real keys, ``query_valid [B,N]`` for real
        queries; note that ``key_padding_mask`` of ``nn.MultiheadAttention`` is the opposite.
        """
        inputs = self.operator.inputs
        given: dict[str, torch.Tensor | None] = {name: getattr(self, name) for name in self._names}
        if self.log_variance is not None:
            given["variance"] = self.log_variance.exp()
        if "x" in inputs:
            if value is not None and value is not key:
                raise ValueError("values of their own given, expected none: keys and values are of the same tokens here")
            given.update(x=query, x_kv=key)
        else:
            keys = query if key is None else key
            values = keys if value is None else value
            split = (self.head_dim,)
            given["q"] = self.q_proj(query).unflatten(-1, (self.num_heads, *split))
            if "k" in inputs:
                copies = (self.components,) if self.operator.mechanism in MIXTURES and not self.shifted else ()
                given["k"] = self.k_proj(keys).unflatten(-1, (*copies, self.key_value_heads, *split))
            if "v" in inputs:
                given["v"] = self.v_proj(values).unflatten(-1, (self.key_value_heads, *split))
        out = apply(self._operator(), valid=valid, query_valid=query_valid, **given)
        if self.out_proj is not None:
            return self.out_proj(out.flatten(-2))
        return out if self.transform_bias is None else out + self.transform_bias

    def _operator(self) -> Operator:
        if not (self.training and self.dropout > 0.0):
            return self.operator
        key = int(torch.randint(2**62, ()))
        return Operator(**{**self._settings, "dropout": self.dropout, "dropout_key": key})

    def extra_repr(self) -> str:
        return f"{self.embed_dim}, {self.num_heads}, {self.operator.mechanism!r}"
