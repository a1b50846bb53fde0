"""The masks that models of ``transformers`` ask for, in the terms of the kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from transformers import masking_utils

REMEDY = "load the model with attn_implementation='sdpa' or 'eager'"


class Pattern(NamedTuple):
    """Which keys a query sees by their positions alone."""

    causal: bool = False
    before: int | None = None
    """Largest distance to a key before the query."""
    after: int | None = None
    """Largest distance to a key behind the query."""


class Mask(torch.Tensor):
    """What a model hands from its mask to its layers: padding ``[B,1,N,S]``, each row of it the same, and a pattern.

    A tensor, since models take masks for tensors. What they compute from it is a tensor without a pattern; that is
    refused. For a single query the numbers are the whole mask.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl

    pattern: Pattern
    valid: torch.Tensor | None
    """Padding ``[B,S]``, true for real keys, where there is any."""
    offset: int
    """Position of the first query, counted from the first key."""

    def contiguous(self, **_: Any) -> Mask:  # type: ignore[override]
        """Itself: what generation with a cache of fixed size does to masks that it makes ahead."""
        return self


class Seen(NamedTuple):
    """What an operator is told."""

    causal: bool
    window: int | None
    valid: torch.Tensor | None
    keys: int
    """How many of the keys there are to read; those behind them are room of a cache."""


def make(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **_: Any,
) -> Mask:
    """A mask for :func:`see`, as ``AttentionMaskInterface`` calls for it.

    Raises
    ------
    ValueError
        A mask that is not causal, bidirectional, or a sliding window of these, with padding.
    """
    first, offset = int(kv_offset), int(q_offset) - int(kv_offset)
    valid = None
    if attention_mask is not None:
        padding = masking_utils.prepare_padding_mask(attention_mask.bool(), kv_length, first)
        padding = padding[:, first : first + kv_length]
        valid = None if bool(padding.all()) else padding
    pattern = _pattern(mask_function)
    if pattern is None:
        sizes = (batch_size, q_length, kv_length, int(q_offset), first)
        pattern = _compared(mask_function, sizes, valid, use_vmap, device)
    shown = torch.ones(1, 1, dtype=torch.bool, device=device) if valid is None else valid
    if q_length == 1:
        shown = shown & _grid(pattern, offset, 1, kv_length, device)
    shown = shown[:, None, None, :].expand(batch_size, 1, q_length, kv_length)
    mask = torch.Tensor._make_subclass(Mask, shown)
    mask.pattern, mask.valid, mask.offset = pattern, valid, offset
    return mask


def _pattern(function: Callable[..., Any]) -> Pattern | None:
    """The pattern of a mask function of ``transformers``, if it is one of those whose form is known."""
    if function is masking_utils.causal_mask_function:
        return Pattern(causal=True)
    if function is masking_utils.bidirectional_mask_function:
        return Pattern()
    name = getattr(function, "__qualname__", "")
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None) or ()
    own = dict(zip(code.co_freevars, (cell.cell_contents for cell in cells))) if code is not None else {}
    if getattr(function, "__module__", None) != masking_utils.__name__:
        return None
    if name == "sliding_window_overlay.<locals>.inner_mask":
        return Pattern(before=own["sliding_window"] - 1)
    if name == "sliding_window_bidirectional_overlay.<locals>.inner_mask":
        return Pattern(before=own["sliding_window"], after=own["sliding_window"])
    if name != "and_masks.<locals>.and_mask":
        return None
    whole = Pattern()
    for part in map(_pattern, own["mask_functions"]):
        if part is None:
            return None
        whole = Pattern(whole.causal or part.causal, _least(whole.before, part.before), _least(whole.after, part.after))
    return whole


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _grid(pattern: Pattern, offset: int, queries: int, keys: int, device: Any) -> torch.Tensor:
    """The pattern in numbers, ``[N,S]``."""
    distance = torch.arange(queries, device=device)[:, None] + offset - torch.arange(keys, device=device)
    seen = torch.ones_like(distance, dtype=torch.bool)
    if pattern.causal:
        seen &= distance >= 0
    if pattern.before is not None:
        seen &= distance <= pattern.before
    if pattern.after is not None:
        seen &= distance >= -pattern.after
    return seen


def _compared(
    function: Callable[..., Any],
    sizes: tuple[int, int, int, int, int],
    valid: torch.Tensor | None,
    use_vmap: bool,
    device: Any,
) -> Pattern:
    """The pattern that a function of any form comes to for real tokens: chunks longer than the text are causal."""
    batch, queries, keys, q_offset, kv_offset = sizes
    dense = masking_utils.sdpa_mask(*sizes, function, allow_is_causal_skip=False, use_vmap=use_vmap, device=device)
    offset, real = q_offset - kv_offset, torch.ones_like(dense)
    if valid is not None:
        real &= valid[:, None, None, :]
        if 0 <= offset and offset + queries <= keys:
            real &= valid[:, None, offset : offset + queries, None]
    for pattern in (Pattern(causal=True), Pattern()):
        if not bool(((dense != _grid(pattern, offset, queries, keys, device)) & real).any()):
            return pattern
    raise ValueError(
        f"the model asks for a mask by {_named(function)} at {queries} queries and {keys} keys, expected causal, "
        "bidirectional or sliding-window attention with padding (packed sequences, chunks and blocks are none): "
        f"{REMEDY}"
    )


def _named(function: Callable[..., Any]) -> str:
    """Names of the functions that a mask is made of."""
    name = getattr(function, "__qualname__", repr(function)).split(".<locals>")[0]
    cells = getattr(function, "__closure__", None) or ()
    inner: list[Any] = []
    for cell in cells:
        inner.extend(cell.cell_contents if isinstance(cell.cell_contents, tuple) else [cell.cell_contents])
    names = [_named(part) for part in inner if callable(part)]
    return f"{name}({', '.join(names)})" if names else name


def see(mask: torch.Tensor | None, is_causal: bool, sliding_window: int | None, sizes: tuple[int, int, int]) -> Seen:
    """What a layer's mask says, for ``sizes`` of ``(B, N, S)``. Where there is none, the layer itself is causal or not.

    Raises
    ------
    ValueError
        A mask that is neither one of :func:`make` nor padding of keys.
    """
    batch, queries, keys = sizes
    if mask is None:
        return _unmasked(is_causal, sliding_window, queries, keys)
    if not isinstance(mask, Mask):
        return Seen(False, None, _padding(mask, sizes), keys)
    pattern, valid, offset = mask.pattern, mask.valid, mask.offset
    if tuple(mask.shape[-2:]) != (queries, keys):
        raise ValueError(
            f"the mask is of {mask.shape[-2]} queries and {mask.shape[-1]} keys, expected those of the layer, "
            f"{queries} and {keys}: {REMEDY}"
        )
    needs_place = pattern.causal or pattern.before is not None or pattern.after is not None
    if needs_place:
        # Kernels count from the last key, which is that of the last query; behind it is room that nobody sees.
        last = offset + queries
        if last > keys or (last < keys and not pattern.causal):
            raise ValueError(
                f"the last of {queries} queries is at position {last} of {keys} keys, expected the last key: {REMEDY}"
            )
        keys = last
        valid = None if valid is None else valid[:, :keys]
    if valid is not None and valid.shape[0] != batch:
        valid = valid.expand(batch, -1)
    before, after = pattern.before, keys if pattern.causal else pattern.after
    if before is not None and before >= keys - 1:
        before = None
    if after is not None and after >= keys - 1:
        after = None
    if not pattern.causal and before != after:
        raise ValueError(f"the mask lets {before} keys before and {after} behind be seen, expected as many: {REMEDY}")
    return Seen(pattern.causal, before, valid, keys)


def _unmasked(is_causal: bool, sliding_window: int | None, queries: int, keys: int) -> Seen:
    if sliding_window is not None and sliding_window < keys:
        raise ValueError(
            f"the layer has a sliding window of {sliding_window} and no mask, expected a mask of the model: {REMEDY}"
        )
    if is_causal and queries not in (1, keys):
        raise ValueError(
            f"the layer is causal and has no mask at {queries} queries and {keys} keys, expected as many: {REMEDY}"
        )
    return Seen(is_causal, None, None, keys)


def _padding(mask: torch.Tensor, sizes: tuple[int, int, int]) -> torch.Tensor | None:
    """Padding ``[B,S]`` in a tensor ``[B,1,1,S]``: booleans, or numbers to add that are 0 or the smallest there are."""
    batch, _, keys = sizes
    if mask.ndim != 4 or mask.shape[0] not in (1, batch) or mask.shape[1:3] != (1, 1) or mask.shape[3] != keys:
        raise ValueError(
            f"attention_mask has shape {list(mask.shape)} in a layer with {keys} keys, expected the padding of keys: "
            f"give the model attention_mask [B,S], or {REMEDY}"
        )
    rows = mask[:, 0, 0]
    valid = rows if rows.dtype == torch.bool else rows == 0
    if rows.dtype != torch.bool and not bool((valid | (rows <= torch.finfo(torch.float16).min)).all()):
        raise ValueError(f"attention_mask holds numbers to add to scores, expected padding of keys, no bias: {REMEDY}")
    return None if bool(valid.all()) else valid.expand(batch, -1)
