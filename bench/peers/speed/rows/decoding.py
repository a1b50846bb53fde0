"""One token of decoding behind a long context: states of constant size against a full cache."""

from __future__ import annotations

from collections.abc import Iterator

from .. import program
from ..results import Bound, Result, skipped
from . import Settings, row

SHORT, LONG = 2048, 32768
CONSTANT = ("linear", "mlk", "scatterbrain:support.kind=local,support.radius=32,features.rows=32")


@row("decode")
def token(settings: Settings) -> Iterator[Result]:
    what = "decoding a token"
    mechanisms = [word for name in ("softmax", *CONSTANT) for word in ("--mechanism", name)]
    repeats = "5" if settings.quick else "31"
    lengths = f"{SHORT},{LONG}"
    try:
        found = settings.program.bench("--level", "decode", "--lengths", lengths, "--repeats", repeats, *mechanisms)
    except program.Unavailable as error:
        yield skipped(what, str(error))
        return
    labels = list(dict.fromkeys(m["label"] for m in found))
    at = {(m["label"], m["length"]): m for m in found}
    exact = at[labels[0], LONG]
    for label in labels[1:]:
        short, long = at[label, SHORT], at[label, LONG]
        words, wrong = program.check(long)
        name = f"{what}, {label.partition(':')[0]}"
        if wrong:
            yield Result(name, "", "our softmax", agreement=words, disagrees=True)
            continue
        ours = program.times(long, "token")
        yield Result(
            name,
            f"context {LONG}",
            "our softmax, full cache",
            ours,
            program.times(exact, "token"),
            bound=Bound(ratio=0.02),
            agreement=words,
            same=False,
        )
        before = program.times(short, "token")
        bytes_ = f"state {long['state_bytes'] / 1024:.0f} KiB, at the short context {short['state_bytes'] / 1024:.0f}"
        bound = Bound(ratio=1.1) if long["state_bytes"] == short["state_bytes"] else Bound(ratio=0.0)
        size = f"context {LONG}"
        yield Result(name, size, f"itself at {SHORT}", ours, before, bound=bound, same=False, note=bytes_)
