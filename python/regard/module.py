"""Modules without a framework: an operator with parameters of its own."""

from __future__ import annotations

from typing import Any

from ._native import Saved
from .operator import Operator, Tensor, of_kind


class Module:
    """A mechanism that keeps its parameters and what its last forward pass saved.

    Parameters
    ----------
    operator : str or Operator
        The mechanism, by name or ready made.
    parameters : dict
        Tensors by name of the operator's inputs: ``log_prior``, ``shift``, ``w_q`` and the like, or any other input
        that is to stay. They are shared, not copied: an optimizer may change them in place between calls.
    **options
        Those of :class:`regard.Operator`, where the mechanism is given by name.

    Examples
    --------
    >>> import numpy, regard
    >>> prior = numpy.full((4, 2), -numpy.log(2.0), numpy.float32)
    >>> attend = regard.Module("mgk", {"log_prior": prior}, causal=True)
    >>> q, v = numpy.ones((2, 1, 4, 16, 8), numpy.float32)
    >>> k = numpy.ones((1, 4, 2, 16, 8), numpy.float32)
    >>> out = attend(q, k, v)
    >>> sorted(attend.backward(numpy.ones_like(out))), sorted(attend.gradients)
    (['k', 'q', 'v'], ['log_prior'])
    """

    def __init__(self, operator: str | Operator, parameters: dict[str, Tensor] | None = None, **options: Any) -> None:
        if isinstance(operator, Operator):
            if options:
                raise TypeError(f"options {', '.join(options)} with a ready-made operator, expected them in it")
            self.operator = operator
        else:
            self.operator = Operator(operator, **options)
        self.parameters: dict[str, Tensor] = dict(parameters or {})
        self.gradients: dict[str, Any] = {}
        """Gradients of parameters by name, of the last backward pass."""
        self.saved: Saved | None = None
        """What the last call left for :meth:`backward`."""

    def __call__(self, *tensors: Tensor, **named: Tensor) -> Any:
        """The output for the inputs that are no parameters, in their order or by name; see :meth:`Operator.forward`."""
        out, self.saved = self.operator.forward(*tensors, **self.parameters, **named)
        return out

    def backward(self, grad_out: Tensor) -> dict[str, Any]:
        """Gradients of the inputs of the last call; those of parameters become :attr:`gradients`.

        Raises
        ------
        RuntimeError
            There was no call since the last backward pass.
        """
        if self.saved is None:
            raise RuntimeError("no forward pass to go back through, expected a call before backward")
        saved, self.saved = self.saved, None
        gradients = self.operator.backward(saved, grad_out)
        self.gradients = {
            name: of_kind(gradients.pop(name), parameter)
            for name, parameter in self.parameters.items()
            if name in gradients
        }
        return gradients
