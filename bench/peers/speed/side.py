"""One side of a row, for its memory.

    python -m speed.side ROW SIDE LENGTH THREADS

runs it after a warm-up at a short length and prints bytes.
"""

from __future__ import annotations

import sys

from . import memory, rows, sizes


def main(row: str, side: str, length: int, threads: int) -> None:
    sizes.use_threads(threads)
    for tokens in (128, length):
        run = rows.MEMORY[row](tokens)[side]
        bytes_ = memory.peak(run)
    print(bytes_)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
