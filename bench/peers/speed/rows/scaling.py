"""One thread and two."""

from __future__ import annotations

from collections.abc import Iterator

from .. import program
from ..case import PASSES
from ..results import Bound, Result, skipped
from . import Settings, row

MECHANISMS = (
    "softmax",
    "mgk",
    "linear",
    "mlk",
    "performer:features.rows=32",
    "sparse:support.kind=local",
    "sparse:support.kind=smyrf",
    "sparse:support.kind=lsh",
    "scatterbrain:features.rows=16",
    "fastformer",
    "moa",
)
LENGTH = 2048


@row("threads")
def threads(settings: Settings) -> Iterator[Result]:
    what = "two threads"
    if settings.threads < 2:
        yield skipped(what, "--threads is 1")
        return
    for causal in (False, True):
        mechanisms = [word for name in MECHANISMS for word in ("--mechanism", name)]
        effort = ("--repeats", "3" if settings.quick else "15", "--seconds", "0.5" if settings.quick else "2")
        flags = ("--causal",) if causal else ()
        sizes = ("--lengths", str(LENGTH), "--threads-sweep", "1,2")
        try:
            found = settings.program.bench(*sizes, *effort, *flags, *mechanisms)
        except program.Unavailable as error:
            yield skipped(what, str(error))
            return
        at = {(m["label"], m["threads"]): m for m in found}
        for label in dict.fromkeys(m["label"] for m in found):
            one, two = at[label, 1], at[label, 2]
            words, wrong = program.check(two)
            for passes, name in PASSES.items():
                yield Result(
                    f"{what}: {'causal ' if causal else ''}{label}, {name}",
                    f"N = {LENGTH}",
                    "one thread",
                    program.times(two, passes),
                    program.times(one, passes),
                    bound=Bound(ratio=1 / 1.85),
                    agreement=words,
                    disagrees=wrong,
                    same=False,
                )
