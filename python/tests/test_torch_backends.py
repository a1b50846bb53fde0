"""`regard.torch` on both backends, as part of a model: compiled, under autocast, saved."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import NAMES, OPTIONS, operator, tensors

import regard

torch = pytest.importorskip("torch")

import regard.torch as attentive  # noqa: E402

BACKENDS = ["kernels", "composed"]


def layer(mechanism: str, backend: str | None, **options: Any) -> Any:
    torch.manual_seed(0)
    experts = {"moa__experts": 3} if mechanism == "moa" else {}
    given = {name: value for name, value in OPTIONS.get(mechanism, {}).items() if name != "moa__active"}
    return attentive.MultiheadAttention(16, 2, mechanism, backend=backend, **{**given, **experts, **options})


def tokens(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def results(attend: Any, x: Any, valid: Any) -> list[Any]:
    """The output and all gradients of a module."""
    x = x.clone().requires_grad_()
    out = attend(x, valid=valid)
    return [out, *torch.autograd.grad(out.float().square().sum(), [x, *attend.parameters()])]


@pytest.mark.parametrize("backend", BACKENDS)
def test_modules_compile_in_one_graph(mechanism: str, backend: str) -> None:
    torch._dynamo.reset()
    attend = layer(mechanism, backend, causal=True)
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    x, valid = tokens(2, 19, 16), torch.arange(19) < torch.tensor([[19], [12]])
    for seen, expected in zip(results(compiled, x, valid), results(attend, x, valid)):
        assert torch.allclose(seen, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["bigbird", "smyrf", "lsh"])
def test_supports_compile_in_one_graph(kind: str) -> None:
    torch._dynamo.reset()
    sizes = {"support__block": 4, "support__random": 1, "support__cluster": 8, "support__bucket": 8}
    attend = layer("sparse", "composed", support__kind=kind, **sizes)
    x = tokens(2, 19, 16)
    assert torch.allclose(torch.compile(attend, fullgraph=True, backend="eager")(x), attend(x), atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mechanism", [name for name in ("softmax", "performer", "mgk") if name in NAMES])
def test_functions_compile_in_one_graph(mechanism: str, backend: str) -> None:
    torch._dynamo.reset()
    given = {name: torch.tensor(x) for name, x in tensors(mechanism).items()}
    chosen = {**OPTIONS.get(mechanism, {}), "causal": True}

    def attend(given: dict[str, Any]) -> Any:
        return attentive.attention(**given, mechanism=mechanism, backend=backend, **chosen)

    assert torch.equal(torch.compile(attend, fullgraph=True, backend="eager")(given), attend(given))
    made = operator(mechanism, causal=True)

    def apply(given: dict[str, Any]) -> Any:
        return attentive.apply(made, backend=backend, **given)

    assert torch.equal(torch.compile(apply, fullgraph=True, backend="eager")(given), attend(given))


@pytest.mark.parametrize("backend", BACKENDS)
def test_other_lengths_and_seeds_compile_again(backend: str) -> None:
    torch._dynamo.reset()
    attend = lambda made, q, seed: (
        attentive.apply(made, q=q, k=q, v=q, backend=backend)
        + attentive.attention(q, q, q, "performer", seed=seed, features__rows=12, backend=backend)
    )
    compiled = torch.compile(attend, fullgraph=True, backend="eager")
    for length, seed in ((9, 1), (9, 2), (11, 3), (14, 3)):
        made = regard.Operator("performer", seed=seed, features__rows=12)
        q = tokens(1, 2, length, 8)
        assert torch.allclose(compiled(made, q, seed), attend(made, q, seed), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_compiled_kernels_of_other_types(dtype: Any) -> None:
    torch._dynamo.reset()
    q, k, v = (tokens(2, 2, 9, 8).to(dtype).requires_grad_() for _ in range(3))
    attend = lambda q, k, v: attentive.attention(q, k, v, causal=True)
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    seen, expected = compiled(q, k, v), attend(q, k, v)
    assert seen.dtype == dtype and torch.equal(seen, expected)
    for one, other in zip(*(torch.autograd.grad(out.sum(), (q, k, v)) for out in (seen, expected))):
        assert one.dtype == dtype and torch.equal(one, other)


def test_the_operator_of_a_compiler_passes_its_checks() -> None:
    q, k, v = (tokens(1, 2, 5, 8).requires_grad_() for _ in range(3))
    spec = attentive.settings.settings_of(regard.Operator(causal=True)).spec
    torch.library.opcheck(torch.ops.regard.attend.default, (spec, "q,k,v", [q, k, v]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast(mechanism: str, backend: str) -> None:
    attend = layer(mechanism, backend, causal=True)
    x, valid = tokens(2, 19, 16), torch.arange(19) < torch.tensor([[19], [12]])
    for padding in (None, valid):
        expected = results(attend, x, padding)
        with torch.autocast("cpu", torch.bfloat16):
            seen = results(attend, x, padding)
        for one, other in zip(seen, expected):
            assert torch.isfinite(one).all()
        assert (seen[0].float() - expected[0]).abs().max() <= 0.06 * expected[0].abs().max()


def test_state_moves_between_backends(mechanism: str) -> None:
    kernels, composed = layer(mechanism, None), layer(mechanism, "composed", seed=9)
    composed.reset_parameters()
    x = tokens(2, 19, 16)
    assert not torch.allclose(kernels(x), composed(x), atol=1e-3)
    composed.load_state_dict(kernels.state_dict())
    assert torch.allclose(kernels(x), composed(x), atol=1e-5)
    composed.backend = "kernels"
    assert torch.equal(kernels(x), composed(x))
    moved = kernels.to("meta")
    assert moved(x.to("meta")).device.type == "meta"
    with pytest.raises(ValueError, match="backend is 'gpu'"):
        layer(mechanism, "gpu")


def test_dropout_is_the_same_on_both_backends() -> None:
    x = tokens(2, 19, 16)
    outs = []
    for backend in BACKENDS:
        attend = layer("softmax", backend, dropout=0.5)
        torch.manual_seed(1)
        outs.append(attend(x))
    assert torch.allclose(*outs, atol=1e-5)
