"""`regard.torch` as a citizen of autograd. Skipped where PyTorch is missing."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import numpy
import pytest
from conftest import GOLDEN, NAMES, OPTIONS, operator, tensors
from safetensors.numpy import load_file

import regard

torch = pytest.importorskip("torch")
functional = torch.nn.functional

import regard.torch as attentive  # noqa: E402


def close(seen: Any, expected: Any, bound: float = 2e-5) -> bool:
    return bool((seen - expected).abs().max() <= bound * expected.abs().max().clamp(min=1e-30))


def draw(*shape: int, grad: bool = True) -> Any:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).requires_grad_(grad)


def leaves(mechanism: str, dtype: Any = torch.float32, **sizes: Any) -> dict[str, Any]:
    return {name: torch.tensor(x, dtype=dtype).requires_grad_() for name, x in tensors(mechanism, **sizes).items()}


def layer(mechanism: str, embed_dim: int = 16, **options: Any) -> Any:
    torch.manual_seed(0)
    experts = {"moa__experts": 3} if mechanism == "moa" else {}
    given = {name: value for name, value in OPTIONS.get(mechanism, {}).items() if name != "moa__active"}
    return attentive.MultiheadAttention(embed_dim, 2, mechanism, **{**given, **experts, **options})


@pytest.mark.parametrize("causal", [False, True])
def test_softmax_is_that_of_pytorch(causal: bool) -> None:
    q, k, v = draw(2, 4, 33, 16), draw(2, 4, 33, 16), draw(2, 4, 33, 12)
    q2, k2, v2 = (x.detach().clone().requires_grad_() for x in (q, k, v))
    weights = draw(2, 4, 33, 12, grad=False)
    (attentive.attention(q, k, v, causal=causal) * weights).sum().backward()
    expected = functional.scaled_dot_product_attention(q2, k2, v2, is_causal=causal)
    (expected * weights).sum().backward()
    assert close(attentive.attention(q, k, v, causal=causal), expected)
    for seen, other in ((q, q2), (k, k2), (v, v2)):
        assert close(seen.grad, other.grad)


def test_checkpointing_keeps_no_tensor() -> None:
    x, real = draw(1, 2, 33, 8), torch.arange(33)[None] < 30
    kept: list[weakref.ref[Any]] = []

    def block(x: Any) -> Any:
        # The memory of the keys lives as long as somebody refers to it.
        memory = numpy.full(x.shape, 0.5, numpy.float32)
        kept.append(weakref.ref(memory))
        return attentive.attention(x, torch.from_numpy(memory), 2 * x, valid=real, causal=True)

    expected = torch.autograd.grad(block(x).square().sum(), x)[0]
    kept.clear()
    out = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
    gc.collect()
    assert kept[0]() is None, "the keys are still in memory"
    assert torch.equal(torch.autograd.grad(out.square().sum(), x)[0], expected)


def test_padding_that_changes_between_the_passes_changes_nothing() -> None:
    given = leaves("softmax", torch.float64, tokens=5)
    real = torch.ones(given["q"].shape[0], 5, dtype=torch.bool)
    out = attentive.attention(*given.values(), valid=real)
    expected = torch.autograd.grad(out.sum(), given["v"], retain_graph=True)[0]
    real[:, 2:] = False
    assert torch.equal(torch.autograd.grad(out.sum(), given["v"])[0], expected)


def test_gradients_pass_gradcheck(mechanism: str) -> None:
    given = leaves(mechanism, torch.float64, tokens=5)
    attend = operator(mechanism, causal=True, moa__gates="released")
    function = lambda *values: attentive.apply(attend, **dict(zip(given, values)))
    assert torch.autograd.gradcheck(function, tuple(given.values()), fast_mode=True)


def test_kernels_are_the_twins_in_float32(mechanism: str) -> None:
    small, wide = leaves(mechanism), leaves(mechanism, torch.float64)
    valid = torch.arange(19) < torch.tensor([[19], [8]])
    for given in (small, wide):
        attentive.apply(operator(mechanism, causal=True), **given, valid=valid).square().sum().backward()
    for name, tensor in small.items():
        assert close(tensor.grad.double(), wide[name].grad, 5e-4), name


def test_tensors_pass_without_a_copy() -> None:
    q, k, v = (draw(1, 2, 9, 8, grad=False) for _ in range(3))
    attend = regard.Operator()
    out, saved = attend.forward(q, k, v)
    assert isinstance(out, torch.Tensor) and out.dtype == torch.float32
    before = saved.backward(out, ["q"])["q"].tolist()
    v.mul_(2)
    assert saved.backward(out, ["q"])["q"].tolist() != before, "the kernel reads what lies in the tensor"
    array, _ = attend._native.forward({"q": q, "k": k, "v": v})
    assert torch.from_dlpack(array).data_ptr() == numpy.asarray(array).__array_interface__["data"][0]
    with pytest.raises(BufferError, match="detach"):
        attend(q.requires_grad_(), k, v)


def test_strided_tensors_and_gradients() -> None:
    x = draw(2, 9, 3, 4, 8)
    q, k, v = (x[:, :, n].transpose(1, 2) for n in range(3))
    attentive.attention(q, k, v).sum().backward()
    seen, x.grad = x.grad, None
    functional.scaled_dot_product_attention(q, k, v).sum().backward()
    assert close(seen, x.grad)


def test_only_what_is_asked_for_is_differentiated() -> None:
    q, k, v = draw(1, 2, 9, 8), draw(1, 2, 9, 8, grad=False), draw(1, 2, 9, 8)
    attentive.attention(q, k, v).sum().backward()
    assert q.grad is not None and k.grad is None and v.grad is not None
    with torch.no_grad():
        assert not attentive.attention(q, k, v).requires_grad
    assert not attentive.attention(q.detach(), k, v.detach()).requires_grad


def test_changes_in_place_are_noticed() -> None:
    q, k, v = (draw(1, 2, 9, 8) * 1 for _ in range(3))
    out = attentive.attention(q, k, v)
    v.detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    out = attentive.attention(q, k, v)
    out.detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_memory_may_be_released_between_the_passes() -> None:
    q, k, v = (draw(1, 2, 9, 8) for _ in range(3))
    loss = attentive.attention(q, k, v).square().sum()
    expected = torch.autograd.grad(loss, (q, k, v), retain_graph=True)
    storage, numbers, place = q.untyped_storage(), q.detach().clone(), q.data_ptr()
    size = storage.nbytes()
    storage.resize_(0)
    with pytest.raises(ValueError, match="tensor 'q' has no memory, expected numbers"):
        torch.autograd.grad(loss, (q, k, v), retain_graph=True)
    others = [torch.full((size // 4,), 7.0) for _ in range(9)]
    storage.resize_(size)
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(q):
        q.copy_(numbers)
    assert q.data_ptr() != place and len(others) == 9
    for seen, gradient in zip(torch.autograd.grad(loss, (q, k, v)), expected):
        assert torch.equal(seen, gradient)


def test_numbers_that_are_negated_when_read() -> None:
    x = torch.complex(draw(1, 2, 9, 8, grad=False), draw(1, 2, 9, 8, grad=False)).conj().imag
    assert x.is_neg()
    assert torch.equal(attentive.attention(x, x, x), attentive.attention(*3 * [x.clone()]))


@pytest.mark.parametrize("compiled", [False, True])
def test_the_type_is_that_of_the_queries(compiled: bool) -> None:
    attend = layer("performer").bfloat16()
    attend.projection = attend.projection.float()
    x = draw(2, 19, 16, grad=False).bfloat16()
    run = torch.compile(attend, fullgraph=True, backend="eager") if compiled else attend
    assert run(x).dtype == torch.bfloat16


def test_a_graph_is_gone_through_once_unless_retained() -> None:
    q = draw(1, 2, 9, 8)
    loss = attentive.attention(q, q, q).sum()
    loss.backward(retain_graph=True)
    first = q.grad.clone()
    loss.backward()
    assert close(q.grad, 2 * first)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    (gradient,) = torch.autograd.grad(attentive.attention(q, q, q).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_float32_under_autocast() -> None:
    attend = layer("softmax")
    x = draw(2, 9, 16)
    with torch.autocast("cpu", torch.bfloat16):
        out = attend(x)
    out.float().sum().backward()
    assert close(out.float(), attend(x), 0.05) and x.grad is not None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_summed_as_float32_and_rounded_once(dtype: torch.dtype) -> None:
    halves = [draw(2, 3, 9, 8).detach().to(dtype).requires_grad_() for _ in range(3)]
    out = attentive.attention(*halves, causal=True)
    exact = [tensor.detach().float().requires_grad_() for tensor in halves]
    expected = attentive.attention(*exact, causal=True)
    assert out.dtype == dtype and torch.equal(out, expected.to(dtype))
    slope = draw(2, 3, 9, 8).detach().to(dtype)
    gradients = torch.autograd.grad(out, halves, slope)
    for seen, wanted in zip(gradients, torch.autograd.grad(expected, exact, slope.float())):
        assert seen.dtype == dtype and torch.equal(seen, wanted.to(dtype))
    strided = attentive.attention(*(tensor.detach()[:, :, ::2] for tensor in halves))
    assert strided.dtype == dtype and strided.shape == (2, 3, 5, 8)


def test_errors() -> None:
    q = draw(1, 2, 9, 8)
    with pytest.raises(TypeError, match="tensor 'q' holds .*, expected float32"):
        attentive.attention(q.detach().to(torch.int64), q, q)
    with pytest.raises(TypeError, match="tensor 'v' holds float64 numbers, expected float32"):
        attentive.attention(q, q, q.double())
    with pytest.raises(ValueError, match="tensor 'k' has shape"):
        attentive.attention(q, q[..., :3], q)
    for options, message in (
        ({"embed_dim": 15}, "expected a multiple of the heads"),
        ({"key_value_heads": 3}, "expected a divisor of num_heads"),
        ({"layout": "head_first"}, "modules are token first"),
        ({"dropout": 1.5}, "dropout is 1.5"),
        ({"mechanism": "mgk", "mixture__inference": "soft-em"}, "belongs to one length"),
        ({"mechanism": "fastformer", "fastformer__sharing": "head-wise"}, "'query-value' or 'none'"),
        ({"widnow": 3}, "did you mean 'window'"),
    ):
        with pytest.raises(ValueError, match=message):
            layer(**{"mechanism": "softmax", **options})


def test_a_module_learns_all_its_parameters(mechanism: str) -> None:
    attend = layer(mechanism, causal=True)
    x = draw(2, 19, 16)
    out = attend(x)
    assert out.shape == x.shape
    (out * draw(2, 19, 16, grad=False)).sum().backward()
    for name, parameter in attend.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name
        # The prior of linear keys cancels in the output where all are alike; every other parameter matters.
        assert parameter.grad.abs().max() > 0 or name == "k_proj.bias", name


def test_a_module_sees_neither_future_nor_padding(mechanism: str) -> None:
    attend = layer(mechanism, causal=True).eval()
    x = draw(2, 19, 16, grad=False)
    other = x.clone()
    other[:, 12:] += 1
    assert close(attend(x)[:, :12], attend(other)[:, :12], 1e-6)
    attend = layer(mechanism).eval()
    valid = torch.arange(19).expand(2, 19) < 12
    assert close(attend(x, valid=valid)[:, :12], attend(other, valid=valid)[:, :12], 1e-6)
    assert not close(attend(x)[:, :12], attend(other)[:, :12], 1e-3)


def test_a_module_looks_at_other_tokens(mechanism: str) -> None:
    if not next(facts for facts in regard.mechanisms() if facts["name"] == mechanism)["cross"]:
        pytest.skip("no cross-attention")
    attend = layer(mechanism)
    x, other = draw(2, 7, 16), draw(2, 19, 16)
    attend(x, other).sum().backward()
    assert x.grad is not None and other.grad is not None and attend(x, other).shape == x.shape


def test_a_module_is_saved_copied_and_loaded(mechanism: str) -> None:
    attend = layer(mechanism).eval()
    x = draw(2, 19, 16, grad=False)
    assert torch.equal(copy.deepcopy(attend)(x), attend(x))
    fresh = layer(mechanism, seed=9).eval()
    fresh.reset_parameters()
    assert not torch.equal(fresh(x), attend(x))
    fresh.load_state_dict(attend.state_dict())
    assert torch.equal(fresh(x), attend(x))


@pytest.mark.parametrize(
    ("mechanism", "options"),
    [
        ("smgk", {"keys__components": 3}),
        ("smlk", {}),
        ("mgk", {"mixture__learn_variances": True, "mixture__variances": "paper-1-3"}),
        ("mgk", {"mixture__inference": "hard"}),
        ("gaussian", {"mixture__learn_variances": True}),
        ("softmax", {"key_value_heads": 1, "bias": False}),
        ("sparse", {"support__kind": "lsh", "support__bucket": 8}),
        ("sparse", {"support__kind": "smyrf", "support__cluster": 8}),
        ("scatterbrain", {"budget": "1/2"}),
        ("fastformer", {"fastformer__sharing": "none", "fastformer__scores": "released"}),
        ("moa", {"moa__head_width": 5}),
    ],
)
def test_modules_of_other_designs(mechanism: str, options: dict[str, Any]) -> None:
    attend = layer(mechanism, **options)
    x = draw(2, 19, 16)
    attend(x).square().sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in attend.parameters())
    if options.get("mixture__learn_variances"):
        expected = [8**0.5, 3 * 8**0.5][: attend.components]
        assert attend.log_variance.exp().tolist() == pytest.approx(expected)


def test_dropout_while_training() -> None:
    attend = layer("softmax", dropout=0.5)
    x = draw(2, 19, 16, grad=False)
    torch.manual_seed(1)
    first, second = attend(x), attend(x)
    torch.manual_seed(1)
    assert torch.equal(attend(x), first) and not torch.equal(first, second)
    attend.eval()
    assert torch.equal(attend(x), attend(x))


def twins(embed_dim: int = 32, heads: int = 4) -> tuple[Any, Any]:
    """Attention of PyTorch and ours, with the same weights."""
    torch.manual_seed(3)
    theirs = torch.nn.MultiheadAttention(embed_dim, heads, batch_first=True)
    ours = attentive.MultiheadAttention(embed_dim, heads, causal=True)
    with torch.no_grad():
        for name, weight, bias in zip("qkv", theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3)):
            projection = getattr(ours, f"{name}_proj")
            projection.weight.copy_(weight)
            projection.bias.copy_(bias)
        ours.out_proj.load_state_dict(theirs.out_proj.state_dict())
    return theirs, ours


def test_a_model_learns_as_with_the_attention_of_pytorch() -> None:
    """Fifty steps on copying a sequence: the same loss curve."""
    curves = []
    for which in range(2):
        attend = twins()[which]
        torch.manual_seed(4)
        embed, place, head = torch.nn.Embedding(9, 32), torch.nn.Embedding(32, 32), torch.nn.Linear(32, 9)
        mask = torch.nn.Transformer.generate_square_subsequent_mask(15)
        parts = torch.nn.ModuleList([embed, place, attend, head])
        optimizer = torch.optim.Adam(parts.parameters(), 3e-3)
        losses = []
        for step in range(50):
            half = torch.randint(9, (8, 8), generator=torch.Generator().manual_seed(step))
            tokens = torch.cat([half, half], 1)
            x = embed(tokens[:, :-1]) + place.weight[:15]
            y = attend(x) if which else attend(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0]
            loss = functional.cross_entropy(head(x + y)[:, 7:].flatten(0, 1), tokens[:, 8:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        curves.append(losses)
    theirs, ours = (numpy.array(losses) for losses in curves)
    assert theirs[-1] < 0.8 * theirs[0]
    assert abs(ours - theirs).max() < 1e-3, (ours[-1], theirs[-1])


@pytest.mark.skipif("moa" not in NAMES, reason="no mixture of heads")
@pytest.mark.parametrize(
    "name", ["moa_k1", "moa_k2", "moa_k2_padding", "moa_kE", "moa_balanced", "moa_collapsed", "moa_ties"]
)
def test_losses_of_the_router(name: str) -> None:
    file = {key: torch.tensor(x) for key, x in load_file(GOLDEN / f"{name}.safetensors").items()}
    x, w_gate = file["x"].requires_grad_(), file["w_gate"].requires_grad_()
    losses = attentive.router_losses(x, w_gate, file["chosen"].shape[-1], file.get("valid"))
    for loss, kind in zip(losses, ("balance", "z")):
        assert loss.item() == pytest.approx(file[f"{kind}_loss"].item(), rel=1e-11)
        gradients = torch.autograd.grad(loss, (x, w_gate), retain_graph=True)
        for gradient, key in zip(gradients, ("x", "w_gate")):
            expected = file[f"grad_{kind}.{key}"]
            assert (gradient - expected).abs().max() <= 1e-11 * max(1.0, expected.abs().max().item())
