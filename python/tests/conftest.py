"""Golden cases, and tensors for every mechanism."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest

import regard

GOLDEN = Path(__file__).resolve().parents[2] / "testdata" / "golden"
NAMES = [facts["name"] for facts in regard.mechanisms()]

# What a call of each mechanism needs beside q, k and v; a mechanism that is not here needs nothing.
OPTIONS: dict[str, dict[str, Any]] = {
    "sparse": {"support__radius": 3},
    "scatterbrain": {"support__radius": 3, "features__rows": 12},
    "performer": {"features__rows": 12},
    "moa": {"moa__active": 2},
}


def tensors(mechanism: str, tokens: int = 19, layout: str = "head_first", seed: int = 0) -> dict[str, numpy.ndarray]:
    """Inputs of a mechanism, small and odd."""
    rng = numpy.random.default_rng(seed)
    batch, heads, width, value = 2, 4, 8, 5

    def draw(*shape: int) -> numpy.ndarray:
        return rng.standard_normal(shape, dtype=numpy.float32)

    if mechanism == "moa":
        channels, experts = 12, 5
        return {
            "x": draw(batch, tokens, channels),
            "w_gate": draw(channels, experts),
            "w_query": draw(experts, channels, width),
            "w_key": draw(channels, width),
            "w_value": draw(channels, width),
            "w_out": draw(experts, width, channels),
        }
    if mechanism == "fastformer":
        own = {name: draw(batch, heads, tokens, width) for name in "qkv"}
        rest = {"w_q": draw(heads, width), "w_k": draw(heads, width), "w_t": draw(heads * width, heads * width)}
    else:
        components = (2,) if mechanism in ("mgk", "mlk") else ()
        own = {
            "q": draw(batch, heads, tokens, width),
            "k": draw(batch, 2, *components, tokens, width),
            "v": draw(batch, 2, tokens, value),
        }
        rest = {"log_prior": draw(heads, 2)} if components else {}
        if mechanism == "cosine":
            rest = {"log_scale": draw(heads)}
    if layout == "token_first":
        # Heads and tokens trade places; components stay between them.
        own = {name: numpy.ascontiguousarray(numpy.swapaxes(x, 1, x.ndim - 2)) for name, x in own.items()}
    return {**own, **rest}


def operator(mechanism: str, **options: Any) -> regard.Operator:
    return regard.Operator(mechanism, **OPTIONS.get(mechanism, {}), **options)


def error(seen: Any, expected: Any) -> float:
    """Largest difference by the largest number expected; the largest number seen where that is 0."""
    seen, expected = numpy.asarray(seen), numpy.asarray(expected)
    assert seen.shape == expected.shape
    assert numpy.isfinite(seen).all()
    largest = abs(expected).max()
    return float(abs(seen - expected).max() / largest) if largest > 0 else float(abs(seen).max())


def cases() -> list[dict[str, Any]]:
    manifest = json.loads((GOLDEN / "MANIFEST.json").read_text())
    return [case for case in manifest["cases"] if case["mechanism"] in NAMES]


@pytest.fixture(params=NAMES)
def mechanism(request: pytest.FixtureRequest) -> str:
    """Every mechanism there is."""
    return request.param


@pytest.fixture(autouse=True)
def threads():
    """Leaves the number of threads as it was."""
    yield
    regard.set_threads(0)
