"""The memory that both processes map."""

import mmap
import struct

from .program import Refused

NUMBER = struct.Struct("=f")


class Arena:
    """The memory that both processes map."""

    def __init__(self, descriptor, size):
        self.memory = mmap.mmap(descriptor, size)
        self.size = size
        self.locked, self.unlockable = {}, False  # page-locked memory, by place; unlockable: it cannot be

    def check(self, at, size):
        """Refuses a place that does not lie in the arena."""
        if not isinstance(at, int) or at < 0 or at % 4 or at + size > self.size:
            raise Refused(f"a tensor of {size} bytes at {at!r}: expected a multiple of 4 within {self.size} bytes")
