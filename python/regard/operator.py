"""A mechanism with its options: forward, backward, float64 twin and decoder."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from . import _native
from ._native import Saved

Tensor = Any
"""Anything with the buffer protocol or DLPack."""


def of_kind(array: Any, like: Any) -> Any:
    """``array`` as the library of ``like`` has them: PyTorch, NumPy, else as it is.

    Without a copy, unless ``like`` is of 16 bits: then it is rounded to the same.
    """
    if array is None:
        return None
    # Whoever has such an object has imported its library.
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and isinstance(like, numpy.ndarray):
        return numpy.asarray(array, dtype=numpy.float16 if like.dtype == numpy.float16 else None)
    if torch is not None and isinstance(like, torch.Tensor):
        tensor = torch.from_dlpack(array)
        return tensor.to(like.dtype) if like.dtype in (torch.float16, torch.bfloat16) else tensor
    return array


class Reference(NamedTuple):
    """Results of a float64 twin."""

    out: Any
    """The output, float64."""
    lse: Any | None
    """Log of the softmax denominator ``[B,H,N]``, where the mechanism has one."""
    gradients: dict[str, Any]
    """Gradients by name of the input; empty without an output gradient."""


class Operator:
    """A differentiable attention mechanism.

    Parameters
    ----------
    mechanism : str
        Its name, one of :func:`regard.mechanisms`; ``smgk`` and ``smlk`` are ``mgk`` and ``mlk`` with shifted keys.
    causal : bool
        Whether query ``i`` sees only keys ``j <= i + S - N``.
    window : int, optional
        Largest distance between a query and a key it sees (softmax, gaussian, mgk).
    scale : float, optional
        Score scale in place of ``1 / sqrt(D)`` (softmax, performer, sparse, scatterbrain).
    slopes : sequence of float, optional
        ALiBi slopes, one a query head (softmax).
    dropout : float
        Probability that a normalised weight becomes 0; mechanisms without weights ignore it.
    dropout_key : int
        Names the draw of the dropout: the same key, the same weights.
    layout : str
        ``"head_first"``: ``q [B,H,N,D]``, ``k [B,Hk,S,D]`` (mixtures ``[B,Hk,M,S,D]``), ``v [B,Hk,S,Dv]``,
        out ``[B,H,N,Dv]``; ``"token_first"``: ``q [B,N,H,D]``, ``k [B,S,Hk,D]`` (mixtures ``[B,S,M,Hk,D]``),
        ``v [B,S,Hk,Dv]``, out ``[B,N,H,Dv]``.
    seed : int
        Draws what a call does not give: projections, directions, rotations. The same numbers as those of
        ``regard attend --seed``.
    **options
        Options by the names of :func:`regard.option_names`, as ``keys={"components": 3}`` or ``keys__components=3``, or
        ``**{"keys.components": 3}``.

    Raises
    ------
    ValueError
        An unknown option (with the nearest known one), or a value that makes no sense.
    """

    def __init__(
        self,
        mechanism: str = "softmax",
        *,
        causal: bool = False,
        window: int | None = None,
        scale: float | None = None,
        slopes: Sequence[float] | None = None,
        dropout: float = 0.0,
        dropout_key: int = 0,
        layout: str = "head_first",
        seed: int = 0,
        **options: Any,
    ) -> None:
        for name, number in (("seed", seed), ("dropout_key", dropout_key)):
            if not 0 <= number < 2**64:
                raise ValueError(f"{name} is {number}, expected an integer from 0 to 2**64 - 1")
        self._name = mechanism
        self._arguments: dict[str, Any] = {
            "layout": layout,
            "scale": scale,
            "slopes": None if slopes is None else [float(slope) for slope in slopes],
            "dropout": dropout,
            "dropout_key": dropout_key,
            "seed": seed,
        }
        self._options = {"causal": causal, "window": window, **options}
        self._native = _native.Operator(mechanism, self._options, **self._arguments)

    @property
    def mechanism(self) -> str:
        """Name of the mechanism."""
        return self._native.mechanism

    @property
    def layout(self) -> str:
        """Order of the axes."""
        layout: str = self._arguments["layout"]
        return layout

    @property
    def options(self) -> dict[str, Any]:
        """All options with their values, those of models among them; tensors may change sizes that nobody chose."""
        options: dict[str, Any] = json.loads(self._native.options_json)
        return options

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, in their order.

        Variances, uniform priors and drawn tensors need not be given. Beside these every call takes ``valid [B,S]``,
        true for real keys, and ``query_valid [B,N]``; softmax takes ``bias [H,N,S]``, and ``moa`` takes ``x_kv``.
        """
        return tuple(self._native.inputs)

    @property
    def constants(self) -> tuple[str, ...]:
        """Those of the inputs that are drawn, not learned: they have no gradient."""
        return tuple(self._native.constants)

    def __call__(self, *tensors: Tensor, **named: Tensor) -> Any:
        """The output alone; see :meth:`forward`."""
        return self.forward(*tensors, **named)[0]

    def forward(self, *tensors: Tensor, **named: Tensor) -> tuple[Any, Saved]:
        """The output, and what :meth:`backward` needs.

        Tensors are float32, in the order of :attr:`inputs` or by name. Contiguous ones are read where they lie; strided
        ones are copied once. float16 and bfloat16 become float32 on the way in, and outputs are rounded to them on the way
        out; all sums are of float32. Outputs are of the kind of the first tensor: NumPy arrays for arrays of NumPy, PyTorch
        tensors for tensors of PyTorch, else :class:`regard.Array`.

        Raises
        ------
        ValueError
            Shapes that do not fit together, a tensor that is missing or unknown.
        TypeError
            An object that does not share its memory, or numbers other than float32.
        """
        given, like = self._named(tensors, named)
        out, saved = self._native.forward(given)
        return of_kind(out, like), saved

    def backward(self, saved: Saved, grad_out: Tensor, wanted: Iterable[str] | None = None) -> dict[str, Any]:
        """Gradients of ``sum(out * grad_out)`` by name, of the shapes of the inputs.

        Only inputs that were given and are not drawn have one; ``wanted`` names those to compute, all by default. May
        be called more than once. Neither inputs nor output may have changed since the forward pass.
        """
        names = None if wanted is None else [wanted] if isinstance(wanted, str) else list(wanted)
        gradients = saved.backward(grad_out, names)
        return {name: of_kind(gradient, grad_out) for name, gradient in gradients.items()}

    def reference(self, *tensors: Tensor, grad_out: Tensor | None = None, **named: Tensor) -> Reference:
        """The float64 twin: the same formula, written to be read, with gradients where ``grad_out`` is given.

        Takes float64 as it is and float32 through a copy. Slow: time and memory grow with ``N * S``.
        """
        given, like = self._named(tensors, named)
        out, lse, gradients = self._native.reference(given, grad_out)
        return Reference(
            of_kind(out, like),
            of_kind(lse, like),
            {name: of_kind(gradient, like) for name, gradient in gradients.items()},
        )

    def decoder(self, *, cache: str = "f32") -> Decoder:
        """A fresh state for decoding token by token.

        Parameters
        ----------
        cache : str
            What keys and values are kept as: ``"f32"``, ``"bf16"`` (2^-8 of a number), ``"f16"`` (2^-11, up to 65,504) or
            ``"int8"`` (1/254 of the largest number of a token and head). Sums are of f32 all the same, as are states that
            are sums.

        Raises
        ------
        ValueError
            The mechanism has none under these options; all have one that can be causal and are not hashed.
        """
        return Decoder(self, cache=cache)

    def _named(self, tensors: Sequence[Tensor], named: dict[str, Tensor]) -> tuple[dict[str, Tensor], Any]:
        given = dict(named)
        if tensors:
            names = [name for name in self.inputs if name not in named]
            if len(tensors) > len(names):
                message = f"{len(tensors)} tensors by position, expected at most {len(names)}: {', '.join(names)}"
                raise TypeError(message)
            given.update(zip(names, tensors))
        like = next((given[name] for name in ("q", "x") if name in given), None)
        return given, like

    def __reduce__(self) -> tuple[Any, ...]:
        # An operator is what it was made of: so it can be copied and pickled.
        return functools.partial(Operator, self._name, **self._arguments, **self._options), ()

    def __repr__(self) -> str:
        return f"regard.Operator({self.mechanism!r}, layout={self.layout!r})"


class Decoder:
    """The incremental form of a causal mechanism: one token at a time, with a state instead of a prefix."""

    def __init__(self, operator: Operator, *, cache: str = "f32") -> None:
        self._operator = operator
        self._native = operator._native.decoder(cache)

    def step(self, *tensors: Tensor, **named: Tensor) -> Any:
        """The output for the next token of every batch row, as the whole causal form would have it there.

        Tensors are those of :meth:`Operator.forward` with ``N = S = 1``; parameters (priors, variances, score vectors)
        are whole and the same at every step.
        """
        given, like = self._operator._named(tensors, named)
        return of_kind(self._native.step(given), like)

    def reorder(self, rows: Sequence[int]) -> None:
        """Batch row ``i`` goes on from where row ``rows[i]`` is, as the hypotheses of a beam search do."""
        self._native.reorder(list(rows))

    @property
    def tokens(self) -> int:
        """Tokens so far."""
        return self._native.tokens

    @property
    def nbytes(self) -> int:
        """Bytes that the state holds now."""
        return self._native.nbytes
