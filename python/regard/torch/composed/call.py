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
from .inputs import (
    PADDING,
    Named,
    check_names,
    check_shape,
    check_shapes,
    head_first,
    one_type,
    padding_of,
    refuse,
    silent,
)
from .linear import attend_linearly, log_elu, log_exponential, log_mixture
from .mask import Mask
from .softmax import Weighing, attend, directions
from .sparse import attend_to_support
from .support import Support

if TYPE_CHECKING:
    from ..settings import Settings


def compose(settings: Settings, tensors: Named) -> torch.Tensor:
    """The output of an operator for tensors by name, ``valid`` and ``query_valid`` among them.

    Raises
    ------
    ValueError
        Shapes that do not fit together; options that have no composed form.
    TypeError
        Tensors of integers, or of 32 and 64 bits together.
    """
    refuse(settings)
    first = "x" if settings.mechanism == "moa" else "q"
    given = {name: tensor for name, tensor in tensors.items() if name not in PADDING}
    check_names(settings, given)
    padding = {name: tensors[name].to(given[first].device) for name in PADDING if name in tensors}
    dtype = given[first].dtype
    # What is drawn has no type of its own.
    given |= {name: given[name].to(dtype) for name in settings.constants if name in given}
    # Softmax takes 16 bits as they are: what sums them is in 32 bits anyway.
    keeps = settings.mechanism == "softmax" and len({tensor.dtype for tensor in given.values()}) == 1
    given = one_type(given, keeps)
    with without_autocast(given[first].device):
        return _form(settings, given, padding).to(dtype)


def _form(settings: Settings, given: Named, padding: Named) -> torch.Tensor:
    if settings.mechanism == "moa":
        return _moa(settings, given, padding)
    q, k, v = head_first(settings, given)
    check_shapes(settings, q, k, v, given)
    valid, query_valid = padding_of(padding, q.shape[0], q.shape[2], v.shape[2])
    if settings.mechanism == "fastformer":
        if valid is not None:
            q, k, v = (silent(x, valid, always=False) for x in (q, k, v))
        parameters = [given[name] for name in ("w_q", "w_k", "w_t")]
        return fastformer(q, k, v, *parameters, settings.causal, valid)
    if query_valid is not None:
        q = silent(q, query_valid, always=False)
    if valid is not None:
        k, v = silent(k, valid), silent(v, valid)
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
    rate, key = settings.dropout, settings.dropout_key
    if mechanism == "softmax":
        weighing = Weighing(scale, slopes=settings.slopes, dropout=rate, dropout_key=key)
        return attend(q, k, v, mask, weighing, valid, given.get("bias"))
    if mechanism == "cosine":
        scales = given.get("log_scale")
        factor = 10.0 if scales is None else scales.exp()[:, None, None]
        weighing = Weighing(1.0, dropout=rate, dropout_key=key)
        return attend(directions(q) * factor, directions(k), v, mask, weighing, valid)
    if mechanism in ("gaussian", "mgk"):
        variance = given.get("variance")
        chosen = variances(settings.variances, k.shape[2], width) if variance is None else variance
        hard = settings.inference == "hard"
        prior = given.get("log_prior")
        return gaussian(
            q,
            k,
            v,
            mask,
            variance=chosen,
            log_prior=prior,
            dot=settings.score == "dot",
            hard=hard,
            dropout=rate,
            dropout_key=key,
            valid=valid,
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
    valid, query_valid = padding_of(padding, x.shape[0], x.shape[1], x_kv.shape[1], cross="x_kv" in given)
    if valid is not None:
        x_kv = silent(x_kv, valid)
    if query_valid is not None:
        x = silent(x, query_valid)
    names = ("w_gate", "w_query", "w_key", "w_value", "w_out")
    experts, channels, width = given["w_query"].shape
    expected = ((channels, experts), None, (channels, width), (channels, width), (experts, width, channels))
    for name, shape in zip(names, expected):
        if shape is not None:
            check_shape(name, given[name], shape)
    if x.shape[2] != channels or x_kv.shape[2] != channels or x_kv.shape[0] != x.shape[0]:
        seen = f"{list(x.shape)} and {list(x_kv.shape)}"
        raise ValueError(f"tensors of tokens have shapes {seen}, expected {channels} channels")
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
