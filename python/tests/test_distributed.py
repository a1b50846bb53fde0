"""Modules of `regard.torch` under DDP and FSDP: two processes train as one. Skipped where PyTorch has no processes."""

from __future__ import annotations

import datetime
import functools
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import NAMES, OPTIONS

import regard

torch = pytest.importorskip("torch")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("PyTorch without processes that meet by Gloo", allow_module_level=True)

from torch.distributed.checkpoint import state_dict  # noqa: E402
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import regard.torch as attentive  # noqa: E402

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "distributed.py"
CASES = [(name, "kernels") for name in NAMES] + [("mgk", "composed"), ("performer", "composed")]
STEPS = 5
WHOLE = state_dict.StateDictOptions(full_state_dict=True, cpu_offload=True)


class Block(torch.nn.Module):
    """Attention with what is around it."""

    def __init__(self, mechanism: str, backend: str, seed: int) -> None:
        super().__init__()
        given = {name: value for name, value in OPTIONS.get(mechanism, {}).items() if name != "moa__active"}
        given |= {"moa__experts": 4} if mechanism == "moa" else {}
        self.norm = torch.nn.LayerNorm(16)
        self.attend = attentive.MultiheadAttention(
            16, 2, mechanism, causal=True, backend=backend, seed=seed, **given
        )

    def forward(self, x: Any) -> Any:
        return x + self.attend(self.norm(x))


def model(mechanism: str, backend: str = "kernels", seed: int = 0) -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        Block(mechanism, backend, seed), Block(mechanism, backend, seed + 1), torch.nn.Linear(16, 16)
    )


def divided(module: Any, **options: Any) -> Any:
    """The model with each block, and what remains, divided among the processes."""
    for block in module[:2]:
        fully_shard(block, **options)
    return fully_shard(module, **options)


def loss_of(module: Any, step: int, parts: slice) -> Any:
    generator = torch.Generator().manual_seed(step)
    x, y = (torch.randn(4, 19, 16, generator=generator)[parts] for _ in range(2))
    return (module(x) - y).square().mean()


def train(module: Any, parts: slice, steps: int = STEPS) -> list[float]:
    """Losses of a few steps on some rows of each batch, and the one after them."""
    optimizer = torch.optim.AdamW(module.parameters(), 3e-3)
    losses = []
    for step in range(steps):
        loss = loss_of(module, step, parts)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return [*losses, loss_of(module, steps, parts).item()]


@functools.cache
def alone(*case: str) -> list[float]:
    """Losses of one process with whole batches."""
    return train(model(*case), slice(4))


def gradients(module: Any, parts: slice) -> dict[str, Any]:
    """Gradients of the loss of one batch by name."""
    loss_of(module, 0, parts).backward()
    return {name.removeprefix("module."): parameter.grad.clone() for name, parameter in module.named_parameters()}


def routed(module: Any, parts: slice, group: Any) -> dict[str, Any]:
    """Gradients of the losses of the routers alone."""
    x = torch.randn(4, 19, 16, generator=torch.Generator().manual_seed(1))[parts]
    losses = []

    def note(attend: Any, inputs: tuple[Any, ...], _: Any) -> None:
        losses.extend(attentive.router_losses(inputs[0], attend.w_gate, 2, group=group))

    hooks = [part.register_forward_hook(note) for part in module.modules() if hasattr(part, "w_gate")]
    # DDP waits for the gradients of all parameters.
    out = 0 * module(x).sum()
    (out + sum(losses)).backward()
    for hook in hooks:
        hook.remove()
    return {name.removeprefix("module."): parameter.grad.clone() for name, parameter in module.named_parameters()}


def of_case(mechanism: str, backend: str, parts: slice) -> dict[str, Any]:
    """What one process sees of a mechanism under both strategies."""
    seen: dict[str, Any] = {"gradients": gradients(DistributedDataParallel(model(mechanism, backend)), parts)}
    seen["ddp"] = train(DistributedDataParallel(model(mechanism, backend)), parts)
    shards = divided(model(mechanism, backend))
    own = sum(parameter.to_local().numel() for parameter in shards.parameters())
    seen["share"] = own / sum(parameter.numel() for parameter in shards.parameters())
    seen["fsdp"] = train(shards, parts)
    seen["state"] = state_dict.get_model_state_dict(shards, options=WHOLE)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    seen["bf16"] = train(divided(model(mechanism, backend), mp_policy=policy), parts, 2)
    return seen


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    regard.set_threads(1)
    limit = datetime.timedelta(seconds=120)
    torch.distributed.init_process_group("gloo", f"file://{folder}/meet", limit, world_size=2, rank=rank)
    parts = slice(2 * rank, 2 * rank + 2)
    seen: dict[Any, Any] = {case: of_case(*case, parts) for case in CASES}
    if "moa" in NAMES:
        seen["routers"] = routed(DistributedDataParallel(model("moa")), parts, torch.distributed.group.WORLD)
    # Draws of another seed in each process.
    for strategy in (DistributedDataParallel, divided):
        module = strategy(model("performer", seed=rank))
        loss_of(module, 0, parts)
        seen[strategy.__name__] = next(module.buffers()).clone()
    shards = divided(model("mgk"))
    try:
        attentive.apply(regard.Operator(), q=shards[0].attend.log_prior, k=None, v=None)
    except ValueError as error:
        seen["refused"] = str(error)
    compiled = torch.compile(divided(model("mgk")), backend="aot_eager")
    seen["compiled"] = train(compiled, parts, 2)
    torch.save(seen, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors are too small for more, here as in the two processes."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    regard.set_threads(1)
    yield
    torch.set_num_threads(count)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, Any]]:
    """What two processes have seen."""
    folder = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(worker, (str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def together(ranks: list[dict[Any, Any]], case: Any, what: str) -> list[float]:
    """Losses of the batches of which each process had half."""
    return [(a + b) / 2 for a, b in zip(*(rank[case][what] for rank in ranks))]


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_gradients_of_two_processes_are_those_of_the_batch(ranks: list[Any], case: tuple[str, str]) -> None:
    expected = gradients(model(*case), slice(4))
    for rank in ranks:
        assert set(rank[case]["gradients"]) == set(expected)
        for name, gradient in rank[case]["gradients"].items():
            # The shift of all keys by a bias cancels in a softmax: its gradient is rounding.
            bound = 1e-5 * max(expected[name].abs().max().item(), 1e-3)
            assert (gradient - expected[name]).abs().max() <= bound, name


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_losses_of_two_processes_are_those_of_one(ranks: list[Any], case: tuple[str, str], strategy: str) -> None:
    expected = alone(*case)
    assert expected[-2] < expected[0] + 0.5 and expected[0] != expected[-2]
    assert together(ranks, case, strategy) == pytest.approx(expected, abs=5e-6)


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_each_process_has_half_of_the_parameters(ranks: list[Any], case: tuple[str, str]) -> None:
    shares = [rank[case]["share"] for rank in ranks]
    assert sum(shares) == pytest.approx(1) and max(shares) < 0.51


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_what_two_processes_save_one_loads(ranks: list[Any], case: tuple[str, str]) -> None:
    # The second process leaves the whole to the first.
    assert not ranks[1][case]["state"]
    module = model(*case, seed=7)
    module.load_state_dict(ranks[0][case]["state"])
    assert loss_of(module, STEPS, slice(4)).item() == pytest.approx(together(ranks, case, "fsdp")[-1], abs=1e-6)


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_parameters_of_16_bits(ranks: list[Any], case: tuple[str, str]) -> None:
    seen, expected = together(ranks, case, "bf16"), alone(*case)[:3]
    assert seen == pytest.approx(expected, abs=0.02) and seen != pytest.approx(expected, abs=1e-6)


@pytest.mark.skipif("moa" not in NAMES, reason="no mixture of heads")
def test_routers_are_balanced_over_all_processes(ranks: list[Any]) -> None:
    expected, apart = routed(model("moa"), slice(4), None), routed(model("moa"), slice(2), None)
    for name in ("0.attend.w_gate", "1.attend.w_gate"):
        bound = 1e-5 * expected[name].abs().max()
        assert (apart[name] - expected[name]).abs().max() > bound
        for rank in ranks:
            assert (rank["routers"][name] - expected[name]).abs().max() <= bound


def test_draws_are_sent_by_one_strategy_and_kept_by_the_other(ranks: list[Any]) -> None:
    first, second = (rank["DistributedDataParallel"] for rank in ranks)
    assert torch.equal(first, second)
    assert not torch.equal(*(rank["divided"] for rank in ranks)) and torch.equal(first, ranks[0]["divided"])


def test_shards_are_refused(ranks: list[Any]) -> None:
    assert all(rank["refused"].startswith("tensor 'q' is a DTensor, expected a whole one") for rank in ranks)


def test_divided_modules_compile(ranks: list[Any]) -> None:
    seen = [(a + b) / 2 for a, b in zip(*(rank["compiled"] for rank in ranks))]
    assert seen == pytest.approx(alone("mgk", "kernels")[:3], abs=5e-6)


def start(count: int, *arguments: str) -> list[float]:
    """Losses that the example prints under ``count`` processes."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    command = [*torchrun, str(EXAMPLE), "--mechanism", "mgk", "--batch", "4", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    lines = [line.split() for line in ended.stdout.splitlines()]
    return [float(loss) for _, loss in lines]


def test_the_example_goes_on_under_another_strategy_and_number(tmp_path: Path) -> None:
    file = str(tmp_path / "model.pt")
    whole = start(2, "--strategy", "ddp", "--steps", "4")
    first = start(2, "--strategy", "fsdp", "--steps", "2", "--checkpoint", file)
    rest = start(1, "--strategy", "ddp", "--steps", "4", "--checkpoint", file, "--resume")
    assert len(whole) == 4 and whole[-1] < whole[0]
    assert [*first, *rest] == pytest.approx(whole, abs=1e-5)


@pytest.mark.parametrize(
    ("processes", "arguments", "expected"),
    [
        (None, [], "started alone; expected torchrun"),
        ("3", [], "--batch is 16 with 3 processes; expected a multiple of them"),
        ("1", ["--resume"], "--resume without --checkpoint"),
    ],
)
def test_the_example_says_how_to_start_it(
    processes: str | None,
    arguments: list[str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    monkeypatch.setattr(sys, "argv", [EXAMPLE.name, *arguments])
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if processes is not None:
        monkeypatch.setenv("WORLD_SIZE", processes)
    with pytest.raises(SystemExit):
        importlib.import_module(EXAMPLE.stem).main()
    assert expected in capsys.readouterr().err
