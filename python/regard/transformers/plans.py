"""Other attention for some heads of a model, as a plan file says."""

from __future__ import annotations

import inspect
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from .._native import _substream
from .attention import Result, attend, check, look, publish

NAME = "regard-plan"
"""The ``attn_implementation`` of a model with a plan."""
OF_LAYER = ("heads", "key_value_heads", "position", "causal")
"""Options that a group has from its layer."""

Model = TypeVar("Model", bound=torch.nn.Module)


class Group(NamedTuple):
    """Key heads of a layer that attend in the same way, with the query heads that read them."""

    key_heads: tuple[int, ...]
    mechanism: str | None
    """None: these heads give 0."""
    options: Mapping[str, Any]


def use_plan(model: Model, plan: str | os.PathLike[str] | Mapping[str, Any]) -> Model:
    """Gives heads of a model other attention; those that the plan does not name stay exact.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A model of one stack. Changed in place; ``model.set_attn_implementation("sdpa")`` undoes it.
    plan : path or mapping
        A plan file as ``regard swap --plan`` writes it, or what it holds: ``layers``, ``seed``, and groups of ``layer``
        (from 1), ``key_heads`` and ``attention`` (a mechanism with its options; heads of a group without it give 0).
        What mechanisms draw is drawn as the command line draws it.

    Returns
    -------
    The model.

    Raises
    ------
    ValueError
        A plan for another model; heads that are named twice; mechanisms or options that cannot stand there.
    """
    content = dict(plan) if isinstance(plan, Mapping) else tomllib.loads(Path(plan).read_text())
    modules = _attention_modules(model)
    layers = _groups(content, len(modules))
    for module, groups in zip(modules, layers):
        heads = _key_heads(module)
        for group in groups:
            _check_heads(group.key_heads, heads)
    publish(NAME, _attend_by_plan, NAME)
    for module, groups in zip(modules, layers):
        module.regard_plan = groups
    model.set_attn_implementation(NAME)  # type: ignore[operator]
    return model


def _attention_modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules that call an attention function, in the order of their layers; shared ones once."""
    if not hasattr(model, "set_attn_implementation"):
        raise TypeError(f"model is a {type(model).__name__}, expected a model of transformers")

    def calls(module: torch.nn.Module) -> bool:
        forward = getattr(inspect.unwrap(type(module).forward), "__code__", None)
        return forward is not None and "get_interface" in forward.co_names

    modules = [module for module in model.modules() if calls(module)]
    if not modules:
        raise ValueError(f"{type(model).__name__} has no layer that calls the attention interface of transformers")
    return modules


def _groups(plan: Mapping[str, Any], layers: int) -> list[list[Group]]:
    _known("a plan", plan, ("layers", "seed", "group"))
    if plan.get("layers") != layers:
        raise ValueError(f"the plan is for {plan.get('layers')} layers, expected the {layers} that the model has")
    seed, found = plan.get("seed", 0), [[] for _ in range(layers)]  # type: list[list[Group]]
    numbers = [0] * layers
    for entry in plan.get("group", []):
        _known("a group of a plan", entry, ("layer", "key_heads", "attention"))
        layer = entry.get("layer")
        if not isinstance(layer, int) or not 1 <= layer <= layers:
            raise ValueError(f"layer of a plan is {layer}, expected a number from 1 to {layers}")
        at = layer - 1
        number, heads = numbers[at], sorted(entry.get("key_heads", []))
        numbers[at] += 1
        taken = [head for group in found[at] for head in group.key_heads]
        twice = [head for i, head in enumerate(heads) if head in heads[:i] + taken]
        if twice:
            raise ValueError(f"key head {twice[0]} of layer {layer} is named twice, expected each head once")
        if not heads:
            continue
        attention = entry.get("attention")
        if attention is None:
            found[at].append(Group(tuple(heads), None, {}))
            continue
        options = {name: value for name, value in attention.items() if name not in OF_LAYER}
        mechanism = options.pop("mechanism", "softmax")
        # As the other heads of its layer do not have it.
        options["seed"] = _substream(_substream(seed, at), number)
        operator = check(mechanism, options)
        found[at].append(Group(tuple(heads), operator.mechanism, options))
    return found


def _known(what: str, table: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for key in table:
        if key not in keys:
            raise ValueError(f"key '{key}' in {what}, expected one of {', '.join(keys)}")


def _key_heads(module: torch.nn.Module) -> int | None:
    """Key heads of a layer, where its configuration says so."""
    config = getattr(module, "config", None)
    for name in ("num_key_value_heads", "num_attention_heads"):
        heads = getattr(config, name, None)
        if isinstance(heads, int):
            return heads
    return None


def _check_heads(heads: tuple[int, ...], known: int | None) -> None:
    for head in heads:
        if head < 0 or (known is not None and head >= known):
            raise ValueError(f"key head of a plan is {head}, expected a number below {known}")


def _attend_by_plan(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> Result:
    """``query [B,H,N,D]``, ``key [B,Hk,S,D]``, ``value [B,Hk,S,Dv]`` to ``[B,N,H,Dv]``."""
    groups = getattr(module, "regard_plan", None)
    if groups is None:
        raise ValueError(f"{type(module).__name__} has no plan, expected use_plan(model, plan) first")
    seen = look(module, query, key, attention_mask, is_causal, others)
    heads = key.shape[1]
    share = query.shape[1] // heads
    named = {head for group in groups for head in group.key_heads}
    rest = tuple(head for head in range(heads) if head not in named)
    everyone = [*groups, *([Group(rest, "softmax", {})] if rest else [])]
    parts, order = [], []
    for group in everyone:
        _check_heads(group.key_heads, heads)
        queries = [head * share + i for head in group.key_heads for i in range(share)]
        order += queries
        q = _select(query, queries)
        if group.mechanism is None:
            parts.append(q.new_zeros(*q.shape[:3], value.shape[-1]))
            continue
        k, v = (_select(x[:, :, : seen.keys], group.key_heads) for x in (key, value))
        parts.append(attend(q, k, v, seen, dropout, scaling, group.mechanism, group.options))
    out = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    if order != sorted(order):
        place = torch.empty(len(order), dtype=torch.long)
        place[torch.tensor(order)] = torch.arange(len(order))
        out = out[:, place]
    return out.transpose(1, 2).contiguous(), None


def _select(x: torch.Tensor, heads: list[int] | tuple[int, ...]) -> torch.Tensor:
    """Heads of ``x [B,H,N,D]``: a view where they lie side by side."""
    if list(heads) == list(range(heads[0], heads[0] + len(heads))):
        return x[:, heads[0] : heads[0] + len(heads)]
    return x[:, list(heads)]
