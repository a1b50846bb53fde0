"""Writes the case `adaptive_softmax` and its entry of MANIFEST.json: PyTorch's AdaptiveLogSoftmaxWithLoss in float64.

    python3 testdata/golden/adaptive_softmax.py        (needs torch and safetensors)
"""

import hashlib
import json
import pathlib

import torch
from safetensors.torch import save_file

FOLDER = pathlib.Path(__file__).parent
SEED = 20261129
NAME = "adaptive_softmax"
WIDTH, VOCABULARY, CUTOFFS, FACTOR, ROWS = 24, 41, [9, 20, 33], 2, 29
CHECKS = "the loss, all log probabilities and every gradient of torch.nn.AdaptiveLogSoftmaxWithLoss; one cluster has no target"


def main():
    generator = torch.Generator().manual_seed(SEED)

    def draw(*shape):
        # Exactly representable in float32.
        return torch.randn(*shape, generator=generator).float().double()

    widths = [WIDTH // FACTOR ** (i + 1) for i in range(len(CUTOFFS))]
    ends = CUTOFFS[1:] + [VOCABULARY]
    inputs = {"x": draw(ROWS, WIDTH), "head": draw(WIDTH, CUTOFFS[0] + len(CUTOFFS)) / 4}
    for i, (width, first, end) in enumerate(zip(widths, CUTOFFS, ends)):
        inputs[f"tails.{i}.w_in"] = draw(WIDTH, width) / 4
        inputs[f"tails.{i}.w_out"] = draw(width, end - first) / 2
    targets = torch.randint(0, VOCABULARY, (ROWS,), generator=generator)
    # None in the second cluster; both ends of the others.
    targets[(targets >= CUTOFFS[1]) & (targets < CUTOFFS[2])] = 3
    targets[:5] = torch.tensor([0, CUTOFFS[0] - 1, CUTOFFS[0], CUTOFFS[2], VOCABULARY - 1])

    def run(dtype):
        leaves = {name: x.to(dtype).detach().clone().requires_grad_() for name, x in inputs.items()}
        softmax = torch.nn.AdaptiveLogSoftmaxWithLoss(WIDTH, VOCABULARY, CUTOFFS, div_value=FACTOR).to(dtype)
        # torch applies matrices as x W^T.
        weights = {"head.weight": leaves["head"].T}
        for i in range(len(CUTOFFS)):
            weights[f"tail.{i}.0.weight"] = leaves[f"tails.{i}.w_in"].T
            weights[f"tail.{i}.1.weight"] = leaves[f"tails.{i}.w_out"].T
        call = torch.func.functional_call
        loss = call(softmax, weights, (leaves["x"], targets)).loss
        loss.backward()
        log_probability = log_prob(softmax, weights, leaves["x"])
        gradients = {f"grad.{name}": torch.zeros_like(x) if x.grad is None else x.grad for name, x in leaves.items()}
        return {"loss": loss.detach().reshape(1), "log_probability": log_probability, **gradients}

    @torch.no_grad()
    def log_prob(softmax, weights, x):
        for name, value in weights.items():
            softmax.get_parameter(name).copy_(value)
        return softmax.log_prob(x)

    exact, single = run(torch.float64), run(torch.float32)
    zero = sorted(name for name, x in exact.items() if not x.any())
    error = {name: float((single[name] - x).abs().max() / x.abs().max()) for name, x in exact.items() if name not in zero}
    tensors = {**inputs, "targets": targets, **exact}
    options = {"cutoffs": CUTOFFS, "factor": FACTOR, "vocabulary": VOCABULARY, "width": WIDTH, "grad": list(inputs)}
    shapes = {name: list(x.shape) for name, x in sorted(tensors.items())}
    path = FOLDER / f"{NAME}.safetensors"
    metadata = {"mechanism": "adaptive-softmax", "options": json.dumps(options), "shapes": json.dumps(shapes), "checks": CHECKS, "seed": str(SEED)}
    save_file({name: x.contiguous() for name, x in tensors.items()}, path, metadata)
    content = path.read_bytes()
    dtypes = {torch.float64: "float64", torch.int64: "int64"}
    case = {
        "file": path.name,
        "mechanism": "adaptive-softmax",
        "checks": CHECKS,
        "options": options,
        "zero": zero,
        "float32_error": {name: float(f"{x:.2g}") for name, x in sorted(error.items())},
        "tensors": {name: {"dtype": dtypes[x.dtype], "shape": list(x.shape)} for name, x in sorted(tensors.items())},
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    path = FOLDER / "MANIFEST.json"
    lines = [line for line in path.read_text().split("\n") if '"mechanism": "adaptive-softmax"' not in line]
    # One case per line; those of whole models come last.
    at = next(n for n, line in enumerate(lines) if '"mechanism": "language-model"' in line)
    lines.insert(at, f"  {json.dumps(case)},")
    path.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
