"""Regard's attention inside models of ``transformers``, on the processor.

>>> import regard.transformers
>>> from transformers import LlamaConfig, LlamaModel
>>> regard.transformers.register()[:2]
['regard-softmax', 'regard-gaussian']
>>> config = LlamaConfig(vocab_size=9, hidden_size=32, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
>>> LlamaModel._from_config(config, attn_implementation="regard-softmax").config._attn_implementation
'regard-softmax'

:func:`register` makes mechanisms known by name, for ``from_pretrained(..., attn_implementation=...)`` and
``model.set_attn_implementation(...)``. :func:`use_plan` gives heads of a model other attention, as a plan file says
that ``regard swap`` wrote. What a mask asks for and a mechanism has not is a ``ValueError``.
"""

try:
    import torch as _torch  # noqa: F401
    import transformers as _transformers
    from transformers import AttentionInterface as _AttentionInterface  # noqa: F401
    from transformers.masking_utils import AttentionMaskInterface as _AttentionMaskInterface  # noqa: F401
except ImportError as error:
    raise ImportError(
        "regard.transformers needs PyTorch and transformers, expected them to be installed: "
        "pip install torch 'transformers>=5.24'"
    ) from error

from .attention import register
from .plans import use_plan

__all__ = ["register", "use_plan"]
