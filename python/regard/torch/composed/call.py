"""A call of a composed form: what it takes, in which order of axes, and which form it is."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from .blocks import spread, without_autocast
from .fastformer import fastformer
from .gaussian import gaussian, variances
from .hashes import chunks, clusters, directions_of
from .heads import mixture_of_heads
from .linear import attend_linearly, log_elu, log_exponential, log_mixture
from .mask import Mask
from .softmax import Weighing, attend, directions
from .sparse import Support, attend_to_support

if TYPE_CHECKING:
    from ..settings import Settings

Named = dict[str, torch.Tensor]

PADDING = ("valid", "query_valid")
WITH_DEFAULTS = ("variance", "log_prior", "log_scale", "projection", "directions", "rotations")
"""Inputs that need not be given."""
HALVES = (torch.float16, torch.bfloat16)
WILD = 2.0**40
"""Padding from this magnitude on reads as 0."""


def compose(settings: Settings, tensors: Named) -> torch.Tensor:
    """The output of an operator for tensors by name, ``valid`` and ``query_valid`` among them.

    Raises
    ------
    ValueError
        Shapes that do not fit together; options that have no composed form.
    TypeError
        Tensors of integers, or of 32 and 64 bits together.
    """
    _refuse(settings)
    first = "x" if settings.mechanism == "moa" else "q"
    given = {name: tensor for name, tensor in tensors.items() if name not in PADDING}
    _check_names(settings, given)
    padding = {name: tensors[name].to(given[first].device) for name in PADDING if name in tensors}
    dtype = given[first].dtype
    # What is drawn has no type of its own.
    given |= {name: given[name].to(dtype) for name in settings.constants if name in given}
    # Softmax takes 16 bits as they are: what sums them is in 32 bits anyway.
    keeps = settings.mechanism == "softmax" and len({tensor.dtype for tensor in given.values()}) == 1
    given = _one_type(given, keeps)
    with without_autocast(given[first].device):
        return _form(settings, given, padding).to(dtype)


def _form(settings: Settings, given: Named, padding: Named) -> torch.Tensor:
    if settings.mechanism == "moa":
        return _moa(settings, given, padding)
    q, k, v = _head_first(settings, given)
    _check_shapes(settings, q, k, v, given)
    valid, query_valid = _padding(padding, q.shape[0], q.shape[2], v.shape[2])
    if settings.mechanism == "fastformer":
        if valid is not None:
            q, k, v = (_silent(x, valid, always=False) for x in (q, k, v))
        parameters = [given[name] for name in ("w_q", "w_k", "w_t")]
        return fastformer(q, k, v, *parameters, settings.causal, valid)
    if query_valid is not None:
        q = _silent(q, query_valid, always=False)
    if valid is not None:
        k, v = _silent(k, valid), _silent(v, valid)
    if "k" not in given:
        k = directions_of(k)
    out = _of_heads(settings, given, q, k, v, valid, query_valid)
    return out.transpose(1, 2) if settings.token_first else out


def _of_heads(
    settings: Settings,
    given: Named,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    valid: torch.Tensor | None,
    query_valid: torch.Tensor | None,
) -> torch.Tensor:
    """Mechanisms with heads of queries, keys and values, all head first."""
    mechanism, heads, width = settings.mechanism, q.shape[1], q.shape[3]
    mask = Mask(q.shape[2], v.shape[2], settings.causal, settings.window)
    scale = settings.scale if settings.scale is not None else 1 / math.sqrt(width)
    dropout = {"dropout": settings.dropout, "dropout_key": settings.dropout_key}
    if mechanism == "softmax":
        weighing = Weighing(scale, slopes=settings.slopes, **dropout)  # type: ignore[arg-type]
        return attend(q, k, v, mask, weighing, valid, given.get("bias"))
    if mechanism == "cosine":
        scales = given.get("log_scale")
        factor = 10.0 if scales is None else scales.exp()[:, None, None]
        return attend(directions(q) * factor, directions(k), v, mask, Weighing(1.0, **dropout), valid)  # type: ignore[arg-type]
    if mechanism in ("gaussian", "mgk"):
        variance = given.get("variance")
        chosen = variances(settings.variances, k.shape[2], width) if variance is None else variance
        hard = settings.inference == "hard"
        prior = given.get("log_prior")
        return gaussian(
            q, k, v, mask, variance=chosen, log_prior=prior, dot=settings.score == "dot", hard=hard, valid=valid, **dropout  # type: ignore[arg-type]
        )
    if mechanism == "linear":
        return attend_linearly(log_elu(q), log_elu(k), v, mask, valid)
    if mechanism == "mlk":
        return attend_linearly(log_elu(q), log_mixture(k, given.get("log_prior"), heads), v, mask, valid)
    if settings.support == "full" and mechanism != "performer" and not settings.naive:
        return attend(q, k, v, mask, Weighing(scale), valid)
    if mechanism == "sparse" and settings.support == "empty":
        # Zeros that depend on all inputs, so that they have gradients.
        nothing = sum(x.masked_fill(torch.ones_like(x, dtype=torch.bool), 0.0).sum() for x in (q, k, v))
        return nothing.expand(*q.shape[:3], v.shape[3])
    logs = None
    if mechanism != "sparse":
        logs = (_logs(settings, given, q, scale), _logs(settings, given, k, scale))
    if mechanism == "performer" or settings.support == "empty":
        return attend_linearly(*logs, v, mask, valid)  # type: ignore[misc]
    groups = None
    if settings.support == "smyrf":
        groups = clusters(q, spread(k, heads), given["directions"], settings.cluster, valid, query_valid)
    elif settings.support == "lsh":
        groups = (chunks(q, given["rotations"], settings.bucket, valid),) * 2
    support = Support(
        settings.support,
        settings.radius,
        settings.globals,
        settings.random,
        settings.support_seed,
        settings.block,
        settings.blocks,
        settings.bucket,
        settings.cyclic,
    )
    return attend_to_support(q, k, v, mask, support, scale, logs, settings.naive, valid, groups)


def _logs(settings: Settings, given: Named, x: torch.Tensor, scale: float) -> torch.Tensor:
    if settings.features == "elu":
        return log_elu(x)
    return log_exponential(x, given["projection"], scale, settings.features == "hyperbolic")


def _moa(settings: Settings, given: Named, padding: Named) -> torch.Tensor:
    x = given["x"]
    x_kv = given.get("x_kv", x)
    valid, query_valid = _padding(padding, x.shape[0], x.shape[1], x_kv.shape[1])
    if valid is not None:
        x_kv = _silent(x_kv, valid)
    if query_valid is not None:
        x = _silent(x, query_valid)
    names = ("w_gate", "w_query", "w_key", "w_value", "w_out")
    experts, channels, width = given["w_query"].shape
    expected = ((channels, experts), None, (channels, width), (channels, width), (experts, width, channels))
    for name, shape in zip(names, expected):
        if shape is not None:
            _check_shape(name, given[name], shape)
    if x.shape[2] != channels or x_kv.shape[2] != channels or x_kv.shape[0] != x.shape[0]:
        raise ValueError(f"tensors of tokens have shapes {list(x.shape)} and {list(x_kv.shape)}, expected {channels} channels")
    return mixture_of_heads(
        x,
        x_kv,
        *[given[name] for name in names],
        Mask(x.shape[1], x_kv.shape[1], settings.causal, settings.window),
        active=settings.active,
        divided=settings.gates == "paper",
        dropout=settings.dropout,
        dropout_key=settings.dropout_key,
        valid=valid,
        query_valid=query_valid,
    )


def _refuse(settings: Settings) -> None:
    """Options without a composed form."""
    if settings.budget:
        raise ValueError(
            "a budget has no composed form, expected the sizes of support and features here, or tensors on the CPU and "
            "backend='kernels'"
        )


def _check_names(settings: Settings, given: Named) -> None:
    known = list(settings.inputs)
    known += {"softmax": ["bias"], "moa": ["x_kv"], "fastformer": ["v"], "mgk": ["shift"], "mlk": ["shift"]}.get(
        settings.mechanism, []
    )
    for name in given:
        if name not in known:
            raise ValueError(f"tensor {name!r} is no input of {settings.mechanism}, which takes {', '.join(known)}")
    for name in settings.inputs:
        if name not in given and name not in WITH_DEFAULTS:
            raise ValueError(f"tensor {name!r} is missing: {settings.mechanism} takes {', '.join(settings.inputs)}")
    devices = {tensor.device for tensor in given.values()}
    if len(devices) > 1:
        raise ValueError(f"tensors are on {', '.join(sorted(str(d) for d in devices))}, expected one device")


def _one_type(given: Named, keeps: bool) -> Named:
    """Tensors of one type: float32, where not all are float64 or halves that stay."""
    for name, tensor in given.items():
        if not tensor.dtype.is_floating_point:
            raise TypeError(f"tensor {name!r} holds {str(tensor.dtype)[6:]} numbers, expected float32")
    types = {tensor.dtype for tensor in given.values()}
    if torch.float64 in types:
        if len(types) > 1:
            name = next(name for name, tensor in given.items() if tensor.dtype == torch.float64)
            raise TypeError(f"tensor {name!r} holds float64 numbers, expected float32 as others, or all float64")
        return given
    return given if keeps else {name: tensor.float() for name, tensor in given.items()}


def _head_first(settings: Settings, given: Named) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries ``[B,H,N,D]``, keys ``[B,Hk,(M,)S,D]`` and values ``[B,Hk,S,Dv]``; keys of mixtures have components."""
    q = given["q"]
    # With LSH the queries are the keys.
    k, v = given.get("k", q), given.get("v", q)
    for name, tensor in (("q", q), ("v", v)):
        if tensor.ndim != 4:
            raise ValueError(f"tensor {name!r} has shape {list(tensor.shape)}, expected 4 axes")
    if settings.token_first:
        q, k, v = q.transpose(1, 2), k.transpose(1, -2), v.transpose(1, 2)
    if settings.mechanism == "gaussian" and k.ndim == 4:
        k = k[:, :, None]
    if "shift" in given and k.ndim == 4:
        k = k[:, :, None] + given["shift"][:, :, None]
    return q, k, v


def _check_shapes(settings: Settings, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, given: Named) -> None:
    batch, heads, _, width = q.shape
    mixture = settings.mechanism in ("gaussian", "mgk", "mlk")
    if k.ndim != (5 if mixture else 4):
        raise ValueError(
            f"tensor 'k' has shape {list(given.get('k', q).shape)}, expected {'one key a component' if mixture else '4 axes'}"
        )
    key_heads, keys = k.shape[1], k.shape[-2]
    if k.shape[0] != batch or k.shape[-1] != width or heads % key_heads:
        raise ValueError(
            f"tensor 'k' has shape {list(given.get('k', q).shape)}, expected {batch} batch rows, {width} channels and a number "
            f"of heads that divides {heads}"
        )
    if tuple(v.shape[:3]) != (batch, key_heads, keys):
        seen = list(given["v"].shape) if "v" in given else list(v.shape)
        raise ValueError(f"tensor 'v' has shape {seen}, expected the batch rows, heads and tokens of 'k'")
    components = k.shape[2] if mixture else 1
    if "log_prior" in given:
        per_position = settings.mechanism == "mgk" and given["log_prior"].ndim == 3
        _check_shape("log_prior", given["log_prior"], (heads, components, keys) if per_position else (heads, components))
    if "variance" in given:
        _check_shape("variance", given["variance"], (components,))
    if "log_scale" in given:
        _check_shape("log_scale", given["log_scale"], (heads,))
    if "bias" in given:
        _check_shape("bias", given["bias"], (heads, q.shape[2], keys))
    if settings.slopes is not None and len(settings.slopes) != heads:
        raise ValueError(f"{len(settings.slopes)} slopes for {heads} heads, expected one a head")
    if settings.mechanism == "fastformer":
        if k.shape != q.shape or v.shape != q.shape:
            raise ValueError(f"keys have shape {list(k.shape)}, expected that of queries, {list(q.shape)}")
        channels = heads * width
        score = (heads, channels if settings.released_scores else width)
        for name, shape in (("w_q", score), ("w_k", score), ("w_t", (channels, channels))):
            _check_shape(name, given[name], shape)
    if settings.mechanism in ("sparse", "scatterbrain") and settings.support == "block":
        expected = [-(-q.shape[2] // settings.block), -(-keys // settings.block)]
        seen = [len(settings.blocks), len(settings.blocks[0])]
        if seen != expected:
            raise ValueError(f"tensor 'layout' has shape {seen}, expected {expected}")


def _check_shape(name: str, tensor: torch.Tensor, expected: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != expected:
        raise ValueError(f"tensor {name!r} has shape {list(tensor.shape)}, expected {list(expected)}")


def _padding(
    padding: Named, batch: int, queries: int, keys: int
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Real keys and real queries: those of self-attention are the same tokens."""
    for name, length in (("valid", keys), ("query_valid", queries)):
        if name in padding:
            _check_shape(name, padding[name], (batch, length))
    valid = padding["valid"].bool() if "valid" in padding else None
    if "query_valid" in padding:
        return valid, padding["query_valid"].bool()
    return valid, valid if queries == keys else None


def _silent(x: torch.Tensor, real: torch.Tensor, always: bool = True) -> torch.Tensor:
    """``x [B,...,T,D]`` (tokens of ``moa``: ``[B,T,d]``) with 0 in padding; or only where a number there is beyond all bounds."""
    padded = ~real.reshape(real.shape[0], *[1] * (x.ndim - 3), real.shape[1], 1)
    return x.masked_fill(padded if always else padded & ~(x.abs() < WILD), 0.0)
