"""Times attention of PyTorch and flash-linear-attention on one device: forward, and forward and backward, in milliseconds.

Writes JSON: {"machine": ..., "rows": [{"name", "format", "causal", "length", "forward", "both", "bytes"}], "missing": [...]}.
"""

import argparse
import json
import statistics
import time

import torch
from torch.nn.functional import scaled_dot_product_attention

RUNS = 5


class Clock:
    """Times what a device does, from when it was told to when it is done."""

    def __init__(self, device):
        self.device = device

    def wait(self):
        if self.device != "cpu":
            getattr(torch, self.device).synchronize()

    def measure(self, run):
        """Median milliseconds after one run that is not counted."""
        times = []
        for _ in range(RUNS + 1):
            self.wait()
            start = time.perf_counter()
            run()
            self.wait()
            times.append(1e3 * (time.perf_counter() - start))
        return statistics.median(times[1:])


def peers(causal, device):
    """Name and function of q, k, v [B,N,H,D] of each peer that is here; what is missing, with the reason."""
    found, missing = [], []

    def sdpa(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)

    found.append(("PyTorch SDPA", sdpa))
    try:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        compiled = torch.compile(flex_attention)
        masks = {}

        def flex(window):
            def near(_b, _h, i, j):
                seen = (i - j <= window) & (j - i <= window) if window else i >= 0
                return seen & (i >= j) if causal else seen

            def run(q, k, v):
                n = q.shape[1]
                key = (n, window)
                if key not in masks:
                    masks[key] = create_block_mask(near, None, None, n, n, device=q.device)
                q, k, v = (x.transpose(1, 2) for x in (q, k, v))
                return compiled(q, k, v, block_mask=masks[key]).transpose(1, 2)

            return run

        found += [("FlexAttention", flex(None)), ("FlexAttention, window 32", flex(32))]
    except ImportError as error:
        missing.append(f"FlexAttention: {error}")
    if causal:
        try:
            from fla.ops.linear_attn import chunk_linear_attn

            found.append(("flash-linear-attention", lambda q, k, v: chunk_linear_attn(q, k, v, normalize=True)[0]))
        except Exception as error:  # Without a GPU its import may fail in any way.
            missing.append(f"flash-linear-attention: {str(error).splitlines()[0]}")
    return found, missing


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", default="1024,4096,16384,65536")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--device", default="cuda", help="that of Regard: wgpu stands beside the CPU of PyTorch")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    device = {"cuda": "cuda", "rocm": "cuda", "metal": "mps"}.get(options.device, "cpu")
    clock = Clock(device)
    machine = torch.cuda.get_device_name() if device == "cuda" else device
    rows, missing = [], []
    for causal in (False, True):
        found, absent = peers(causal, device)
        missing += [why for why in absent if why not in missing]
        for name, attend in found:
            for kind in (torch.float32, torch.bfloat16):
                for length in map(int, options.lengths.split(",")):
                    shape = (1, length, options.heads, options.width)
                    try:
                        q, k, v = (torch.randn(shape, device=device, dtype=kind, requires_grad=True) for _ in range(3))
                        grad = torch.randn(shape, device=device, dtype=kind)
                        if device == "cuda":
                            torch.cuda.reset_peak_memory_stats()
                            before = torch.cuda.memory_allocated()
                        both = clock.measure(lambda: torch.autograd.grad(attend(q, k, v), (q, k, v), grad))
                        peak = torch.cuda.max_memory_allocated() - before if device == "cuda" else None
                        with torch.no_grad():
                            forward = clock.measure(lambda: attend(q, k, v))
                    except Exception as error:
                        missing.append(f"{name}, {kind}, {length} tokens: {str(error).splitlines()[0]}")
                        break
                    rows.append(
                        dict(name=name, format=str(kind)[6:], causal=causal, length=length, forward=forward, both=both, bytes=peak)
                    )
    with open(options.out, "w") as file:
        json.dump({"machine": f"PyTorch {torch.__version__} on {machine}", "rows": rows, "missing": missing}, file)


if __name__ == "__main__":
    main()
