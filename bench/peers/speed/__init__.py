"""Regard against PyTorch and the published implementations of the same mechanisms, in one process and in turns."""
