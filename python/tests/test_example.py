"""The example trains, and with the same curve as with the attention of PyTorch. Skipped where PyTorch is missing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

PATH = Path(__file__).resolve().parents[1] / "examples" / "loss_curve.py"


@pytest.fixture(scope="module")
def example() -> Any:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("loss_curve", PATH)
    assert spec is not None and spec.loader is not None
    module = sys.modules["loss_curve"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def curves(example: Any, mechanism: str, steps: int, **options: Any) -> tuple[list[float], list[float]]:
    """Losses of the model of PyTorch and of ours."""
    text, vocabulary = example.read(example.TEXT)
    sizes = example.Sizes(width=32, heads=2, layers=2, context=48, batch=8)
    theirs, ours = (
        example.train(model, text, sizes, steps)[0] for model in example.models(vocabulary, sizes, mechanism, **options)
    )
    return theirs, ours


def test_softmax_has_the_loss_curve_of_pytorch(example: Any) -> None:
    theirs, ours = curves(example, "softmax", 60)
    assert theirs[-1] < theirs[0] - 0.5
    assert max(abs(a - b) for a, b in zip(ours, theirs)) < 1e-4


@pytest.mark.parametrize(
    ("mechanism", "options"),
    [("mgk", {"keys__components": 2}), ("linear", {}), ("scatterbrain", {"support__radius": 8})],
)
def test_other_mechanisms_train(example: Any, mechanism: str, options: dict[str, Any]) -> None:
    theirs, ours = curves(example, mechanism, 60, **options)
    assert ours != theirs
    assert ours[-1] < ours[0] - 0.5


def test_the_program_prints_both_curves(
    example: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["loss_curve.py", "--mechanism", "mlk", "--option", "keys__components=3", "--steps", "2"]
    )
    example.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["step", "PyTorch", "mlk"] and "largest difference" in lines[-1]
