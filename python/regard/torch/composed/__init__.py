"""Mechanisms composed of PyTorch operations, for tensors on any device.

They compute what the kernels compute, by other means: queries go in blocks, each computed again in the backward pass,
so that memory grows with ``N`` and not with ``N * S``. Linear mechanisms go in chunks with a running state.

One file a mechanism: :mod:`.softmax` (also cosine), :mod:`.gaussian`, :mod:`.linear` (also Performer), :mod:`.sparse`
(also Scatterbrain), :mod:`.fastformer`, :mod:`.heads`. :mod:`.call` checks a call and chooses among them.
"""

from .blocks import get_block_bytes, set_block_bytes
from .call import compose

__all__ = ["compose", "get_block_bytes", "set_block_bytes"]
