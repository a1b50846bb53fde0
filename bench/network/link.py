"""A link between two network devices with a rate and a delay, for kernels without `netem`.

    python3 link.py LEFT RIGHT MBIT_PER_SECOND MILLISECONDS

Makes the tap devices LEFT and RIGHT and passes frames from each to the other until it is killed: a frame leaves when those
before it have left at the rate, and arrives a delay later. Prints `ready` once the devices are there. Needs root.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

TUNSETIFF = 0x400454CA
TAP_WITHOUT_HEADER = 0x0002 | 0x1000
LONGEST_FRAME = 65_536
MOST_WAITING = 0.2
"""Seconds of frames that wait for the rate; more are left in the sender's queue, as behind a full port."""


def tap(name: str) -> int:
    """A tap device, by its descriptor."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", name.encode(), TAP_WITHOUT_HEADER))
    return device


class Way:
    """One direction."""

    def __init__(self, source: int, target: int, seconds_per_byte: float, delay: float) -> None:
        self.source, self.target = source, target
        self.seconds_per_byte, self.delay = seconds_per_byte, delay
        self.waiting: deque[tuple[float, bytes]] = deque()
        self.free = 0.0
        """When the last frame will have left."""

    def is_full(self, now: float) -> bool:
        return self.free - now > MOST_WAITING

    def take(self, now: float) -> None:
        """Takes the frames that are there."""
        while not self.is_full(now):
            try:
                frame = os.read(self.source, LONGEST_FRAME)
            except BlockingIOError:
                return
            self.free = max(self.free, now) + len(frame) * self.seconds_per_byte
            self.waiting.append((self.free + self.delay, frame))

    def give(self, now: float) -> None:
        """Gives the frames that have arrived."""
        while self.waiting and self.waiting[0][0] <= now:
            try:
                os.write(self.target, self.waiting[0][1])
            except BlockingIOError:
                return
            except OSError:
                # The device is down: the frame is lost.
                pass
            self.waiting.popleft()


def main() -> None:
    left, right = (tap(name) for name in sys.argv[1:3])
    seconds_per_byte = 8 / (float(sys.argv[3]) * 1e6)
    delay = float(sys.argv[4]) / 1e3
    ways = [Way(source, target, seconds_per_byte, delay) for source, target in ((left, right), (right, left))]
    print("ready", flush=True)
    while True:
        now = time.monotonic()
        due = min((way.waiting[0][0] for way in ways if way.waiting), default=now + 1)
        listening = [way.source for way in ways if not way.is_full(now)]
        select.select(listening, [], [], max(0.0, due - now) if listening else 1e-3)
        now = time.monotonic()
        for way in ways:
            way.take(now)
            way.give(now)


if __name__ == "__main__":
    main()
