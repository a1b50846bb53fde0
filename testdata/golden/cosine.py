"""Writes the cases `cosine_*` and their entries of MANIFEST.json: PyTorch in float64, dense, gradients by autograd.

    python3 testdata/golden/cosine.py        (needs torch and safetensors)
"""

import hashlib
import json
import pathlib

import torch
from safetensors.torch import save_file

FOLDER = pathlib.Path(__file__).parent
SEED = 20261129


def attend(q, k, v, log_scale, causal=False, valid=None):
    """q [B,H,N,D], k [B,Hk,S,D], v [B,Hk,S,Dv], log_scale [H] to out [B,H,N,Dv]; rows that see nothing give 0."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    n, s = q.shape[2], k.shape[2]
    unit = torch.nn.functional.normalize
    scores = log_scale.exp()[None, :, None, None] * unit(q, dim=-1, eps=1e-12) @ unit(k, dim=-1, eps=1e-12).mT
    seen = torch.ones(q.shape[0], 1, n, s, dtype=torch.bool)
    if causal:
        seen &= torch.arange(s)[None, :] <= torch.arange(n)[:, None] + s - n
    if valid is not None:
        seen &= valid.bool()[:, None, None, :]
    weights = torch.softmax(scores.masked_fill(~seen, torch.finfo(q.dtype).min), -1) * seen
    return weights @ v


def case(name, checks, shape, options, valid=None, size=1.0):
    batch, heads, key_heads, n, s, d, dv = shape
    generator = torch.Generator().manual_seed(SEED + len(name))

    def draw(*shape, size=1.0):
        # Exactly representable in float32.
        return (size * torch.randn(*shape, generator=generator)).float().double()

    inputs = {
        "q": draw(batch, heads, n, d, size=size),
        "k": draw(batch, key_heads, s, d, size=size),
        "v": draw(batch, key_heads, s, dv),
        "log_scale": draw(heads) + 1,
    }
    grad_out = draw(batch, heads, n, dv)
    causal = options.get("causal", False)

    def run(dtype):
        leaves = {name: x.to(dtype).detach().clone().requires_grad_() for name, x in inputs.items()}
        out = attend(*leaves.values(), causal, valid)
        (out * grad_out.to(dtype)).sum().backward()
        return {"out": out.detach(), **{f"grad.{name}": x.grad for name, x in leaves.items()}}

    exact, single = run(torch.float64), run(torch.float32)
    error = {name: float((single[name] - x).abs().max() / x.abs().max()) for name, x in exact.items()}
    tensors = {**inputs, "grad_out": grad_out, **exact}
    if valid is not None:
        tensors["valid"] = valid
    options = {**options, "grad": ["q", "k", "v", "log_scale"]}
    shapes = {name: list(x.shape) for name, x in sorted(tensors.items())}
    path = FOLDER / f"{name}.safetensors"
    metadata = {"mechanism": "cosine", "options": json.dumps(options), "shapes": json.dumps(shapes), "checks": checks, "seed": str(SEED)}
    save_file({name: x.contiguous() for name, x in tensors.items()}, path, metadata)
    content = path.read_bytes()
    dtypes = {torch.float64: "float64", torch.uint8: "uint8"}
    return {
        "file": path.name,
        "mechanism": "cosine",
        "checks": checks,
        "options": options,
        "zero": [],
        "float32_error": {name: float(f"{x:.2g}") for name, x in sorted(error.items())},
        "tensors": {name: {"dtype": dtypes[x.dtype], "shape": list(x.shape)} for name, x in sorted(tensors.items())},
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def main():
    valid = torch.ones(2, 13, dtype=torch.uint8)
    valid[0, 10:] = 0
    cases = [
        case("cosine_plain", "plain, N != S, Dv != D", (2, 3, 3, 17, 23, 8, 5), {}),
        case("cosine_gqa", "six query heads on two key heads, causal, N < S", (1, 6, 2, 9, 13, 8, 5), {"causal": True}),
        case("cosine_causal_padding", "causal and padded", (2, 2, 2, 13, 13, 8, 8), {"causal": True}, valid),
        case("cosine_large", "rows of size 1e12: only directions count", (1, 2, 2, 11, 11, 8, 8), {}, size=1e12),
    ]
    path = FOLDER / "MANIFEST.json"
    lines = [line for line in path.read_text().split("\n") if '"mechanism": "cosine"' not in line]
    # One case per line; those of whole models come last.
    at = next(n for n, line in enumerate(lines) if '"mechanism": "language-model"' in line)
    lines[at:at] = [f"  {json.dumps(case)}," for case in cases]
    path.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
