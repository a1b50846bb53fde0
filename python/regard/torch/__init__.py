"""Mechanisms as functions and modules of PyTorch, for tensors in the memory of the processor.

Tensors pass through DLPack without a copy; the backward passes are those of the kernels. Autograd has them as it has
its own operators: an error where a tensor was changed in place between the passes, float32 under autocast, no second
derivative.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("regard.torch needs PyTorch, expected it to be installed: pip install torch") from error

from .functions import apply, attention, router_losses
from .layers import MultiheadAttention

__all__ = ["MultiheadAttention", "apply", "attention", "router_losses"]
