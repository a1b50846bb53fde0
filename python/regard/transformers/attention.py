"""Mechanisms as attention functions of ``transformers``."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from ..operator import Operator
from ..torch import apply
from . import masks
from .masks import REMEDY, Seen

DROP_IN = ("softmax", "gaussian", "linear", "performer", "sparse", "scatterbrain")
"""Mechanisms of queries, keys and values alone."""
SCALED = ("softmax", "performer", "sparse", "scatterbrain")
"""Mechanisms whose scores have a scale."""
WINDOWED = ("softmax", "gaussian")
"""Mechanisms with a window."""

REFUSED = {
    "softcap": "soft-capping of scores",
    "s_aux": "attention sinks",
    "sinks": "attention sinks",
    "position_bias": "a bias on scores",
    "bias": "a bias on scores",
    "head_mask": "a mask of heads",
    "layer_head_mask": "a mask of heads",
    "cu_seq_lens_q": "packed sequences",
    "cu_seq_lens_k": "packed sequences",
    "cu_seqlens": "packed sequences",
    "indices": "chosen keys",
    "block_indices": "chosen blocks of keys",
}
"""Arguments of attention functions that change the result, by what they ask for."""

Result = tuple[torch.Tensor, None]


def register(name: str | None = None, mechanism: str = "softmax", **options: Any) -> list[str]:
    """Makes mechanisms known to ``transformers`` as values of ``attn_implementation``.

    Parameters
    ----------
    name : str, optional
        The name of ``mechanism`` with ``options``. Without one, every mechanism of queries, keys and values alone is
        ``"regard-" + mechanism`` with its default options: ``regard-softmax``, ``regard-performer`` ...
    mechanism : str
        One of ``softmax``, ``gaussian``, ``linear``, ``performer``, ``sparse``, ``scatterbrain``.
    **options
        Options of :class:`regard.Operator` but those that the model has itself: ``causal``, ``scale``, ``layout``,
        ``dropout``. A ``window`` (softmax, gaussian) and the model's sliding window hold both.

    Returns
    -------
    The names.

    Raises
    ------
    ValueError
        An unknown option or mechanism; a name that ``transformers`` itself has.
    """
    if name is None:
        if options or mechanism != "softmax":
            raise ValueError("options or a mechanism without a name, expected register(name, mechanism, **options)")
        return [added for each in DROP_IN for added in register(f"regard-{each}", each)]
    known = AttentionInterface._global_mapping.get(name)
    if name == "eager" or (known is not None and not hasattr(known, "regard_mechanism")):
        example = f"regard-{mechanism}"
        raise ValueError(f"'{name}' is an attention of transformers, expected another name, such as '{example}'")
    check(mechanism, options)
    attend = functools.partial(_attend_all, mechanism=mechanism, options=options)
    publish(name, attend, mechanism)
    return [name]


def publish(name: str, attend: Callable[..., Result], mechanism: str) -> None:
    """Puts an attention function and the masks for it where ``transformers`` looks."""
    attend.regard_mechanism = mechanism  # type: ignore[attr-defined]
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, masks.make)


def check(mechanism: str, options: Mapping[str, Any]) -> Operator:
    """Refuses what cannot stand between the projections of a model."""
    taken = [key for key in ("causal", "scale", "layout", "dropout", "dropout_key", "slopes") if key in options]
    if taken:
        raise ValueError(f"option '{taken[0]}' is the model's own, expected it to be left out")
    operator = Operator(mechanism, **options)
    if operator.mechanism not in DROP_IN:
        raise ValueError(f"mechanism is '{operator.mechanism}', expected one without parameters: {', '.join(DROP_IN)}")
    if "k" not in operator.inputs:
        raise ValueError("support.kind is 'lsh', which takes queries for keys, expected a support of queries and keys")
    return operator


def _attend_all(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    *,
    mechanism: str,
    options: Mapping[str, Any],
    **others: Any,
) -> Result:
    """``query [B,H,N,D]``, ``key [B,Hk,S,D]``, ``value [B,Hk,S,Dv]`` to ``[B,N,H,Dv]``."""
    seen = look(module, query, key, attention_mask, is_causal, others)
    out = attend(query, key[:, :, : seen.keys], value[:, :, : seen.keys], seen, dropout, scaling, mechanism, options)
    return out.transpose(1, 2).contiguous(), None


def look(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool | None,
    others: Mapping[str, Any],
) -> Seen:
    """What a layer asks for beside its tensors, or an error where that is more than a mask."""
    for name, what in REFUSED.items():
        if others.get(name) is not None:
            raise ValueError(f"{type(module).__name__} asks for {what} ({name}), expected none: {REMEDY}")
    if others.get("output_attentions") or _wants_weights():
        raise ValueError(
            "output_attentions is true, expected false, as weights are never all there: load the model with "
            "attn_implementation='eager'"
        )
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    sizes = (query.shape[0], query.shape[2], key.shape[2])
    return masks.see(mask, bool(causal), others.get("sliding_window"), sizes)


def _wants_weights() -> bool:
    """Whether the model collects attention weights from its layers, which gives no argument to the layers."""
    try:
        from transformers.utils.output_capturing import _active_collector
    except ImportError:
        return False
    collected = _active_collector.get()
    return bool(collected) and any("attentions" in name for name in collected)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    seen: Seen,
    dropout: float,
    scaling: float | None,
    mechanism: str,
    options: Mapping[str, Any],
) -> torch.Tensor:
    """One operator on some heads: ``[B,H,N,Dv]``."""
    window = seen.window if "window" not in options else masks._least(seen.window, options["window"])
    if seen.window is not None and mechanism not in WINDOWED:
        raise ValueError(
            f"the layer has a sliding window of {seen.window} tokens to a side and {mechanism} none, expected one of "
            f"{', '.join(WINDOWED)}: {REMEDY}"
        )
    if scaling is not None and mechanism not in SCALED:
        if not math.isclose(scaling, query.shape[-1] ** -0.5, rel_tol=1e-6):
            raise ValueError(
                f"the layer scales scores by {scaling:.6g} and {mechanism} has no scale, expected 1 / sqrt(D), "
                f"{query.shape[-1] ** -0.5:.6g}, or one of {', '.join(SCALED)}: {REMEDY}"
            )
        scaling = None
    # As the keys lie, so that they are read there; queries and what comes out are copied where they lie otherwise.
    by_token = key.transpose(1, 2)
    token_first = by_token.is_contiguous() and not key.is_contiguous()
    layout = "token_first" if token_first else "head_first"
    given = {name: number for name, number in options.items() if name != "window"}
    settings = {"causal": seen.causal, "window": window, "scale": scaling, "layout": layout, **given}
    if dropout > 0.0:
        operator = Operator(mechanism, dropout=dropout, dropout_key=int(torch.randint(2**62, ())), **settings)
    else:
        operator = _operator(mechanism, json.dumps(settings, sort_keys=True))
    tensors = {"q": query, "k": key, "v": value}
    if token_first:
        tensors = {name: tensor.transpose(1, 2) for name, tensor in tensors.items()}
    out = apply(operator, valid=seen.valid, **tensors)
    return out.transpose(1, 2) if token_first else out


@functools.lru_cache(maxsize=256)
def _operator(mechanism: str, settings: str) -> Operator:
    return Operator(mechanism, **json.loads(settings))
