"""Trains a small character model with any mechanism by several processes, under DDP or FSDP.

    torchrun --nproc-per-node 2 examples/distributed.py --mechanism mgk --strategy ddp
    torchrun --nproc-per-node 2 examples/distributed.py --mechanism mgk --strategy fsdp --checkpoint mgk.pt
    torchrun --nproc-per-node 1 examples/distributed.py --mechanism mgk --checkpoint mgk.pt --resume --steps 40

A step has the same batch on any number of processes, which take equal parts of it, so the losses differ by the order of
sums alone. The checkpoint is the whole model, whatever the strategy and the number of processes that wrote it.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from loss_curve import TEXT, Model, Sizes, read, values
from torch import distributed, nn
from torch.distributed.checkpoint import state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import regard
from regard.torch import MultiheadAttention, router_losses

WHOLE = state_dict.StateDictOptions(full_state_dict=True, cpu_offload=True)
"""States as one process would have them."""


def join() -> torch.device:
    """Meets the other processes that torchrun has started: with NCCL where each has a GPU, else with Gloo."""
    local, neighbours = (int(os.environ[name]) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    if torch.cuda.is_available():
        torch.cuda.set_device(local)
        distributed.init_process_group("nccl")
        return torch.device("cuda", local)
    distributed.init_process_group("gloo")
    # Processes of one machine share its processors.
    regard.set_threads(max(1, (os.cpu_count() or 1) // neighbours))
    return torch.device("cpu")


def build(vocabulary: int, sizes: Sizes, mechanism: str, options: dict[str, Any]) -> Model:
    """The model before the first step: the same parameters and the same draws in every process."""
    torch.manual_seed(0)
    attentions = [
        MultiheadAttention(sizes.width, sizes.heads, mechanism, causal=True, seed=layer, **options)
        for layer in range(sizes.layers)
    ]
    return Model(vocabulary, sizes, attentions)


def share(model: Model, strategy: str) -> nn.Module:
    """The model with its gradients averaged over processes, and with ``fsdp`` its parameters divided among them."""
    if strategy == "ddp":
        return DistributedDataParallel(model)
    # DDP does this itself, FSDP does not: of what differs, each process would keep its own part.
    for tensor in (*model.parameters(), *model.buffers()):
        distributed.broadcast(tensor.detach(), 0)
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def watch_routers(model: nn.Module) -> list[torch.Tensor]:
    """A list to which each pass adds what a mixture of heads adds to the loss; it stays empty for other mechanisms."""
    losses: list[torch.Tensor] = []

    def note(attention: MultiheadAttention, inputs: tuple[torch.Tensor, ...], _: torch.Tensor) -> None:
        active = attention.operator.options["moa"]["active"]
        # The balance is that of the whole batch, which all processes count together.
        balance, z = router_losses(inputs[0], attention.w_gate, active, group=distributed.group.WORLD)
        losses.append(0.01 * balance + 0.001 * z)

    for module in model.modules():
        if isinstance(module, MultiheadAttention) and module.operator.mechanism == "moa":
            # Inside the pass of its block, where FSDP has put the parameters together.
            module.register_forward_hook(note)
    return losses


def rows(text: torch.Tensor, sizes: Sizes, step: int) -> torch.Tensor:
    """The rows of a step's batch that are this process's: equal parts, so that the mean of means is the mean."""
    generator = torch.Generator().manual_seed(step)
    places = torch.randint(len(text) - sizes.context, (sizes.batch,), generator=generator)
    own = places.chunk(distributed.get_world_size())[distributed.get_rank()]
    return torch.stack([text[place : place + sizes.context + 1] for place in own.tolist()])


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Writes a checkpoint. All processes give their parts, the first one writes."""
    state = {
        "step": step,
        "model": state_dict.get_model_state_dict(model, options=WHOLE),
        "optimizer": state_dict.get_optimizer_state_dict(model, optimizer, options=WHOLE),
    }
    if distributed.get_rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".tmp")
        torch.save(state, part)
        part.replace(path)
    distributed.barrier()


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Reads a checkpoint, in every process, and says after how many steps it was written."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    state_dict.set_model_state_dict(model, state["model"], options=WHOLE)
    state_dict.set_optimizer_state_dict(model, optimizer, state["optimizer"], options=WHOLE)
    step: int = state["step"]
    return step


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A small model trained by several processes; start it by torchrun.")
    parser.add_argument("--mechanism", default="softmax")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the mechanism")
    parser.add_argument("--strategy", choices=("ddp", "fsdp"), default="ddp")
    parser.add_argument("--steps", type=int, default=20, help="in all, those before --resume included")
    parser.add_argument("--batch", type=int, default=16, help="of all processes together")
    parser.add_argument("--text", type=Path, default=TEXT, help="UTF-8, plain or gzip (default: plays of Shakespeare)")
    parser.add_argument("--checkpoint", type=Path, help="a file to write at the end; all processes must see it")
    parser.add_argument("--resume", action="store_true", help="go on from --checkpoint")
    given = parser.parse_args()
    processes = os.environ.get("WORLD_SIZE")
    if processes is None:
        parser.error("started alone; expected torchrun --nproc-per-node N distributed.py")
    if given.batch < 1 or given.batch % int(processes):
        parser.error(f"--batch is {given.batch} with {processes} processes; expected a multiple of them")
    if given.resume and given.checkpoint is None:
        parser.error("--resume without --checkpoint; expected the file to go on from")
    return given


def main() -> None:
    """Trains, and prints the loss of every step."""
    given = arguments()
    device = join()
    text, vocabulary = read(given.text)
    sizes = Sizes(batch=given.batch)
    model = build(vocabulary, sizes, given.mechanism, values(given.option)).to(device)
    routers = watch_routers(model)
    shared = share(model, given.strategy)
    # From here on processes may draw different numbers, as those of dropout should be.
    torch.manual_seed(1 + distributed.get_rank())
    optimizer = torch.optim.AdamW(shared.parameters(), 1e-3)
    done = load(given.checkpoint, shared, optimizer) if given.resume else 0
    for step in range(done, given.steps):
        batch = rows(text, sizes, step).to(device)
        loss = functional.cross_entropy(shared(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        (loss + sum(routers)).backward()
        routers.clear()
        nn.utils.clip_grad_norm_(shared.parameters(), 1.0)
        optimizer.step()
        total = loss.detach().clone()
        distributed.all_reduce(total)
        if distributed.get_rank() == 0:
            print(f"{step + 1:5} {total.item() / distributed.get_world_size():.7f}", flush=True)
    if given.checkpoint is not None:
        save(given.checkpoint, shared, optimizer, max(done, given.steps))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
