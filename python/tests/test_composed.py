"""Composed forms of `regard.torch` against the kernels, with tensors of the CPU as those of a second device."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from conftest import GOLDEN, NAMES, OPTIONS, cases, error, operator, tensors
from safetensors.numpy import load_file
from test_golden import inputs, options

import regard

torch = pytest.importorskip("torch")

import regard.torch as attentive  # noqa: E402

LAYOUT = ["1010", "0101", "1001", "0110"]

RANDOM = {f"support__{name}": 1 for name in ("radius", "globals", "random")}
RANDOM |= {"support__kind": "bigbird", "support__block": 3}

# Designs beside the default one of each mechanism.
DESIGNS: list[tuple[str, dict[str, Any]]] = [
    ("softmax", {"window": 3}),
    ("softmax", {"slopes": [0.5, 0.25, 0.1, 0.05]}),
    ("softmax", {"dropout": 0.3, "dropout_key": 2**63 + 5}),
    ("softmax", {"scale": 0.7}),
    ("mgk", {"mixture__inference": "hard"}),
    ("mgk", {"mixture__score": "dot"}),
    ("mgk", {"mixture__variances": "paper-1-3", "window": 4, "dropout": 0.2}),
    ("performer", {"features__kind": "plain", "scale": 0.2}),
    ("sparse", {"support__kind": "longformer", "support__radius": 2, "support__globals": 3}),
    ("sparse", {"support__kind": "full"}),
    ("sparse", {"support__kind": "empty"}),
    ("sparse", {"support__kind": "block", "support__block": 5, "support__layout": LAYOUT}),
    ("scatterbrain", {"support__kind": "longformer", "support__radius": 2, "support__globals": 3}),
    ("sparse", RANDOM),
    ("sparse", {"support__kind": "smyrf", "support__cluster": 5}),
    ("sparse", {"support__kind": "lsh", "support__bucket": 5}),
    ("sparse", {"support__kind": "lsh", "support__bucket": 5, "support__cyclic": False}),
    ("scatterbrain", RANDOM),
    ("scatterbrain", {"support__kind": "smyrf", "support__cluster": 5}),
    ("scatterbrain", {"support__kind": "lsh", "support__bucket": 5}),
    ("scatterbrain", {"support__kind": "full"}),
    ("scatterbrain", {"support__kind": "empty"}),
    ("scatterbrain", {"support__kind": "block", "support__block": 5, "support__layout": LAYOUT}),
    ("scatterbrain", {"features__kind": "elu"}),
    ("scatterbrain", {"scatterbrain__combination": "naive"}),
    ("scatterbrain", {"scatterbrain__combination": "naive", "support__kind": "full", "support__radius": 2}),
    ("moa", {"moa__gates": "released"}),
]


@pytest.fixture(autouse=True)
def small_blocks(request: pytest.FixtureRequest):
    """Blocks of a few queries, so that short sequences have several."""
    before = attentive.get_block_bytes()
    attentive.set_block_bytes(3000)
    yield
    attentive.set_block_bytes(before)


def run(attend: regard.Operator, given: dict[str, Any], backend: str | None, **padding: Any) -> dict[str, Any]:
    """The output and all gradients."""
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in given.items()}
    out = attentive.apply(attend, backend=backend, **leaves, **padding)
    slope = torch.linspace(-1, 2, out.numel()).to(out).reshape(out.shape).cos()
    (out * slope).sum().backward()
    return {"out": out.detach(), **{name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}}


def agree(attend: regard.Operator, given: dict[str, Any], bound: float = 5e-5, **padding: Any) -> None:
    kernels, composed = (run(attend, given, backend, **padding) for backend in ("kernels", "composed"))
    assert kernels.keys() == composed.keys()
    largest = max(tensor.abs().max() for name, tensor in kernels.items() if name != "out")
    for name, expected in kernels.items():
        assert torch.isfinite(composed[name]).all(), name
        # Gradients that cancel are held against the others.
        scale = max(expected.abs().max(), 0.1 * largest if name != "out" else 0.0)
        assert (composed[name] - expected).abs().max() <= bound * scale, name


def drawn(mechanism: str, queries: int = 19, keys: int = 19, key_heads: int = 2, seed: int = 0) -> dict[str, Any]:
    """Tensors of a mechanism, with other numbers of keys and of key heads than of queries."""
    given = {name: torch.tensor(x) for name, x in tensors(mechanism, tokens=max(queries, keys), seed=seed).items()}
    if mechanism == "fastformer":
        return given
    if mechanism == "moa":
        x = given["x"]
        return {**given, "x": x[:, :queries], **({"x_kv": x[:, :keys]} if keys != queries else {})}
    heads = {1: [0], 2: [0, 1], 4: [0, 1, 0, 1]}[key_heads]
    given["q"] = given["q"][:, :, :queries]
    for name in "kv":
        chosen = given[name][:, heads][..., :keys, :]
        # No two heads alike.
        given[name] = chosen + torch.arange(key_heads).reshape(-1, *[1] * (chosen.ndim - 2))
    return given


def padded(kind: str, keys: int) -> Any:
    real = torch.tensor([[keys], [max(1, keys - 6)]])
    tokens = torch.arange(keys)
    return {"none": None, "right": tokens < real, "left": tokens >= keys - real}[kind]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padding", ["none", "right", "left"])
def test_every_mechanism_under_every_mask(mechanism: str, causal: bool, padding: str) -> None:
    agree(operator(mechanism, causal=causal), drawn(mechanism), valid=padded(padding, 19))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys", "key_heads"), [(19, 23, 4), (23, 19, 1), (1, 9, 2), (9, 1, 2), (1, 1, 4)])
def test_other_lengths_and_heads(mechanism: str, causal: bool, queries: int, keys: int, key_heads: int) -> None:
    if mechanism == "fastformer":
        pytest.skip("queries and keys are the same tokens")
    given = drawn(mechanism, queries, keys, key_heads)
    query_valid = torch.arange(queries) < torch.tensor([[queries], [max(1, queries - 2)]])
    agree(operator(mechanism, causal=causal), given, valid=padded("left", keys), query_valid=query_valid)
    agree(operator(mechanism, causal=causal), given)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("mechanism", "design"), DESIGNS)
def test_other_designs(mechanism: str, design: dict[str, Any], causal: bool) -> None:
    attend = regard.Operator(mechanism, causal=causal, **{**OPTIONS.get(mechanism, {}), **design})
    shared = design.get("support__kind") == "lsh"
    for queries, keys in ((19, 19),) if shared else ((19, 19), (17, 18), (18, 17)):
        given = drawn(mechanism, queries, keys, 4 if shared else 2)
        if shared:
            del given["k"]
        if design.get("mixture__inference") == "hard":
            del given["log_prior"]
        agree(attend, given, valid=padded("right", keys))


def test_tokens_of_cross_attention_are_not_its_queries() -> None:
    given = drawn("moa")
    given["x_kv"] = given["x"].flip(1)
    agree(operator("moa"), given, valid=padded("right", 19))


@pytest.mark.parametrize("causal", [False, True])
def test_token_first(mechanism: str, causal: bool) -> None:
    given = {name: torch.tensor(x) for name, x in tensors(mechanism, layout="token_first").items()}
    agree(operator(mechanism, causal=causal, layout="token_first"), given, valid=padded("left", 19))


def test_large_blocks_and_chunks(mechanism: str) -> None:
    attentive.set_block_bytes(1 << 26)
    agree(operator(mechanism, causal=True), drawn(mechanism, 150, 150), 1e-4)


def test_large_numbers_stay_finite(mechanism: str) -> None:
    given = drawn(mechanism)
    given = {name: 8 * x if name in ("q", "k", "x") else x for name, x in given.items()}
    for causal in (False, True):
        agree(operator(mechanism, causal=causal), given, 1e-3)


def test_padding_never_matters(mechanism: str) -> None:
    given, valid = drawn(mechanism), padded("right", 19)
    for name in ("q", "k", "v", "x"):
        if name in given:
            given[name][1, ..., 13:, :] = 0
    other = {name: x.clone() for name, x in given.items()}
    for name in ("q", "k", "v", "x"):
        if name in other:
            other[name][1, ..., 13:, :] = float("nan")
    for causal in (False, True):
        seen, expected = (run(operator(mechanism, causal=causal), x, "composed", valid=valid) for x in (other, given))
        for name in seen:
            if name == "q" or mechanism == "fastformer" and name in ("k", "v"):
                # What reads as 0 has no gradient.
                seen[name], expected[name] = (x[name][1, :, :13] for x in (seen, expected))
            assert torch.equal(seen[name], expected[name]), name


def test_the_future_never_matters(mechanism: str) -> None:
    given = drawn(mechanism)
    other = {name: x.clone() for name, x in given.items()}
    for name in ("q", "k", "v", "x"):
        if name in other:
            other[name][..., 12:, :] += 1
    attend = operator(mechanism, causal=True)
    axis = 1 if mechanism in ("moa", "fastformer") else 2
    seen, expected = (attentive.apply(attend, backend="composed", **x).narrow(axis, 0, 12) for x in (other, given))
    assert (seen - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["file"].removesuffix(".safetensors"))
def test_golden_data(case: dict[str, Any]) -> None:
    file = load_file(GOLDEN / case["file"])
    attend = regard.Operator(case["mechanism"], **options(case, file))
    given = {name: torch.tensor(x) for name, x in inputs(file).items()}
    for name, tensor in given.items():
        # Drawn numbers and padding aside.
        tensor.requires_grad_(name in case["options"]["grad"])
    out = attentive.apply(attend, backend="composed", **given)
    assert out.dtype == torch.float64
    out.backward(torch.tensor(file["grad_out"]))
    bound = 1e-9
    assert error(out.detach().numpy(), file["out"]) < bound
    for name in case["options"]["grad"]:
        gradient = given[name].grad
        expected = file[f"grad.{name}"]
        seen = numpy.zeros_like(expected) if gradient is None else gradient.numpy()
        assert error(seen, expected) < bound, name


FUSED = ("softmax", "cosine", "gaussian", "moa")
"""One operation of PyTorch does all the work where the mask is causal or open."""


def test_gradients_of_gradients(mechanism: str) -> None:
    attend = operator(mechanism, causal=True, moa__gates="released")
    given = {name: torch.tensor(x, dtype=torch.float64) for name, x in tensors(mechanism, tokens=5).items()}
    for x in given.values():
        x.requires_grad_()
    function = lambda *values: attentive.apply(attend, backend="composed", **dict(zip(given, values)))
    assert torch.autograd.gradcheck(function, tuple(given.values()), fast_mode=True)
    if mechanism in FUSED:
        with pytest.raises(RuntimeError, match="scaled_dot_product.* is not implemented"):
            torch.autograd.gradgradcheck(function, tuple(given.values()), fast_mode=True)
        valid = torch.ones(2, 5, dtype=torch.bool)
        by_blocks = lambda *values: attentive.apply(attend, backend="composed", valid=valid, **dict(zip(given, values)))
        assert torch.autograd.gradgradcheck(by_blocks, tuple(given.values()), fast_mode=True)
    else:
        assert torch.autograd.gradgradcheck(function, tuple(given.values()), fast_mode=True)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_transforms(mechanism: str) -> None:
    attend, given = operator(mechanism, causal=True), drawn(mechanism)
    many = [torch.stack([x, x / 2]) for x in given.values()]
    valid = padded("right", 19)

    def loss(*values: Any) -> Any:
        return attentive.apply(attend, backend="composed", valid=valid, **dict(zip(given, values))).square().sum()

    seen = torch.vmap(torch.func.grad(loss))(*many)
    for n in range(2):
        expected = torch.func.grad(loss)(*(x[n] for x in many))
        assert (seen[n] - expected).abs().max() <= 1e-5 * expected.abs().max()
    with pytest.raises(ValueError, match="kernels inside a transform of torch.func"):
        torch.vmap(lambda *values: attentive.apply(attend, **dict(zip(given, values))))(*many)


def test_devices_without_memory(mechanism: str) -> None:
    given = drawn(mechanism)
    expected = attentive.apply(operator(mechanism), **given).shape
    out = attentive.apply(operator(mechanism), **{name: x.to("meta") for name, x in given.items()})
    assert out.shape == expected and out.device.type == "meta"
    with torch._subclasses.fake_tensor.FakeTensorMode() as mode:
        fake = {name: mode.from_tensor(x) for name, x in given.items()}
        for backend in ("kernels", "composed"):
            assert attentive.apply(operator(mechanism), backend=backend, **fake).shape == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves(mechanism: str, dtype: Any) -> None:
    given = {name: x.to(dtype) for name, x in drawn(mechanism).items()}
    for padding in (None, padded("right", 19)):
        seen, expected = (run(operator(mechanism), given, b, valid=padding) for b in ("composed", "kernels"))
        for name, tensor in seen.items():
            assert tensor.dtype == dtype
            close = torch.finfo(dtype).eps * 4 * expected[name].float().abs().max()
            assert (tensor.float() - expected[name].float()).abs().max() <= close, name


DEVICES = [name for name in ("cuda", "mps", "xpu") if getattr(torch, name).is_available()]


@pytest.mark.skipif(not DEVICES, reason="no device but the CPU")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("padding", ["none", "left"])
def test_other_devices(mechanism: str, padding: str, device: str) -> None:
    given, valid = drawn(mechanism), padded(padding, 19)
    attend = operator(mechanism, causal=True)
    expected = run(attend, given, "kernels", valid=valid)
    moved = {name: x.to(device) for name, x in given.items()}
    seen = run(attend, moved, None, valid=valid)
    largest = max(x.abs().max() for x in expected.values())
    for name, x in seen.items():
        assert x.device.type == device
        assert (x.cpu() - expected[name]).abs().max() <= 1e-4 * largest, name


def test_errors() -> None:
    q = torch.randn(1, 2, 9, 8)

    def attend(*given: Any, **options: Any) -> Any:
        return attentive.attention(*given, **{"backend": "composed", **options})

    for given, changed, message in (
        ((q, q, q), {"backend": "gpu"}, "backend is 'gpu', expected 'kernels', 'composed' or None"),
        ((q, q[..., :3], q), {}, "tensor 'k' has shape"),
        ((q, q, q[:, :, :3]), {}, "tensor 'v' has shape"),
        ((q, q, q), {"mechanism": "mgk"}, "expected one key a component"),
        ((q, q, q), {"bias": torch.zeros(2, 9, 8)}, r"tensor 'bias' has shape \[2, 9, 8\], expected \[2, 9, 9\]"),
        ((q, q, q), {"valid": torch.ones(1, 8)}, "tensor 'valid' has shape"),
        ((q, q, q), {"wieght": q}, "tensor 'wieght' is no input of softmax"),
        ((q, q), {}, "tensor 'v' is missing"),
        ((q, q[:, :, :0], q[:, :, :0]), {}, "expected every size at least 1"),
        ((q, q.to("meta"), q), {}, "expected one device"),
        ((q.to("meta"), q.to("meta"), q.to("meta")), {"backend": "kernels"}, "tensor 'q' is on meta, expected the CPU"),
        ((q, q, q), {"mechanism": "scatterbrain", "budget": "1/2"}, "a budget has no composed form"),
    ):
        with pytest.raises(ValueError, match=message):
            attend(*given, **changed)
    with pytest.raises(TypeError, match="tensor 'k' is a ndarray, expected a tensor of PyTorch"):
        attend(q, q.numpy(), q)
    with pytest.raises(TypeError, match="tensor 'q' holds int64 numbers"):
        attend(q.long(), q, q)
    with pytest.raises(TypeError, match="tensor 'k' holds float64 numbers"):
        attend(q, q.double(), q)
    with pytest.raises(ValueError, match="block_bytes is 0"):
        attentive.set_block_bytes(0)


def test_draws_are_those_of_the_kernels() -> None:
    given = drawn("performer")
    seen = [attentive.attention(**given, mechanism="performer", seed=7, backend=b) for b in ("kernels", "composed")]
    assert (seen[0] - seen[1]).abs().max() < 1e-5
    other = attentive.attention(**given, mechanism="performer", seed=8, backend="composed")
    assert (seen[0] - other).abs().max() > 1e-3


def peak(function: Any) -> int:
    """The most bytes of tensors alive at a time while a function runs, as PyTorch's allocator counts them."""
    with torch.profiler.profile(profile_memory=True) as seen:
        function()
    alive = most = 0
    memory = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(memory, key=lambda event: event.start_ns()):
        alive += event.nbytes()
        most = max(most, alive)
    return most


def peaks(mechanism: str, lengths: tuple[int, int], padding: bool) -> tuple[int, int]:
    """Bytes of a forward and a backward pass at two lengths."""

    def at(tokens: int) -> int:
        given = {name: torch.tensor(x).requires_grad_() for name, x in tensors(mechanism, tokens).items()}
        valid = torch.ones(2, tokens, dtype=torch.bool) if padding else None
        attend = operator(mechanism, causal=True)
        return peak(lambda: attentive.apply(attend, backend="composed", valid=valid, **given).sum().backward())

    return at(lengths[0]), at(lengths[1])


def test_memory_is_linear(mechanism: str) -> None:
    attentive.set_block_bytes(1 << 20)
    short, long = peaks(mechanism, (512, 1024), padding=True)
    assert 0 < long <= 2.1 * short
    # Half of one matrix of scores.
    assert long < 2 * 4 * 1024 * 1024 * 4 // 2


@pytest.mark.parametrize("mechanism", [name for name in NAMES if name in FUSED])
def test_memory_of_fused_attention_is_linear(mechanism: str) -> None:
    short, long = peaks(mechanism, (1024, 2048), padding=False)
    assert 0 < long <= 2.1 * short
