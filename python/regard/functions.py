"""One call, one output: every mechanism as a function.

All take ``causal``, ``valid``, ``layout``, ``seed``, ``reference`` and further options as :func:`attention` does.
"""

from __future__ import annotations

from typing import Any

from . import _native
from .operator import Operator, Tensor


def attention(
    q: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    mechanism: str = "softmax",
    *,
    causal: bool = False,
    window: int | None = None,
    valid: Tensor | None = None,
    query_valid: Tensor | None = None,
    scale: float | None = None,
    layout: str = "head_first",
    seed: int = 0,
    reference: bool = False,
    **options: Any,
) -> Any:
    """Attention by any mechanism that has queries, keys and values.

    Parameters
    ----------
    q : ``[B,H,N,D]``
        Queries; with ``layout="token_first"`` ``[B,N,H,D]``.
    k : ``[B,Hk,S,D]``
        Keys; ``[B,S,Hk,D]``. Mixtures have ``M`` keys a position, ``[B,Hk,M,S,D]``; ``[B,S,M,Hk,D]``. None for LSH,
        whose keys are the queries.
    v : ``[B,Hk,S,Dv]``
        Values; ``[B,S,Hk,Dv]``. None for ``fastformer`` where values are queries.
    mechanism : str
        One of :func:`regard.mechanisms`.
    causal, window, scale, layout, seed
        As in :class:`regard.Operator`.
    valid : ``[B,S]``, booleans or integers
        True for real keys, and in self-attention for real queries.
    query_valid : ``[B,N]``
        True for real queries, where they are not the keys.
    reference : bool
        Runs the float64 twin: float64 in and out, slow.
    **options
        Options of :class:`regard.Operator` (``keys__components=3``, ``support={"kind": "bigbird"}``, ``dropout=0.1``),
        and further tensors (``bias``, ``log_prior``, ``variance``, ``shift``, ``projection``, ``w_q`` ...).

    Returns
    -------
    ``[B,H,N,Dv]``, token first ``[B,N,H,Dv]``
        Of the kind of ``q``: a NumPy array, a PyTorch tensor, or a :class:`regard.Array`.

    Raises
    ------
    ValueError
        Shapes, options or tensors that do not fit together.
    TypeError
        Tensors that do not share their memory or are not float32.
    """
    tensors = take_tensors(options)
    tensors.update(q=q, k=k, v=v, valid=valid, query_valid=query_valid)
    operator = Operator(mechanism, causal=causal, window=window, scale=scale, layout=layout, seed=seed, **options)
    return _apply(operator, tensors, reference)


_ROOTS = frozenset(_native.option_roots())
# Arguments of an operator that are no tensors, though a scalar of NumPy has a buffer like one.
_ARGUMENTS = frozenset(("causal", "window", "scale", "slopes", "dropout", "dropout_key", "layout", "seed"))


def take_tensors(options: dict[str, Any]) -> dict[str, Tensor]:
    """Takes the tensors out of options."""
    names = [
        name
        for name, value in options.items()
        if name.replace("__", ".").partition(".")[0] not in _ROOTS | _ARGUMENTS and _native.is_tensor(value)
    ]
    return {name: options.pop(name) for name in names}


def _apply(operator: Operator, tensors: dict[str, Tensor | None], reference: bool) -> Any:
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    return operator.reference(**given).out if reference else operator(**given)


def softmax(q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None, **options: Any) -> Any:
    """Exact scaled dot-product attention: ``softmax_j(scale q_i.k_j + bias_ij) v_j`` in memory linear in ``N``.

    ``q [B,H,N,D]``, ``k [B,Hk,S,D]``, ``v [B,Hk,S,Dv]``, ``bias [H,N,S]`` to out ``[B,H,N,Dv]``. Options: ``window``,
    ``scale``, ``slopes`` (ALiBi), ``dropout``.
    """
    if bias is not None:
        options["bias"] = bias
    return attention(q, k, v, "softmax", **options)


def cosine(q: Tensor, k: Tensor, v: Tensor, *, log_scale: Tensor | None = None, **options: Any) -> Any:
    """Softmax of cosines: scores ``exp(log_scale_h) q_i.k_j / (|q_i| |k_j|)`` (Henry et al. 2020; Liu et al. 2022).

    ``q [B,H,N,D]``, ``k [B,Hk,S,D]``, ``v [B,Hk,S,Dv]``, ``log_scale [H]`` (``ln 10`` by default) to out ``[B,H,N,Dv]``.
    Options: ``window``, ``dropout``.
    """
    if log_scale is not None:
        options["log_scale"] = log_scale
    return attention(q, k, v, "cosine", **options)


def gaussian(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    """A Gaussian kernel around each key: scores ``-|q_i - k_j|^2 / (2 s)`` (arXiv 2110.08678, section 2).

    ``q [B,H,N,D]``, ``k [B,Hk,S,D]``, ``v [B,Hk,S,Dv]`` to out ``[B,H,N,Dv]``. ``variance [1]`` is ``sqrt(D)`` by
    default.
    """
    return attention(q, k, v, "gaussian", **options)


def gaussian_mixture(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    """Mixture of Gaussian keys (Transformer-MGK, arXiv 2110.08678): ``M`` keys a position with a prior.

    ``q [B,H,N,D]``, ``k [B,Hk,M,S,D]``, ``v [B,Hk,S,Dv]`` to out ``[B,H,N,Dv]``; or ``k [B,Hk,S,D]`` and
    ``shift [Hk,M,D]``. ``log_prior [H,M]`` or ``[H,M,S]`` is uniform by default, ``variance [M]`` as
    ``mixture.variances`` says. Options: ``mixture.inference`` (``soft``, ``hard``, ``soft-em``), ``mixture.score``,
    ``window``, ``dropout``.
    """
    return attention(q, k, v, "mgk", **options)


def linear(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    """Linear attention with features ``elu + 1`` (Katharopoulos et al. 2020): time and memory linear in ``N``.

    ``q [B,H,N,D]``, ``k [B,Hk,S,D]``, ``v [B,Hk,S,Dv]`` to out ``[B,H,N,Dv]``.
    """
    return attention(q, k, v, "linear", **options)


def linear_mixture(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    """Mixture of linear keys (Transformer-MLK, arXiv 2110.08678, section 2.4).

    ``q [B,H,N,D]``, ``k [B,Hk,M,S,D]`` (or ``[B,Hk,S,D]`` and ``shift [Hk,M,D]``), ``v [B,Hk,S,Dv]``,
    ``log_prior [H,M]`` to out ``[B,H,N,Dv]``.
    """
    return attention(q, k, v, "mlk", **options)


def performer(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    """Positive random features (Performer, Choromanski et al. 2021): an estimate of softmax, linear in ``N``.

    ``q [B,H,N,D]``, ``k [B,Hk,S,D]``, ``v [B,Hk,S,Dv]`` to out ``[B,H,N,Dv]``. ``projection [rows,D]`` is drawn from
    ``seed`` unless given. Options: ``features.kind`` (``hyperbolic``, ``plain``), ``features.rows``, ``scale``.
    """
    return attention(q, k, v, "performer", **options)


def sparse(q: Tensor, k: Tensor | None, v: Tensor, **options: Any) -> Any:
    """Softmax over the keys of a support alone.

    ``q [B,H,N,D]``, ``k [B,Hk,S,D]``, ``v [B,Hk,S,Dv]`` to out ``[B,H,N,Dv]``. Options: ``support.kind`` (``local``,
    ``longformer``, ``bigbird``, ``block``, ``smyrf``, ``lsh`` with ``k=None``) and its sizes, ``scale``, ``budget``.
    """
    return attention(q, k, v, "sparse", **options)


def scatterbrain(q: Tensor, k: Tensor | None, v: Tensor, **options: Any) -> Any:
    """Exact weights on a sparse support, random features off it (Scatterbrain, arXiv 2110.15343): each pair once.

    ``q [B,H,N,D]``, ``k [B,Hk,S,D]``, ``v [B,Hk,S,Dv]`` to out ``[B,H,N,Dv]``. Options: those of :func:`sparse` and
    :func:`performer`.
    """
    return attention(q, k, v, "scatterbrain", **options)


def fastformer(
    q: Tensor, k: Tensor, v: Tensor | None = None, *, w_q: Tensor, w_k: Tensor, w_t: Tensor, **options: Any
) -> Any:
    """Additive attention through a global query and a global key (Fastformer, arXiv 2108.09084).

    ``q k [B,H,N,D]``, ``v`` the same (the queries, if None), score vectors ``w_q w_k [H,D]`` (or ``[H,H*D]`` with
    ``fastformer.scores = "released"``), output transform ``w_t [H*D,H*D]`` to out ``[B,N,H*D]``.
    """
    return attention(q, k, v, "fastformer", w_q=w_q, w_k=w_k, w_t=w_t, **options)


def mixture_of_heads(
    x: Tensor,
    x_kv: Tensor | None = None,
    *,
    w_gate: Tensor,
    w_query: Tensor,
    w_key: Tensor,
    w_value: Tensor,
    w_out: Tensor,
    valid: Tensor | None = None,
    query_valid: Tensor | None = None,
    reference: bool = False,
    **options: Any,
) -> Any:
    """Mixture of attention heads (MoA, arXiv 2210.05144): each token uses ``moa.active`` of ``E`` heads.

    ``x [B,N,d]``, ``x_kv [B,S,d]`` (``x``, if None), ``w_gate [d,E]``, ``w_query [E,d,D]``, ``w_key w_value [d,D]``,
    ``w_out [E,D,d]`` to out ``[B,N,d]``. Options: ``moa.active``, ``moa.gates``, ``causal``, ``window``.
    """
    weights = {"w_gate": w_gate, "w_query": w_query, "w_key": w_key, "w_value": w_value, "w_out": w_out}
    tensors = {"x": x, "x_kv": x_kv, **weights, "valid": valid, "query_valid": query_valid}
    return _apply(Operator("moa", **options), tensors, reference)
