"""Every mechanism against the golden data: kernels and twins, outputs and gradients, in both layouts."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from conftest import GOLDEN, cases, error
from safetensors.numpy import load_file

import regard

CASES = cases()
SUPPORT = ("radius", "globals", "block", "cluster", "rounds", "bucket", "hash_values", "cyclic")
TENSORS = (
    "q",
    "k",
    "v",
    "bias",
    "variance",
    "log_prior",
    "log_scale",
    "shift",
    "projection",
    "directions",
    "rotations",
    "w_q",
    "w_k",
)
TENSORS += ("w_t", "x", "x_kv", "w_gate", "w_query", "w_key", "w_value", "w_out", "valid", "query_valid")


def options(case: dict[str, Any], file: dict[str, numpy.ndarray]) -> dict[str, Any]:
    """The options of a case by the names of the package."""
    given = case["options"]
    renamed = {"keys": "keys.design", "features": "features.kind", "support": "support.kind"}
    renamed |= {name: f"support.{name}" for name in SUPPORT} | {
        name: f"mixture.{name}" for name in ("inference", "score")
    }
    renamed |= {name: f"fastformer.{name}" for name in ("scores", "sharing")}
    if case["mechanism"] == "moa":
        renamed = {name: f"moa.{name}" for name in ("active", "experts", "head_width", "gates")}
    chosen = {renamed[name]: value for name, value in given.items() if name in renamed}
    chosen["causal"] = given.get("causal", False)
    if "layout" in file:
        chosen["support.layout"] = file["layout"]
    return chosen | ({"scale": given["scale"]} if "scale" in given else {})


def inputs(file: dict[str, numpy.ndarray]) -> dict[str, numpy.ndarray]:
    given = {name: file[name] for name in TENSORS if name in file}
    if "prior" in file:
        given["log_prior"] = numpy.log(file["prior"])
    return given


def is_head_first(name: str) -> bool:
    return name in ("q", "k", "v")


def turned(name: str, tensor: numpy.ndarray) -> numpy.ndarray:
    """Heads and tokens in each other's place."""
    return numpy.ascontiguousarray(numpy.swapaxes(tensor, 1, tensor.ndim - 2)) if is_head_first(name) else tensor


def narrow(name: str, tensor: numpy.ndarray) -> numpy.ndarray:
    return tensor.astype(numpy.float32) if tensor.dtype == numpy.float64 else tensor


@pytest.mark.parametrize("layout", ["head_first", "token_first"])
@pytest.mark.parametrize("case", CASES, ids=[case["file"].removesuffix(".safetensors") for case in CASES])
def test_kernel_and_twin(case: dict[str, Any], layout: str) -> None:
    file = load_file(GOLDEN / case["file"])
    token_first = layout == "token_first"
    given, grad_out, out = inputs(file), file["grad_out"], file["out"]
    whole = case["mechanism"] in ("moa", "fastformer")
    if token_first:
        given = {name: turned(name, tensor) for name, tensor in given.items()}
        grad_out, out = (tensor if whole else turned("q", tensor) for tensor in (grad_out, out))
    operator = regard.Operator(case["mechanism"], layout=layout, **options(case, file))
    expected = {"out": out}
    for name in case["options"]["grad"]:
        gradient = file[f"grad.{name}"]
        expected[f"grad.{name}"] = turned(name, gradient) if token_first else gradient

    twin = operator.reference(**given, grad_out=grad_out)
    seen = {"out": twin.out, **{f"grad.{name}": gradient for name, gradient in twin.gradients.items()}}
    for name, tensor in expected.items():
        assert seen[name].dtype == numpy.float64
        assert error(seen[name], tensor) < 1e-10, f"twin, {name}"

    small = {name: narrow(name, tensor) for name, tensor in given.items()}
    out, saved = operator.forward(**small)
    gradients = operator.backward(saved, grad_out.astype(numpy.float32))
    seen = {"out": out, **{f"grad.{name}": gradient for name, gradient in gradients.items()}}
    for name, tensor in expected.items():
        assert seen[name].dtype == numpy.float32
        assert error(seen[name], tensor) < max(10 * case["float32_error"].get(name, 0.0), 2e-6), f"kernel, {name}"


def test_all_mechanisms_have_cases() -> None:
    assert {case["mechanism"] for case in CASES} == {facts["name"] for facts in regard.mechanisms()}
    assert len(CASES) >= 113


@pytest.mark.parametrize("name", ["mgk_soft_em", "mgk_soft_em_causal"])
def test_responsibilities(name: str) -> None:
    file = load_file(GOLDEN / f"{name}.safetensors")
    operator = regard.Operator("mgk", causal=name.endswith("causal"), mixture__inference="soft-em")
    _, saved = operator.forward(**{name: narrow(name, tensor) for name, tensor in inputs(file).items()})
    assert error(saved.responsibilities(), file["prior_after"]) < 2e-6


def test_log_of_the_denominator() -> None:
    file = load_file(GOLDEN / "softmax_plain.safetensors")
    q, k = file["q"], file["k"]
    scores = numpy.einsum("bhid,bhjd->bhij", q, k) / numpy.sqrt(q.shape[-1])
    lse = numpy.log(numpy.exp(scores).sum(-1))
    given = {name: narrow(name, tensor) for name, tensor in inputs(file).items()}
    assert error(regard.Operator().forward(**given)[1].lse, lse) < 2e-6
    assert error(regard.Operator().reference(**given).lse, lse) < 1e-12
    turn = {name: turned(name, tensor) for name, tensor in given.items()}
    assert error(regard.Operator(layout="token_first").forward(**turn)[1].lse, lse) < 2e-6
    assert error(regard.Operator(layout="token_first").reference(**turn).lse, lse) < 1e-12
