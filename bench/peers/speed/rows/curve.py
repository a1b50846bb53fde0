"""The same model trained with the attention of PyTorch and with ours: the example of the Python package."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType

from ..agreement import BOUND
from ..clock import Times
from ..machine import ROOT
from ..results import Result
from . import Settings, row


def _example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("loss_curve", ROOT / "python" / "examples" / "loss_curve.py")
    if spec is None or spec.loader is None:
        raise ImportError("no example loss_curve.py in this checkout")
    module = sys.modules["loss_curve"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@row("curve")
def loss_curve(settings: Settings) -> Iterator[Result]:
    example = _example()
    text, vocabulary = example.read(example.TEXT)
    sizes, steps = example.Sizes(), 50 if settings.quick else 300
    curves = [example.train(model, text, sizes, steps)[0] for model in example.models(vocabulary, sizes)]
    for step in (1, steps // 3, steps):
        theirs, ours = (curve[step - 1] for curve in curves)
        largest = max(abs(a - b) / b for b, a in zip(*(curve[:step] for curve in curves), strict=True))
        yield Result(
            f"training a character model of 2 layers with softmax, loss at step {step}",
            "64 wide, 128 characters, batch 16",
            "the same model with PyTorch's attention",
            Times.of([ours]),
            Times.of([theirs]),
            unit="nats",
            agreement=f"{largest:.0e}",
            disagrees=largest > BOUND,
            note="agreement: the largest difference of any step up to this one",
        )
