"""Calls of the public surface with the types that they have to others: read by mypy, never run. See check.sh."""

from typing import Any, assert_type

import torch

import regard
import regard.torch

operator = regard.Operator("mgk", causal=True, keys={"components": 2})
assert_type(operator.inputs, tuple[str, ...])
assert_type(operator.options, dict[str, Any])
out, saved = operator.forward([0.0])
assert_type(saved.draws, dict[str, regard.Array])
assert_type(operator.backward(saved, out, ["q"]), dict[str, Any])
assert_type(operator.decoder(cache="bf16"), regard.Decoder)
assert_type(operator.decoder().nbytes, int)
assert_type([facts["name"] for facts in regard.mechanisms()], list[str])
assert_type(regard.get_threads(), int)

x = torch.zeros(1, 2, 16)
layer = regard.torch.MultiheadAttention(16, 2, "performer", causal=True, features__rows=8)
assert_type(layer.head_dim, int)
assert_type(layer.forward(x, valid=None), torch.Tensor)
assert_type(regard.torch.apply(operator, q=x, backend="composed"), torch.Tensor)
assert_type(regard.torch.attention(x, x, x, "linear"), torch.Tensor)
assert_type(regard.torch.router_losses(x, x, 2, group=None), tuple[torch.Tensor, torch.Tensor])
regard.torch.apply("mgk", q=x)  # type: ignore[arg-type]
regard.Operator("mgk", seed="one")  # type: ignore[arg-type]
