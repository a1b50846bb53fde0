"""Modules of PyTorch around the operators."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.utils.dlpack import from_dlpack

from ..operator import Operator
from .backend import check_backend
from .composed.gaussian import variances
from .functions import apply
from .settings import settings_of

MIXTURES = ("mgk", "mlk")
"""Mechanisms with several keys a position."""
DRAWN = ("projection", "directions")
"""What is drawn once and kept beside the parameters."""


class MultiheadAttention(nn.Module):
    """Projections around any mechanism: tokens ``[B,N,embed_dim]`` to tokens ``[B,N,embed_dim]``.

    ``q_proj``, ``k_proj``, ``v_proj`` and ``out_proj`` are ``nn.Linear`` of PyTorch, what lies between is ours, and
    tokens are never transposed. Further parameters have the names of the operator's inputs: ``log_prior [H,M]`` and
    ``shift [Hk,M,D]`` of mixtures; ``w_q``, ``w_k`` and the output transform ``w_t`` of Fastformer, which has no
    ``out_proj``; all of ``moa``, which has no projections of PyTorch and no biases.

    Parameters
    ----------
    embed_dim : int
        Channels of a token.
    num_heads : int
        Query heads ``H``, ``D = embed_dim / H`` wide; with ``moa`` the experts that a token uses.
    mechanism : str
        One of :func:`regard.mechanisms`.
    key_value_heads : int, optional
        Key and value heads ``Hk``, a divisor of ``num_heads``; as many by default.
    bias : bool
        Whether projections have biases.
    dropout : float
        Dropout on attention weights while training, from PyTorch's generator.
    backend : str, optional
        ``"kernels"``, ``"composed"`` or, by default, the first for tokens on the CPU and the second elsewhere; an
        attribute that may be changed. Parameters are the same for both.
    **options
        Options of :class:`regard.Operator` but ``layout``: ``causal``, ``window``, ``scale``, ``seed``,
        ``keys__components`` ...

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
        backend: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        check_backend(backend)
        self.backend = backend
        key_value_heads = num_heads if key_value_heads is None else key_value_heads
        if num_heads < 1 or embed_dim < 1 or embed_dim % num_heads:
            raise ValueError(f"embed_dim is {embed_dim} with {num_heads} heads, expected a multiple of the heads")
        if key_value_heads < 1 or num_heads % key_value_heads:
            raise ValueError(f"key_value_heads is {key_value_heads}, expected a divisor of num_heads ({num_heads})")
        if "layout" in options:
            raise ValueError("layout is an option of operators, expected none: modules are token first")
        if mechanism == "moa":
            options.setdefault("moa__active", num_heads)
        self._settings = {"mechanism": mechanism, "layout": "token_first", **options}
        # Refuses a dropout out of range; the one without is for evaluation.
        Operator(**self._settings, dropout=dropout)
        self.operator = Operator(**self._settings)
        # Made here, so that a compiler finds it.
        settings_of(self.operator)
        self.embed_dim, self.num_heads, self.key_value_heads = embed_dim, num_heads, key_value_heads
        self.head_dim, self.dropout = embed_dim // num_heads, dropout
        chosen = self.operator.options
        self._is_mixture = self.operator.mechanism in MIXTURES
        self._is_shifted = self._is_mixture and chosen["keys"]["design"] == "shifted"
        self.components: int = chosen["keys"]["components"] if self._is_mixture else 1
        self._check(chosen)
        self._make_projections(bias)
        self._parameter_names = self._make_parameters(chosen)
        self._make_draws()
        self.reset_parameters()

    def _check(self, chosen: dict[str, Any]) -> None:
        mechanism, mixture = self.operator.mechanism, chosen["mixture"]
        if mechanism == "mgk" and (mixture["inference"] == "soft-em" or mixture["prior"] == "per-position"):
            raise ValueError(
                "a prior per position belongs to one length, expected mixture.prior 'tied' and mixture.inference "
                "'soft' or 'hard'; regard.torch.apply takes any prior"
            )
        if mechanism == "fastformer" and chosen["fastformer"]["sharing"] == "head-wise":
            raise ValueError("fastformer.sharing is 'head-wise', expected 'query-value' or 'none'")

    def _make_projections(self, bias: bool) -> None:
        inputs, width = self.operator.inputs, self.head_dim
        keys = self.key_value_heads * width * (1 if self._is_shifted else self.components)
        sizes = {"q": self.num_heads * width, "k": keys, "v": self.key_value_heads * width}
        for name, size in sizes.items():
            self.add_module(f"{name}_proj", nn.Linear(self.embed_dim, size, bias) if name in inputs else None)
        whole = "q" in inputs and "w_t" not in inputs
        self.out_proj = nn.Linear(self.num_heads * width, self.embed_dim, bias) if whole else None
        self.b_t = nn.Parameter(torch.zeros(self.embed_dim)) if bias and "w_t" in inputs else None

    def _make_parameters(self, chosen: dict[str, Any]) -> list[str]:
        moa, width, channels = chosen["moa"], self.head_dim, self.num_heads * self.head_dim
        expert = moa.get("head_width") or self.embed_dim // moa["active"]
        score = channels if chosen["fastformer"]["scores"] == "released" else width
        shapes = {
            "log_scale": (self.num_heads,),
            "log_prior": (self.num_heads, self.components),
            "shift": (self.key_value_heads, self.components, width),
            "w_q": (self.num_heads, score),
            "w_k": (self.num_heads, score),
            "w_t": (channels, channels),
            "w_gate": (self.embed_dim, moa["experts"]),
            "w_query": (moa["experts"], self.embed_dim, expert),
            "w_key": (self.embed_dim, expert),
            "w_value": (self.embed_dim, expert),
            "w_out": (moa["experts"], expert, self.embed_dim),
        }
        # What the operator has itself: variances, and the prior of a single component.
        own = {"q", "k", "v", "x", "variance", "rotations", *DRAWN, *(() if self._is_mixture else ("log_prior",))}
        names = [name for name in self.operator.inputs if name not in own]
        for name in names:
            if name not in shapes:
                raise ValueError(f"{self.operator.mechanism} takes '{name}', which this module has no parameter for")
            self.register_parameter(name, nn.Parameter(torch.empty(shapes[name])))
        learned = "variance" in self.operator.inputs and chosen["mixture"]["learn_variances"]
        self.log_variance = nn.Parameter(torch.empty(self.components)) if learned else None
        return names

    def _make_draws(self) -> None:
        names = [name for name in DRAWN if name in self.operator.inputs]
        # A budget sets their sizes by the length of a sequence: then they are drawn, from the seed, call by call.
        if not names or "budget" in self._settings:
            return
        token = torch.zeros(1, 1, self.num_heads, self.head_dim)
        tensors = {name: token for name in ("q", "k", "v") if name in self.operator.inputs}
        _, saved = self.operator.forward(**tensors)
        for name in names:
            self.register_buffer(name, from_dlpack(saved.draws[name]))
        self._parameter_names += names

    def reset_parameters(self) -> None:
        """Sets all parameters anew: matrices as Glorot and Bengio do, score vectors small, shifts standard normal, scales of cosines 10."""
        for projection in self.children():
            if isinstance(projection, nn.Linear):
                nn.init.xavier_uniform_(projection.weight)
                if projection.bias is not None:
                    nn.init.zeros_(projection.bias)
        with torch.no_grad():
            for name, parameter in self.named_parameters(recurse=False):
                if name == "log_prior":
                    parameter.fill_(-math.log(self.components))
                elif name == "log_scale":
                    parameter.fill_(math.log(10))
                elif name == "log_variance":
                    parameter.copy_(torch.tensor(self._variances()).log())
                elif name == "b_t":
                    parameter.zero_()
                elif name == "shift":
                    parameter.normal_()
                elif name in ("w_q", "w_k", "w_gate"):
                    parameter.normal_(std=0.02)
                else:
                    bound = math.sqrt(6 / (parameter.shape[-2] + parameter.shape[-1]))
                    parameter.uniform_(-bound, bound)

    def _variances(self) -> tuple[float, ...]:
        """``mixture.variances`` in numbers."""
        return variances(settings_of(self.operator).variances, self.components, self.head_dim)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor | None = None,
        value: torch.Tensor | None = None,
        *,
        valid: torch.Tensor | None = None,
        query_valid: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention of ``query [B,N,embed_dim]`` to ``key [B,S,embed_dim]`` (the queries, if None):
        ``[B,N,embed_dim]``.

        ``value [B,S,embed_dim]`` is ``key`` if None. ``valid [B,S]`` is true for real keys and ``query_valid [B,N]``
        for real queries; mind that ``key_padding_mask`` of ``nn.MultiheadAttention`` is the opposite.
        """
        tensors: dict[str, torch.Tensor | None] = {name: getattr(self, name) for name in self._parameter_names}
        if self.log_variance is not None:
            tensors["variance"] = self.log_variance.exp()
        if "x" in self.operator.inputs:
            if value is not None and value is not key:
                raise ValueError("values of other tokens than keys, expected none: moa projects both from the same")
            tensors.update(x=query, x_kv=key)
        else:
            key = query if key is None else key
            value = key if value is None else value
            keys = (self.components, self.key_value_heads) if self._is_mixture and not self._is_shifted else None
            tensors["q"] = self._project("q", query, (self.num_heads,))
            tensors["k"] = self._project("k", key, keys or (self.key_value_heads,))
            tensors["v"] = self._project("v", value, (self.key_value_heads,))
        out = apply(self._now(), backend=self.backend, valid=valid, query_valid=query_valid, **tensors)
        if self.out_proj is not None:
            joined: torch.Tensor = self.out_proj(out.flatten(-2))
            return joined
        return out if self.b_t is None else out + self.b_t

    def _project(self, name: str, tokens: torch.Tensor, heads: tuple[int, ...]) -> torch.Tensor | None:
        projection = getattr(self, f"{name}_proj")
        return None if projection is None else projection(tokens).unflatten(-1, (*heads, self.head_dim))

    def _now(self) -> Operator:
        """The operator for this pass: with dropout while training."""
        if not self.training or self.dropout == 0.0:
            return self.operator
        key = int(torch.randint(2**62, ()))
        return Operator(**self._settings, dropout=self.dropout, dropout_key=key)

    def extra_repr(self) -> str:
        return f"{self.embed_dim}, {self.num_heads}, {self.operator.mechanism!r}"
