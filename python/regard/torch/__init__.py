"""Mechanisms as functions and modules of PyTorch.

Tensors on the CPU go through the kernels: by DLPack, without a copy, with the kernels' own backward passes. Tensors on
other devices go through :mod:`.composed`, the same mechanisms of PyTorch operations. ``backend="kernels"`` or
``"composed"`` asks for one of them. Autograd has both as it has its own operators.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("regard.torch needs PyTorch, expected it to be installed: pip install torch") from error

from .composed import get_block_bytes, set_block_bytes
from .functions import apply, attention, router_losses
from .layers import MultiheadAttention

__all__ = ["MultiheadAttention", "apply", "attention", "get_block_bytes", "router_losses", "set_block_bytes"]
