"""Kernels beside their float64 twins, at a small size: the check of rows whose mathematics no peer has."""

from __future__ import annotations

from collections.abc import Mapping

import regard
import regard.torch
import torch

from .agreement import Agreement, difference


def with_twin(operator: regard.Operator, passes: str, tensors: Mapping[str, torch.Tensor]) -> Agreement:
    """Largest differences of output and gradients of ``operator`` for float32 tensors by name."""
    sides = []
    for kind in (torch.float32, torch.float64):
        given = {name: tensor.detach().to(kind).requires_grad_() for name, tensor in tensors.items()}
        out = regard.torch.apply(operator, **given)
        wanted = [tensor for name, tensor in given.items() if name not in operator.constants]
        grads = torch.autograd.grad(out.square().sum(), wanted) if passes == "both" else ()
        sides.append((out.detach().double(), [grad.double() for grad in grads]))
    (seen, seen_grads), (expected, expected_grads) = sides
    largest = [difference(a, b) for a, b in zip(seen_grads, expected_grads, strict=True)]
    return Agreement(difference(seen, expected), max(largest) if largest else None)
