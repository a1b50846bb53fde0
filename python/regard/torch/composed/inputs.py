"""What a composed form is given: names, types, shapes, the order of axes, padding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ..settings import Settings

Named = dict[str, torch.Tensor]

FORMS = (
    "softmax",
    "cosine",
    "gaussian",
    "mgk",
    "linear",
    "mlk",
    "performer",
    "sparse",
    "scatterbrain",
    "moa",
    "fastformer",
)
"""Mechanisms with a composed form."""
PADDING = ("valid", "query_valid")
WITH_DEFAULTS = ("variance", "log_prior", "log_scale", "projection", "directions", "rotations")
"""Inputs that need not be given."""
WILD = 2.0**40
"""Padding from this magnitude on reads as 0."""


def refuse(settings: Settings) -> None:
    """Mechanisms and options without a composed form."""
    if settings.mechanism not in FORMS:
        raise ValueError(f"{settings.mechanism} has no composed form, expected one of {', '.join(FORMS)}")
    if settings.budget:
        raise ValueError(
            "a budget has no composed form, expected the sizes of support and features here, or tensors on the CPU and "
            "backend='kernels'"
        )


def check_names(settings: Settings, given: Named) -> None:
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
    for name, tensor in given.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"tensor {name!r} is a {type(tensor).__name__}, expected a tensor of PyTorch")
        if 0 in tensor.shape:
            raise ValueError(f"tensor {name!r} has shape {list(tensor.shape)}, expected every size at least 1")
    devices = {tensor.device for tensor in given.values()}
    if len(devices) > 1:
        raise ValueError(f"tensors are on {', '.join(sorted(str(d) for d in devices))}, expected one device")


def one_type(given: Named, keeps: bool) -> Named:
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


def head_first(settings: Settings, given: Named) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
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


def check_shapes(settings: Settings, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, given: Named) -> None:
    batch, heads, _, width = q.shape
    mixture = settings.mechanism in ("gaussian", "mgk", "mlk")
    if k.ndim != (5 if mixture else 4):
        expected = "one key a component" if mixture else "4 axes"
        raise ValueError(f"tensor 'k' has shape {list(given.get('k', q).shape)}, expected {expected}")
    key_heads, keys = k.shape[1], k.shape[-2]
    if k.shape[0] != batch or k.shape[-1] != width or heads % key_heads:
        expected = f"{batch} batch rows, {width} channels and a number of heads that divides {heads}"
        raise ValueError(f"tensor 'k' has shape {list(given.get('k', q).shape)}, expected {expected}")
    if tuple(v.shape[:3]) != (batch, key_heads, keys):
        seen = list(given["v"].shape) if "v" in given else list(v.shape)
        raise ValueError(f"tensor 'v' has shape {seen}, expected the batch rows, heads and tokens of 'k'")
    components = k.shape[2] if mixture else 1
    if "log_prior" in given:
        per_position = settings.mechanism == "mgk" and given["log_prior"].ndim == 3
        check_shape("log_prior", given["log_prior"], (heads, components, keys) if per_position else (heads, components))
    if "variance" in given:
        check_shape("variance", given["variance"], (components,))
    if "log_scale" in given:
        check_shape("log_scale", given["log_scale"], (heads,))
    if "bias" in given:
        check_shape("bias", given["bias"], (heads, q.shape[2], keys))
    if settings.slopes is not None and len(settings.slopes) != heads:
        raise ValueError(f"{len(settings.slopes)} slopes for {heads} heads, expected one a head")
    if settings.mechanism == "fastformer":
        if k.shape != q.shape or v.shape != q.shape:
            raise ValueError(f"keys have shape {list(k.shape)}, expected that of queries, {list(q.shape)}")
        channels = heads * width
        score = (heads, channels if settings.released_scores else width)
        for name, shape in (("w_q", score), ("w_k", score), ("w_t", (channels, channels))):
            check_shape(name, given[name], shape)
    if settings.mechanism in ("sparse", "scatterbrain") and settings.support == "block":
        expected = [-(-q.shape[2] // settings.block), -(-keys // settings.block)]
        seen = [len(settings.blocks), len(settings.blocks[0])]
        if seen != expected:
            raise ValueError(f"tensor 'layout' has shape {seen}, expected {expected}")


def check_shape(name: str, tensor: torch.Tensor, expected: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != expected:
        raise ValueError(f"tensor {name!r} has shape {list(tensor.shape)}, expected {list(expected)}")


def padding_of(
    padding: Named, batch: int, queries: int, keys: int, cross: bool = False
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Real keys and real queries: those of self-attention are the same tokens, those of ``cross``-attention are not."""
    for name, length in (("valid", keys), ("query_valid", queries)):
        if name in padding:
            check_shape(name, padding[name], (batch, length))
    valid = padding["valid"].bool() if "valid" in padding else None
    if "query_valid" in padding:
        return valid, padding["query_valid"].bool()
    return valid, valid if queries == keys and not cross else None


def silent(x: torch.Tensor, real: torch.Tensor, always: bool = True) -> torch.Tensor:
    """``x [B,...,T,D]``, or tokens ``[B,T,d]``, with 0 in padding; not ``always``, only for numbers out of bounds."""
    padded = ~real.reshape(real.shape[0], *[1] * (x.ndim - 3), real.shape[1], 1)
    return x.masked_fill(padded if always else padded & ~(x.abs() < WILD), 0.0)
