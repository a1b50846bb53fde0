"""What holds for every mechanism, by the list of mechanisms alone."""

from __future__ import annotations

import numpy
import pytest
from conftest import OPTIONS, error, operator, tensors

import regard

LAYOUTS = ["head_first", "token_first"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("causal", [False, True])
def test_kernel_and_twin_agree_with_padding(mechanism: str, causal: bool, layout: str) -> None:
    given = tensors(mechanism, layout=layout)
    valid = numpy.ones((2, 19), bool)
    valid[1, 11:] = False
    attend = operator(mechanism, causal=causal, layout=layout)
    out, saved = attend.forward(**given, valid=valid)
    grad_out = numpy.random.default_rng(1).standard_normal(out.shape, dtype=numpy.float32)
    gradients = attend.backward(saved, grad_out)
    twin = attend.reference(**given, valid=valid, grad_out=grad_out)
    assert error(out, twin.out) < 2e-5
    assert set(gradients) == set(given) == set(twin.gradients)
    for name, gradient in gradients.items():
        assert gradient.shape == given[name].shape
        assert error(gradient, twin.gradients[name]) < 2e-4, name


def test_gradients_are_derivatives(mechanism: str) -> None:
    """The twin's gradients against central differences along one direction for each input."""
    given = {name: tensor.astype(numpy.float64) for name, tensor in tensors(mechanism, tokens=9).items()}
    # The gates of the paper take a sum as a constant, so that their gradient is no derivative.
    attend = operator(mechanism, causal=True, moa__gates="released")
    rng = numpy.random.default_rng(2)
    grad_out = rng.standard_normal(attend.reference(**given).out.shape)
    gradients = attend.reference(**given, grad_out=grad_out).gradients

    for name, tensor in given.items():
        direction = rng.standard_normal(tensor.shape)

        def at(step: float) -> float:
            return float((attend.reference(**{**given, name: tensor + step * direction}).out * grad_out).sum())

        step = 1e-4
        slope = (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)
        assert slope == pytest.approx(float((gradients[name] * direction).sum()), rel=1e-6, abs=1e-7), name


def test_threads_change_no_bit(mechanism: str) -> None:
    given = tensors(mechanism, tokens=130)
    attend = operator(mechanism, causal=True)
    results = []
    for count in (1, 2, 5):
        regard.set_threads(count)
        assert regard.get_threads() == count
        out, saved = attend.forward(**given)
        results.append([out, *attend.backward(saved, out).values()])
    for other in results[1:]:
        for first, second in zip(results[0], other):
            assert first.tobytes() == second.tobytes()


def test_decoder_repeats_the_causal_form(mechanism: str) -> None:
    given = tensors(mechanism, tokens=7)
    attend = operator(mechanism, causal=True)
    whole = attend(**given)
    decoder = attend.decoder()
    per_token = [name for name in given if name in ("q", "k", "v", "x")]
    axis = 1 if "x" in given else -2
    for t in range(7):
        token = {name: numpy.take(given[name], [t], axis) for name in per_token}
        out = decoder.step(**{**given, **token})
        assert error(out, whole[:, t : t + 1] if whole.ndim == 3 else whole[:, :, t : t + 1]) < 1e-5
        assert decoder.tokens == t + 1
        assert decoder.nbytes > 0


@pytest.mark.parametrize("mechanism", ["sparse", "scatterbrain"])
def test_a_decoder_of_blocks_takes_the_tokens_of_its_layout(mechanism: str) -> None:
    options = {"support__kind": "block", "support__block": 3, "support__layout": ["100", "010", "101"]}
    attend = regard.Operator(mechanism, causal=True, **options)
    q, k, v = numpy.random.default_rng(3).standard_normal((3, 2, 2, 9, 8), dtype=numpy.float32)
    whole, decoder = attend(q, k, v), attend.decoder()
    for t in range(9):
        token = [x[:, :, t : t + 1] for x in (q, k, v)]
        assert error(decoder.step(*token), whole[:, :, t : t + 1]) < 1e-5
    with pytest.raises(ValueError, match="3 rows and columns of blocks of 3, expected at least 4, for 10 tokens"):
        decoder.step(*token)
    assert decoder.tokens == 9


@pytest.mark.parametrize(("cache", "bound", "share"), [("bf16", 2e-2, 0.5), ("f16", 2e-3, 0.5), ("int8", 3e-2, 0.45)])
def test_a_cache_of_fewer_bits(cache: str, bound: float, share: float) -> None:
    q, k, v = numpy.random.default_rng(3).standard_normal((3, 2, 2, 30, 16), dtype=numpy.float32)
    attend = regard.Operator("softmax", causal=True)
    exact, small = attend.decoder(), attend.decoder(cache=cache)
    for t in range(30):
        token = [x[:, :, t : t + 1] for x in (q, k, v)]
        out = small.step(*token)
        assert error(out, exact.step(*token)) < bound
    assert small.nbytes <= share * exact.nbytes
    with pytest.raises(ValueError, match="cache is 'bf61', expected one of 'f32', 'bf16', 'f16', 'int8'"):
        attend.decoder(cache="bf61")


def test_float16_arrays_are_summed_as_float32_and_rounded_once() -> None:
    q = numpy.random.default_rng(4).standard_normal((1, 2, 9, 8)).astype(numpy.float16)
    out = regard.attention(q, q, q)
    exact = regard.attention(*[q.astype(numpy.float32)] * 3)
    assert out.dtype == numpy.float16 and (out == exact.astype(numpy.float16)).all()


def test_rows_of_a_decoder_trade_places(mechanism: str) -> None:
    given = tensors(mechanism, tokens=4)
    per_token = [name for name in given if name in ("q", "k", "v", "x")]
    axis = 1 if "x" in given else -2
    take = lambda t: {**given, **{name: numpy.take(given[name], [t], axis) for name in per_token}}
    flip = lambda token: {name: x[::-1].copy() if name in per_token else x for name, x in token.items()}
    attend = operator(mechanism, causal=True)
    straight, crossed = attend.decoder(), attend.decoder()
    for t in range(3):
        straight.step(**take(t))
        crossed.step(**flip(take(t)))
    crossed.reorder([1, 0])
    assert numpy.array_equal(straight.step(**take(3)), crossed.step(**take(3)))
    straight.reorder([1])
    one = {name: x[:1] if name in per_token else x for name, x in take(3).items()}
    assert straight.step(**one).shape[0] == 1
    with pytest.raises(ValueError, match="row 4 does not exist"):
        straight.reorder([4])
    with pytest.raises(ValueError, match="expected"):
        straight.step(**take(3))


def test_nothing_panics_on_numbers_that_are_not_finite(mechanism: str) -> None:
    for bad in (numpy.nan, numpy.inf, -numpy.inf):
        given = tensors(mechanism)
        for name in given:
            poisoned = {**given, name: numpy.full_like(given[name], bad)}
            out, saved = operator(mechanism, causal=True).forward(**poisoned)
            assert set(saved.backward(out)) == set(given)


def test_wanted_gradients_alone() -> None:
    given = tensors("softmax")
    attend = operator("softmax")
    out, saved = attend.forward(**given)
    whole = attend.backward(saved, out)
    assert list(attend.backward(saved, out, ["k"])) == ["k"]
    assert numpy.array_equal(attend.backward(saved, out, "k")["k"], whole["k"])
    with pytest.raises(ValueError, match="'bias' has no gradient here, expected some of q, k, v"):
        attend.backward(saved, out, ["bias"])


def test_draws_come_from_the_seed() -> None:
    given = tensors("performer")
    outs = [operator("performer", seed=seed)(**given) for seed in (0, 0, 1)]
    assert numpy.array_equal(outs[0], outs[1])
    assert not numpy.array_equal(outs[0], outs[2])
    out, saved = operator("performer", seed=3).forward(**given)
    assert list(saved.draws) == ["projection"] == list(operator("performer").constants)
    assert saved.draws["projection"].shape == (12, 8)
    assert numpy.array_equal(out, operator("performer")(**given, projection=saved.draws["projection"]))
    assert "projection" not in saved.backward(out)


def test_dropout_comes_from_its_key() -> None:
    given = tensors("softmax")
    drop = lambda key: regard.attention(**given, dropout=0.5, dropout_key=key)
    assert numpy.array_equal(drop(1), drop(1))
    assert not numpy.array_equal(drop(1), drop(2))
    assert not numpy.array_equal(drop(1), regard.attention(**given))


def test_slopes_bias_scale_and_window() -> None:
    given = tensors("softmax")
    distance = abs(numpy.arange(19)[:, None] - numpy.arange(19))
    slopes = [0.5, 0.25, 0.125, 0.0625]
    bias = numpy.float32([-slope * distance for slope in slopes])
    assert error(regard.softmax(**given, slopes=slopes), regard.softmax(**given, bias=bias)) < 1e-5
    assert numpy.array_equal(
        regard.softmax(**given, slopes=numpy.array(slopes)), regard.softmax(**given, slopes=slopes)
    )
    far = numpy.broadcast_to(numpy.where(distance > 2, numpy.float32(-1e9), numpy.float32(0)), (4, 19, 19))
    assert error(regard.softmax(**given, window=2), regard.softmax(**given, bias=far)) < 1e-5
    doubled = {**given, "q": 2 * given["q"]}
    assert error(regard.softmax(**given, scale=2 / numpy.sqrt(8)), regard.softmax(**doubled)) < 1e-5


def test_a_gaussian_takes_keys_with_and_without_components() -> None:
    given = tensors("gaussian")
    attend = regard.Operator("gaussian")
    out, saved = attend.forward(**given)
    wide = {**given, "k": given["k"][:, :, None]}
    assert numpy.array_equal(out, attend(**wide))
    assert attend.backward(saved, out)["k"].shape == given["k"].shape


def test_functions_are_their_mechanisms() -> None:
    names = {
        "softmax": regard.softmax,
        "gaussian": regard.gaussian,
        "mgk": regard.gaussian_mixture,
        "linear": regard.linear,
        "mlk": regard.linear_mixture,
        "performer": regard.performer,
        "sparse": regard.sparse,
        "scatterbrain": regard.scatterbrain,
        "moa": regard.mixture_of_heads,
        "fastformer": regard.fastformer,
        "cosine": regard.cosine,
    }
    assert set(names) == {facts["name"] for facts in regard.mechanisms()}
    for name, function in names.items():
        given = tensors(name)
        expected = operator(name, causal=True)(**given)
        assert numpy.array_equal(function(**given, causal=True, **OPTIONS.get(name, {})), expected), name
        assert "to out ``[" in " ".join((function.__doc__ or "").split())
        twin = function(**given, causal=True, reference=True, **OPTIONS.get(name, {}))
        assert twin.dtype == numpy.float64 and error(expected, twin) < 2e-5


def test_queries_may_be_other_tokens_than_keys() -> None:
    given = tensors("softmax")
    given["q"] = given["q"][:, :, :3].copy()
    valid = numpy.arange(19) < numpy.array([[19], [4]])
    assert error(regard.softmax(**given, valid=valid), regard.softmax(**given, valid=valid, reference=True)) < 1e-5
    moa = tensors("moa")
    other = numpy.ones((2, 4, 12), numpy.float32)
    out = regard.mixture_of_heads(**moa, x_kv=other, moa__active=2)
    assert error(out, regard.mixture_of_heads(**moa, x_kv=other, moa__active=2, reference=True)) < 2e-5


def test_a_budget_sets_sizes() -> None:
    given = tensors("scatterbrain", tokens=64)
    _, saved = regard.Operator("scatterbrain", budget="1/2").forward(**given)
    _, smaller = regard.Operator("scatterbrain", budget=0.25).forward(**given)
    assert saved.draws["projection"].shape[0] == 2 * smaller.draws["projection"].shape[0]


def test_supports_with_hashes_and_blocks() -> None:
    given = tensors("sparse", tokens=64)
    for kind in ("smyrf", "longformer", "bigbird"):
        sizes = {"support": {"kind": kind, "cluster": 16, "block": 8, "globals": 2, "radius": 4}}
        out, saved = regard.Operator("sparse", **sizes).forward(**given)
        assert error(out, regard.sparse(**given, **sizes, reference=True)) < 1e-5
        assert list(saved.draws) == (["directions"] if kind == "smyrf" else [])
    shared = {"q": given["q"], "v": numpy.repeat(given["v"], 2, axis=1)}
    lsh = regard.Operator("sparse", support__kind="lsh", support__bucket=16)
    assert lsh.inputs == ("q", "v", "rotations")
    assert error(lsh(**shared), lsh.reference(**shared).out) < 1e-5
    layout = numpy.tril(numpy.ones((8, 8), bool))
    block = {"support__kind": "block", "support__block": 8}
    strings = ["1" * (n + 1) + "0" * (7 - n) for n in range(8)]
    first = regard.sparse(**given, **block, support__layout=layout)
    assert numpy.array_equal(first, regard.sparse(**given, **block, support__layout=strings))
