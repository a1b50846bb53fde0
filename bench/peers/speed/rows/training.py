"""Training steps: `regard` and PyTorch, two processes in turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from .. import memory, models, program
from ..clock import Party, Patience, Times, in_turns, timed
from ..results import Bound, Result, skipped
from . import MEMORY, Settings, row

DECODER = "training step, decoder 4 x 256, 256 tokens, batch 8, vocabulary 1000"
DECODER_ARGUMENTS = ("--level", "step", "--lengths", "256", "--batch", "8", "--vocabulary", "1000")
TEXT = "training step, LRA Text recipe, 4096 tokens, batch 4, MGK with 2 heads"
TEXT_ARGUMENTS = (
    *("--level", "step", "--preset", "lra-text", "--mechanism", "mgk", "--lengths", "4096", "--batch", "4"),
    *("--vocabulary", "257", "--set", "model.dropout=0", "--set", "model.attention_dropout=0"),
)


class Stepper:
    """The program as a party: some steps in a process of its own, the median of which counts."""

    def __init__(self, settings: Settings, arguments: Sequence[str], steps: int) -> None:
        self.settings, self.arguments = settings, (*arguments, "--repeats", str(steps))
        self.last: dict[str, Any] = {}

    def __call__(self) -> float:
        (self.last,) = self.settings.program.bench(*self.arguments)
        return program.times(self.last, "step").median


def several(run: Callable[[], object], count: int) -> Party:
    """As many runs one after the other as the other party makes, the median of which counts."""
    party = timed(run)
    return lambda: statistics.median(party() for _ in range(count))


def decoder(length: int) -> Callable[[], None]:
    """A step of the decoder in PyTorch."""
    torch.manual_seed(0)
    model = models.LanguageModel(1000, length, 256, 4, 4, 1024)
    ids = torch.randint(1000, (8, length + 1))
    return models.step(model, lambda: model.loss(ids))


@row("step-decoder")
def language_model(settings: Settings) -> Iterator[Result]:
    steps, rounds = (2, 2) if settings.quick else (5, 7)
    patience = Patience(30.0, rounds, rounds)
    ours = Stepper(settings, DECODER_ARGUMENTS, steps)
    for other, make in _decoders(256).items():
        try:
            theirs = several(make(), steps)
            times = in_turns([ours, theirs], patience)
        except (program.Unavailable, ImportError) as error:
            yield skipped(f"{DECODER}, against {other}", str(error))
            continue
        bound = Bound(ratio=1.0) if other == "PyTorch eager" else Bound()
        yield _result(DECODER, other, ours.last, times, bound)


def _decoders(length: int) -> Mapping[str, Callable[[], Callable[[], None]]]:
    def x_transformers() -> Callable[[], None]:
        from x_transformers import Decoder, TransformerWrapper

        layers = Decoder(dim=256, depth=4, heads=4, attn_flash=True)
        model = TransformerWrapper(num_tokens=1000, max_seq_len=length, attn_layers=layers)
        ids = torch.randint(1000, (8, length + 1))

        def loss() -> torch.Tensor:
            return torch.nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

        return models.step(model, loss)

    return {"PyTorch eager": lambda: decoder(length), "x-transformers": x_transformers}


def classifier(length: int) -> Callable[[], None]:
    """A step of the classifier of the LRA Text recipe, its mixtures dense."""
    torch.manual_seed(0)
    model = models.Classifier(257, length, 64, 2, 2, 128, 2)
    ids, labels = torch.randint(257, (4, length)), torch.tensor([0, 1, 0, 1])
    return models.step(model, lambda: model.loss(ids, labels))


MEMORY["step-text"] = lambda length: {"dense": classifier(length)}


@row("step-text")
def text_classifier(settings: Settings) -> Iterator[Result]:
    if settings.quick:
        yield skipped(TEXT, "takes a minute, left out by --quick")
        return
    ours = Stepper(settings, TEXT_ARGUMENTS, 2)
    try:
        times = in_turns([ours, timed(classifier(4096))], Patience(30.0, 2, 3, 0))
    except program.Unavailable as error:
        yield skipped(TEXT, str(error))
        return
    other = "PyTorch eager, dense"
    yield _result(TEXT, other, ours.last, times, Bound(ratio=0.2))
    theirs = memory.of_side("step-text", "dense", 4096, settings.threads)
    seen = ours.last.get("step_bytes")
    if theirs is None or seen is None:
        yield skipped(f"{TEXT}: memory", "this system does not tell the peak of a process")
        return
    pair = (Times.of([bytes_ / 2**20]) for bytes_ in (seen, theirs))
    note = "ours: bytes allocated, parameters and moments included; theirs: growth of resident memory"
    what = f"{TEXT}: memory"
    yield Result(what, "", other, next(pair), next(pair), unit="MiB", bound=Bound(ratio=0.1), note=note)


def _result(what: str, other: str, measurement: dict[str, Any], times: list[Times], bound: Bound) -> Result:
    words, wrong = program.check(measurement)
    note = "two processes in turns; the check is that of the mechanism against its float64 twin"
    if wrong:
        return Result(what, "", other, bound=bound, agreement=words, disagrees=True)
    ours, theirs = times
    return Result(what, "", other, ours, theirs, bound=bound, agreement=words, note=note)
