"""Two parties that are timed against each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from .agreement import Agreement, compare
from .clock import Party, Patience, in_turns, timed
from .results import Bound, Result

Outputs = torch.Tensor | tuple[torch.Tensor, ...]
PASSES = {"forward": "forward", "both": "forward + backward"}


@dataclass(frozen=True)
class Side:
    """A function of tensors that it closes over."""

    function: Callable[[], Outputs]
    inputs: Sequence[torch.Tensor]
    """Those that gradients are wanted of."""

    def party(self, passes: str) -> Party:
        """Runs it, forward alone or with the gradients of all inputs. Gradients of the output are in place before."""
        if passes == "forward":
            return timed(torch.no_grad()(self.function))
        with torch.no_grad():
            outputs = self.function()
        grads = tuple(_gradient(out) for out in _tuple(outputs))
        return timed(lambda: torch.autograd.grad(_tuple(self.function()), self.inputs, grads))

    def output(self) -> torch.Tensor:
        """What it returns, where that is one tensor."""
        (out,) = _tuple(self.function())
        return out

    def once(self) -> object:
        """Runs it, with the gradients of all inputs; nothing ran before."""
        outputs = _tuple(self.function())
        return torch.autograd.grad(outputs, self.inputs, tuple(torch.ones_like(out) for out in outputs))


def _tuple(outputs: Outputs) -> tuple[torch.Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _gradient(out: torch.Tensor) -> torch.Tensor:
    return torch.randn(out.shape, generator=torch.Generator().manual_seed(1))


@dataclass(frozen=True)
class Case:
    """A row of the table before it is measured."""

    what: str
    size: str
    other: str
    ours: Party
    theirs: Party | None
    bound: Bound
    check: Callable[[], Agreement]
    same: bool = True
    note: str = ""

    def measure(self, patience: Patience) -> Result:
        """Checks, then times. No time is taken of what is wrong."""
        start = time.perf_counter()
        agreement = self.check()
        checking = time.perf_counter() - start
        result = Result(
            self.what,
            self.size,
            self.other,
            bound=self.bound,
            agreement=agreement.words(),
            disagrees=not agreement.holds,
            same=self.same,
            note=self.note,
        )
        if result.disagrees:
            return result
        parties = [self.ours] if self.theirs is None else [self.ours, self.theirs]
        ours, *theirs = in_turns(parties, patience.after(checking))
        return Result(**{**vars(result), "ours": ours, "theirs": theirs[0] if theirs else None})


def cases(
    what: str,
    length: int,
    other: str,
    ours: Side,
    theirs: Side | None,
    bounds: Mapping[str, Bound],
    check: Callable[[str], Agreement] | Side | None = None,
    size: str = "",
    **more: bool | str,
) -> Iterator[Case]:
    """A case for each pass in ``bounds``. Ours is checked against ``theirs``, against another side with the same
    inputs, or as a function of the pass says."""
    for passes, bound in bounds.items():

        def agree(passes: str = passes) -> Agreement:
            if callable(check):
                return check(passes)
            other_side = check or theirs
            assert other_side is not None, "a case without a peer has a check of its own"
            return agreement(ours, other_side, passes)

        yield Case(
            what=f"{what}, {PASSES[passes]}",
            size=", ".join(part for part in (f"N = {length}", size) if part),
            other=other,
            ours=ours.party(passes),
            theirs=None if theirs is None else theirs.party(passes),
            bound=bound,
            check=agree,
            **more,  # type: ignore[arg-type]
        )


def agreement(ours: Side, theirs: Side, passes: str) -> Agreement:
    """Compares outputs, and with both passes gradients too."""
    with torch.no_grad():
        if passes == "forward":
            return compare(ours.output, theirs.output, (), None)
        grad_out = _gradient(theirs.output())
    return compare(ours.output, theirs.output, ours.inputs, grad_out)
