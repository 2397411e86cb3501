"""The process: it reads a request, answers it, and reads the next."""

import faulthandler
import os
import select
import signal
import socket
import sys

from .arena import Arena
from .channel import Channel
from .process import EXIT_SECONDS, close_others, end_with
from .program import STUB
from .requests import Stub

DESCRIPTOR = 5  # of this program, the last that the worker gives
SOCKET_CLOSED = 70  # the exit status that says so


def main():
    if sys.version_info < (3, 9):
        raise SystemExit(f"{sys.executable} is Python {sys.version.split()[0]}; expected 3.9 or newer")
    if os.path.join(sys.path[0], "") == STUB:
        del sys.path[0]  # it is for the user's program
    close_others(DESCRIPTOR)
    stream = socket.socket(fileno=int(sys.argv[1]))
    stub, channel = Stub(Arena(int(sys.argv[2]), int(sys.argv[3]))), Channel(stream)
    for descriptor in (1, 2):
        os.set_inheritable(int(sys.argv[descriptor]), False)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # that is for the worker
    end_with(stream, select.POLLRDHUP, EXIT_SECONDS)  # the worker has closed its end
    try:
        while True:
            channel.send(stub.answer(channel.receive()))
    except OSError as error:
        try:
            print(f"the socket of the worker cannot be used: {error}", file=sys.stderr)
        finally:
            os._exit(SOCKET_CLOSED)
