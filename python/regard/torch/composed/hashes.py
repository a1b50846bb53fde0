"""Groups of queries and keys: clusters of SMYRF (Daras et al. 2020), chunks of LSH (Kitaev et al. 2020)."""

from __future__ import annotations

import torch


def clusters(
    q: torch.Tensor,
    k: torch.Tensor,
    directions: torch.Tensor,
    cluster: int,
    valid: torch.Tensor | None,
    query_valid: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Clusters of queries ``[R,B,H,N]`` and of keys ``[R,B,H,S]``.

    ``q [B,H,N,D]``, ``k [B,H,S,D]``, ``directions [R,D+2]``. Queries and keys get a channel each that makes them
    equally long, so that a large product means a small angle; they are sorted along each direction, padding last, and
    cut into as many groups.
    """
    q, k, directions = q.detach(), k.detach(), directions.detach()
    squares = [x.square().sum(-1) for x in (q, k)]
    padding = [None if real is None else ~real[:, None] for real in (query_valid, valid)]
    real = [x if p is None else x.masked_fill(p, 0.0) for x, p in zip(squares, padding)]
    bound = sum(x.amax(-1, keepdim=True) for x in real)
    count = -(-k.shape[2] // cluster)
    groups = []
    for x, square, padded, channel in zip((q, k), squares, padding, (-1, -2)):
        rest = (bound - square).clamp(min=0).sqrt()
        along = torch.einsum("bhnd,rd->rbhn", x, directions[:, :-2]) + rest * directions[:, channel, None, None, None]
        along = along if padded is None else along.masked_fill(padded, float("inf"))
        groups.append(_cut(along, -(-x.shape[2] // count)))
    return groups[0], groups[1]


def chunks(q: torch.Tensor, rotations: torch.Tensor, bucket: int, valid: torch.Tensor | None) -> torch.Tensor:
    """Chunks ``[R,B,H,N]`` of tokens ``q [B,H,N,D]`` for ``rotations [R,D,V]``.

    Tokens are sorted by hash and position, padding last; the hash is the place of the largest of ``[q R, -q R]``.
    """
    turned = torch.einsum("bhnd,rdv->rbhnv", q.detach(), rotations.detach())
    hashes = torch.cat([turned, -turned], -1).argmax(-1)
    if valid is not None:
        hashes = hashes.masked_fill(~valid[:, None], 2 * rotations.shape[-1])
    return _cut(hashes, bucket)


def _cut(order_by: torch.Tensor, size: int) -> torch.Tensor:
    """Group of each token, for groups of ``size`` in a stable order."""
    order = order_by.sort(dim=-1, stable=True).indices
    places = torch.arange(order.shape[-1], device=order.device) // size
    return torch.zeros_like(order).scatter(-1, order, places.expand(order.shape))


def directions_of(x: torch.Tensor) -> torch.Tensor:
    """``x / |x|``, and 0 with gradient 0 for 0."""
    squares = x.square().sum(-1, keepdim=True)
    return x * torch.where(squares > 0, torch.where(squares > 0, squares, 1.0).rsqrt(), 0.0)
