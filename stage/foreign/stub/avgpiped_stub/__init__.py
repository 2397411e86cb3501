"""Computes modules of a user's framework for a worker of avgpiped, which starts this in the user's interpreter.

    python3 ARCHIVE SOCKET ARENA BYTES

ARCHIVE has the files of this package, SOCKET is the descriptor of a stream, ARENA that of BYTES of memory that both processes map. Each message is a length
of 4 bytes, the lowest first, and so many bytes of JSON; tensors are places in the arena. The worker asks and this program answers, one request at a time.
docs/worker-protocol.md says what requests mean.

It takes nothing but Python's standard library and the framework that the user's program imports, and imports itself whole before that runs, since a
program may close the descriptor of the archive.
"""
