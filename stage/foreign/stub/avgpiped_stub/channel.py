"""Messages over the socket."""

import json
import os
import select
import struct

from .process import end_with
from .program import Refused

LONGEST_MESSAGE = 16 << 20


def encode(message):
    text = json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > LONGEST_MESSAGE:
        raise Refused(f"an answer of {len(text)} bytes; at most {LONGEST_MESSAGE} are expected")
    return text


class Channel:
    """Messages over a stream."""

    def __init__(self, stream):
        self.stream, self.process = stream, os.getpid()
        self.identity = self.identify()
        os.register_at_fork(after_in_child=self.forget)

    def identify(self):
        status = os.fstat(self.stream.fileno())
        return status.st_dev, status.st_ino

    def forget(self):
        """Closes the stream in a process that the user's program forked, and has that end with this one: the worker is to see when this one ends."""
        try:
            if self.identify() == self.identity:
                self.stream.close()
        except OSError:
            pass
        try:
            end_with(os.pidfd_open(self.process), select.POLLIN, 0)
        except ProcessLookupError:
            os._exit(1)
        except OSError:
            pass  # an old kernel: the worker ends what has not left the process group

    def read(self, count):
        out = bytearray()
        while len(out) < count:
            part = self.stream.recv(count - len(out))
            if not part:
                raise SystemExit(0)  # the worker is gone, or wants this process to end
            out += part
        return bytes(out)

    def receive(self):
        (length,) = struct.unpack("<I", self.read(4))
        if length > LONGEST_MESSAGE:
            raise SystemExit(f"a message of {length} bytes; at most {LONGEST_MESSAGE} are expected")
        return json.loads(self.read(length))

    def send(self, text):
        if os.getpid() != self.process:
            os._exit(0)  # the user's program forked, and returned here twice
        if self.identify() != self.identity:
            raise OSError("the descriptor is that of another file")
        self.stream.sendall(struct.pack("<I", len(text)) + text)
