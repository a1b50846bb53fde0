"""What is wrong with a call is an exception that says what was seen and what was expected."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from conftest import operator, tensors

import regard

GIVEN = tensors("softmax")
Q, K, V = GIVEN.values()


def attend(mechanism: str = "softmax", **changes: Any) -> Any:
    return regard.attention(**{**GIVEN, **changes}, mechanism=mechanism)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"causl": True}, "unknown option 'causl', did you mean 'causal'?"),
        ({"components": 3}, "unknown option 'components', did you mean 'keys.components'?"),
        ({"keys": {"componens": 3}}, "unknown option 'keys.componens', did you mean 'keys.components'?"),
        ({"keys": 3}, "option 'keys' holds others, expected a dictionary of them"),
        ({"keys__components": "many"}, "option keys.components: invalid type"),
        ({"keys__components": 2.5}, "option keys.components: invalid type"),
        ({"keys__components": -1}, "option keys.components: invalid value"),
        ({"keys__components": 2**70}, "expected an integer of 64 bits"),
        ({"keys__components": 0}, "keys.components is 0, expected at least 1"),
        ({"support__kind": "smyfr"}, "option support.kind: unknown variant `smyfr`.*did you mean 'smyrf'?"),
        ({"keys__components": 2, "keys.components": 2}, "option 'keys.components' is given twice"),
        ({"budget": 2.0}, "option budget: budget is 2, expected a number above 0 and at most 1"),
        ({"budget": float("nan")}, "expected a finite number"),
        ({"position": "alibi"}, "position is an option of models"),
        ({"layout": "token_frist"}, "layout is 'token_frist'.*did you mean 'token_first'?"),
        ({"seed": -1}, "seed is -1, expected an integer from 0"),
        ({"dropout_key": 2**64}, "dropout_key is 18446744073709551616, expected an integer from 0"),
        ({"dropout": 1.0}, "dropout is 1, expected at least 0 and less than 1"),
        ({"mechanism": "fastfromer"}, "mechanism is 'fastfromer'.*did you mean 'fastformer'?"),
        ({"mechanism": "linear", "window": 3}, "window is set with linear, expected no window"),
        ({"mechanism": "linear", "scale": 0.1}, "scale is given to linear"),
        ({"mechanism": "linear", "slopes": [0.1]}, "slopes is given to linear"),
        ({"mechanism": "sparse", "support": {"kind": "block", "layout": ["10", "1"]}}, "support.layout is"),
    ],
)
def test_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        regard.Operator(**options)


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes"])
def test_options_of_no_use(value: Any) -> None:
    with pytest.raises(TypeError, match="option support.radius is a .*, expected a number"):
        regard.Operator("sparse", support__radius=value)


def test_options_have_three_spellings() -> None:
    spellings = [
        {"keys": {"components": 3, "design": "shifted"}},
        {"keys__components": 3, "keys__design": "shifted"},
        {"keys.components": numpy.int64(3), "keys": {"design": "shifted"}},
    ]
    options = [regard.Operator("mgk", **spelling).options for spelling in spellings]
    assert options[0] == options[1] == options[2]
    assert options[0]["keys"] == {"components": 3, "design": "shifted"}
    assert regard.Operator("smgk", keys__components=3).options == options[0]
    assert regard.Operator("mgk", mixture__variances=[1, 2.5]).options["mixture"]["variances"] == [1.0, 2.5]
    assert regard.Operator("mgk", window=None, keys__components=None).options == regard.Operator("mgk").options
    assert "keys.components" in regard.option_names() and "keys" not in regard.option_names()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": Q[0]}, r"tensor 'q' has shape \[4, 19, 8\], expected 4 axes"),
        ({"q": numpy.float32(1.0)}, r"tensor 'q' has shape \[\], expected 4 axes"),
        ({"k": K[:, :, :5]}, r"tensor 'v' has shape \[2, 2, 19, 5\], expected \[2, 2, 5, 5\]"),
        ({"k": K[..., :5]}, r"tensor 'k' has shape \[2, 2, 19, 5\]"),
        ({"k": K[:1]}, r"tensor 'k' has shape \[1, 2, 19, 8\]"),
        ({"q": Q[:, :3]}, r"tensor 'k' has shape \[2, 2, 19, 8\], expected a number of heads that divides that of q, 3"),
        ({"q": Q[:, :, :0]}, "expected every size at least 1"),
        ({"k": None}, "tensor 'k' is missing: softmax needs it"),
        ({"v": None}, "tensor 'v' is missing"),
        ({"valid": numpy.ones((2, 5), bool)}, r"tensor 'valid' has shape \[2, 5\], expected \[2, 19\]"),
        ({"valid": numpy.ones(19, bool)}, r"tensor 'valid' has shape \[19\], expected 2 axes"),
        ({"query_valid": numpy.ones((2, 5), bool)}, "tensor 'query_valid'"),
        (
            {"bias": numpy.ones((1, 19, 19), numpy.float32)},
            r"tensor 'bias' has shape \[1, 19, 19\], expected \[4, 19, 19\]",
        ),
        ({"slopes": [1.0]}, r"tensor 'slopes' has shape \[1\], expected \[4\]"),
        ({"scale": -1.0}, "scale is -1, expected a positive number"),
        ({"w_q": Q}, "tensor 'w_q' is no input of softmax under these options, which takes q, k, v"),
        ({"baise": Q}, "did you mean 'bias'"),
        ({"heads": 3}, "heads is 3, expected 4, as the tensors have them"),
        ({"key_value_heads": 4}, "key_value_heads is 4, expected 2, as the tensors have them"),
        ({"mechanism": "performer", "projection": numpy.ones((3, 5), numpy.float32)}, "tensor 'projection'"),
        (
            {"mechanism": "performer", "projection": numpy.ones((3, 8), numpy.float32), "features__rows": 4},
            "features.rows is 4",
        ),
        ({"mechanism": "performer", "features__rows": 2**40}, "a size that can be made"),
        ({"mechanism": "mgk"}, r"tensor 'k' has shape \[2, 2, 19, 8\], expected \[B,Hk,M,S,D\], one key a component"),
        ({"mechanism": "smgk"}, "tensor 'shift' is missing"),
        ({"mechanism": "gaussian", "variance": numpy.float32([0.0])}, "tensor 'variance' holds 0, expected positive"),
        ({"mechanism": "gaussian", "variance": numpy.float32([numpy.nan])}, "tensor 'variance' holds NaN"),
        ({"mechanism": "gaussian", "variance": numpy.float32([1.0, 2.0])}, "tensor 'variance' has shape"),
        ({"mechanism": "fastformer"}, "expected"),
        ({"mechanism": "sparse", "support__kind": "lsh"}, "with LSH the queries are the keys"),
        ({"mechanism": "sparse", "support__kind": "lsh", "v": Q}, "tensor 'k' is no input of sparse"),
        ({"mechanism": "scatterbrain", "budget": 0.001}, "budget is"),
    ],
)
def test_tensors_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attend(**changes)


@pytest.mark.parametrize(
    ("q", "message"),
    [
        (Q.astype(numpy.float64), "tensor 'q' holds float64 numbers, expected float32: convert it"),
        (Q.astype(numpy.int32), "tensor 'q' holds 32-bit integer numbers, expected float32"),
        (Q.astype(numpy.complex64), "tensor 'q' holds 'Zf' numbers"),
        (Q.astype(">f4"), "tensor 'q' holds '>f' numbers"),
        (Q.tolist(), "tensor 'q' is a list, expected an object with the buffer protocol or DLPack"),
        ("queries", "tensor 'q' is a str"),
        (None, "tensor 'q' is missing"),
    ],
)
def test_objects_that_are_no_tensors(q: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        attend(q=q)


def test_padding_of_real_numbers() -> None:
    with pytest.raises(TypeError, match="tensor 'valid' holds float32 numbers, expected booleans or integers"):
        attend(valid=numpy.ones((2, 19), numpy.float32))
    masks = [numpy.arange(19)[None] < numpy.array([[19], [7]])]
    masks += [masks[0].astype(dtype) for dtype in (numpy.uint8, numpy.int32, numpy.int64)]
    outs = [attend(valid=mask) for mask in masks]
    assert all(numpy.array_equal(out, outs[0]) for out in outs)


def test_a_device_that_is_not_the_processor() -> None:
    class Elsewhere:
        def __dlpack__(self, **_: Any) -> Any:
            raise AssertionError("nobody may ask")

        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

    with pytest.raises(ValueError, match="tensor 'q' lies on a device of DLPack type 2, expected the processor"):
        attend(q=Elsewhere())


def test_errors_of_an_exporter_pass_through() -> None:
    class Broken:
        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, **_: Any) -> Any:
            raise BufferError("not today")

    with pytest.raises(BufferError, match="not today"):
        attend(q=Broken())
    Broken.__dlpack__ = lambda self, **_: "no capsule"  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(TypeError):
        attend(q=Broken())


def test_gradients_that_do_not_fit() -> None:
    out, saved = regard.Operator().forward(Q, K, V)
    with pytest.raises(ValueError, match=r"tensor 'grad_out' has shape \[2, 4, 19, 4\], expected \[2, 4, 19, 5\]"):
        saved.backward(out[..., :4])
    with pytest.raises(TypeError, match="tensor 'grad_out' holds float64 numbers"):
        saved.backward(out.astype(numpy.float64))
    with pytest.raises(ValueError, match="tensor 'grad_out' has shape"):
        regard.Operator().reference(Q, K, V, grad_out=out[0])
    with pytest.raises(ValueError, match="no prior per position here"):
        saved.responsibilities()


def test_too_many_tensors() -> None:
    with pytest.raises(TypeError, match="4 tensors by position, expected at most 3: q, k, v"):
        regard.Operator()(Q, K, V, V)


@pytest.mark.parametrize(
    ("mechanism", "options"),
    [("softmax", {}), ("linear", {}), ("sparse", {"causal": True, "support__kind": "smyrf"})],
)
def test_mechanisms_without_a_decoder(mechanism: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no decoder under these options, expected a causal mechanism"):
        regard.Operator(mechanism, **options).decoder()


def test_tokens_that_do_not_fit(mechanism: str) -> None:
    given = tensors(mechanism, tokens=2)
    decoder = operator(mechanism, causal=True).decoder()
    with pytest.raises(ValueError, match="expected one token"):
        decoder.step(**given)
    token = tensors(mechanism, tokens=1)
    with pytest.raises(ValueError, match="takes no padding"):
        decoder.step(**token, valid=numpy.ones((2, 1), bool))
    decoder.step(**token)
    name = "x" if "x" in token else "q"
    with pytest.raises(ValueError):
        decoder.step(**{**token, name: token[name][..., :-1]})
    with pytest.raises(ValueError):
        decoder.step(**{key: x[:1] if key in ("q", "k", "v", "x") else x for key, x in token.items()})
    assert decoder.tokens == 1
    with pytest.raises(ValueError, match="no rows to go on with"):
        decoder.reorder([])
    with pytest.raises(ValueError, match="row -1 does not exist, expected 0 to 1"):
        decoder.reorder([-1])


def test_options_that_a_decoder_cannot_keep() -> None:
    with pytest.raises(ValueError, match="drops nothing, expected an operator with dropout=0"):
        regard.Operator("softmax", causal=True, dropout=0.5).decoder()
    with pytest.raises(ValueError, match="a budget is a share of a length, which grows"):
        regard.Operator("sparse", causal=True, budget=0.2).decoder()
    token = {name: x[:, :, :1] for name, x in tensors("softmax").items()}
    decoder = regard.Operator("softmax", causal=True).decoder()
    decoder.step(**token)
    with pytest.raises(ValueError, match="tensors are q, k, v, bias, expected q, k, v, as of the first token"):
        decoder.step(**token, bias=numpy.zeros((token["q"].shape[1], 1, 1), numpy.float32))


def test_scalars_of_numpy_are_numbers() -> None:
    given = tensors("softmax")
    scale = numpy.float64(0.25)
    assert numpy.array_equal(regard.attention(**given, scale=scale), regard.attention(**given, scale=0.25))
    drops = {"dropout": numpy.float64(0.5), "dropout_key": numpy.int64(3), "seed": numpy.int64(3)}
    assert regard.attention(**given, **drops).shape[:3] == given["q"].shape[:3]
    with pytest.raises(ValueError, match="slopes has NaN, expected finite numbers"):
        regard.Operator("softmax", slopes=[float("nan"), 1.0])


def test_a_prior_of_each_position_is_whole_at_every_step() -> None:
    given = tensors("mgk", tokens=5)
    given["log_prior"] = numpy.random.default_rng(3).standard_normal((4, 2, 5), dtype=numpy.float32)
    attend = regard.Operator("mgk", causal=True, mixture__prior="per-position")
    whole, decoder = attend(**given), attend.decoder()
    step = lambda t: {**given, **{name: numpy.take(given[name], [t], -2) for name in "qkv"}}
    for t in range(5):
        assert abs(decoder.step(**step(t)) - whole[:, :, t : t + 1]).max() < 1e-5
    with pytest.raises(ValueError, match="tensor 'log_prior' has shape .*, expected at least 6 positions"):
        decoder.step(**step(4))


def test_modules() -> None:
    given = tensors("mgk")
    module = regard.Module("mgk", {"log_prior": given["log_prior"]}, causal=True)
    out = module(given["q"], given["k"], given["v"])
    assert numpy.array_equal(out, regard.attention(**given, mechanism="mgk", causal=True))
    gradients = module.backward(out)
    assert set(gradients) == {"q", "k", "v"} and set(module.gradients) == {"log_prior"}
    with pytest.raises(RuntimeError, match="no forward pass"):
        module.backward(out)
    with pytest.raises(TypeError, match="ready-made operator"):
        regard.Module(regard.Operator(), causal=True)
    given["log_prior"] += numpy.float32([3, 0])
    assert not numpy.array_equal(module(given["q"], given["k"], given["v"]), out), "parameters are shared"
