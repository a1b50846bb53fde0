"""What composed forms need to know of an operator, as plain values."""

from __future__ import annotations

import dataclasses
import functools
import json
from operator import index
from typing import Any

from ..operator import Operator
from .backend import constant


@dataclasses.dataclass(frozen=True)
class Settings:
    """An operator in plain values, which a compiler can read while it traces."""

    mechanism: str
    token_first: bool
    causal: bool
    window: int | None
    scale: float | None
    slopes: tuple[float, ...] | None
    dropout: float
    dropout_key: int
    inputs: tuple[str, ...]
    constants: tuple[str, ...]
    budget: bool
    components: int
    shifted: bool
    inference: str
    score: str
    variances: str | tuple[float, ...]
    features: str
    rows: int
    support: str
    radius: int
    globals: int
    random: int
    support_seed: int
    block: int
    blocks: tuple[str, ...]
    rounds: int
    cluster: int
    bucket: int
    cyclic: bool
    hash_values: int | None
    naive: bool
    active: int
    gates: str
    released_scores: bool
    spec: str
    """The operator as text, from which :func:`operator_of` makes it again."""


def settings_of(operator: Operator) -> Settings:
    """The settings of an operator, made once and kept with it."""
    kept: Settings | None = operator.__dict__.get("_settings")
    if kept is None:
        kept = operator.__dict__["_settings"] = _read(operator)
    return kept


@functools.lru_cache(maxsize=256)
def operator_of(spec: str) -> Operator:
    """The operator that :attr:`Settings.spec` describes."""
    mechanism, arguments, options = json.loads(spec)
    return Operator(mechanism, **arguments, **options)


def spec_of(mechanism: str, arguments: dict[str, Any], options: dict[str, Any]) -> str:
    """The text of an operator with these arguments and options, for a compiler that traces its making."""
    return _spec(mechanism, _constant(arguments), _constant(options))


def _constant(value: Any) -> Any:
    """Options with integers that a compiler takes for constants: it would rather have them vary."""
    if isinstance(value, dict):
        return {name: _constant(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_constant(item) for item in value]
    return index(value) if isinstance(value, int) and not isinstance(value, bool) else value


@constant
def _spec(mechanism: str, arguments: dict[str, Any], options: dict[str, Any]) -> str:
    return settings_of(Operator(mechanism, **arguments, **options)).spec


@constant
def settings_of_spec(spec: str) -> Settings:
    """The settings of the operator that a text describes."""
    return settings_of(operator_of(spec))


def _read(operator: Operator) -> Settings:
    options, arguments = operator.options, operator._arguments
    mixture, support, features = options["mixture"], options["support"], options["features"]
    mechanism, variances = operator.mechanism, options["mixture"]["variances"]
    is_mixture = mechanism in ("mgk", "mlk")
    text = [operator._name, arguments, operator._options]
    return Settings(
        mechanism=mechanism,
        token_first=operator.layout == "token_first",
        causal=options["causal"],
        window=options.get("window"),
        scale=arguments["scale"],
        slopes=None if arguments["slopes"] is None else tuple(arguments["slopes"]),
        dropout=arguments["dropout"],
        dropout_key=arguments["dropout_key"],
        inputs=operator.inputs,
        constants=operator.constants,
        budget=options.get("budget") is not None and mechanism in ("performer", "sparse", "scatterbrain"),
        components=options["keys"]["components"] if is_mixture else 1,
        shifted=is_mixture and options["keys"]["design"] == "shifted",
        inference=mixture["inference"],
        score=mixture["score"],
        variances=variances if isinstance(variances, str) else tuple(variances),
        features=features["kind"],
        rows=features["rows"],
        support=support["kind"],
        radius=support["radius"],
        globals=support["globals"],
        random=support["random"],
        support_seed=support["seed"],
        block=support["block"],
        blocks=tuple(support.get("layout") or ()),
        rounds=support["rounds"],
        cluster=support["cluster"],
        bucket=support["bucket"],
        cyclic=support["cyclic"],
        hash_values=support.get("hash_values"),
        naive=options["scatterbrain"]["combination"] == "naive",
        active=options["moa"]["active"],
        gates=options["moa"]["gates"],
        released_scores=options["fastformer"]["scores"] == "released",
        # Arrays among the options become lists.
        spec=json.dumps(text, default=lambda value: value.tolist()),
    )
