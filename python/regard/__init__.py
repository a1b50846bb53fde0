"""Efficient attention on CPU, forward and backward, over anything that shares its memory.

Tensors are arrays of NumPy, CPU tensors of PyTorch, or any object with the buffer protocol or DLPack; contiguous
float32 is read where it lies, and results own their memory and share it the same way. Kernels run without the
interpreter lock, on the threads of :func:`set_threads`, with the same bits for any number of them.

>>> import numpy, regard
>>> q, k, v = numpy.random.default_rng(0).standard_normal((3, 1, 8, 128, 64), dtype=numpy.float32)
>>> regard.attention(q, k, v, causal=True).shape
(1, 8, 128, 64)

:func:`attention` applies any mechanism by name; :class:`Operator` has its backward pass, float64 twin and decoder too;
:class:`Module` binds parameters to it; ``regard.torch`` has the same for autograd. :func:`mechanisms` lists what there
is.

Shapes, here and in all docstrings: ``B`` batch rows, ``H`` query heads, ``Hk`` key and value heads (``H`` is a
multiple), ``N`` queries, ``S`` keys, ``D`` channels of a head, ``Dv`` channels of a value, ``M`` components of a
mixture.
"""

import os as _os

from ._native import (
    Array,
    Saved,
    __version__,
    _after_fork,
    get_threads,
    mechanisms,
    option_names,
    release_memory,
    set_threads,
)
from .functions import (
    attention,
    cosine,
    fastformer,
    gaussian,
    gaussian_mixture,
    linear,
    linear_mixture,
    mixture_of_heads,
    performer,
    scatterbrain,
    softmax,
    sparse,
)
from .module import Module
from .operator import Decoder, Operator, Reference

# A forked child has none of its parent's threads.
if hasattr(_os, "register_at_fork"):
    _os.register_at_fork(after_in_child=_after_fork)

__all__ = [
    "Array",
    "Decoder",
    "Module",
    "Operator",
    "Reference",
    "Saved",
    "__version__",
    "attention",
    "cosine",
    "fastformer",
    "gaussian",
    "gaussian_mixture",
    "get_threads",
    "linear",
    "linear_mixture",
    "mechanisms",
    "mixture_of_heads",
    "option_names",
    "performer",
    "release_memory",
    "scatterbrain",
    "set_threads",
    "softmax",
    "sparse",
]
