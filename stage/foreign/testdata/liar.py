"""A stub that answers what stands in ANSWERS, as bytes in hexadecimal, whatever it is asked for."""

import os
import socket
import struct
import sys

stream = socket.socket(fileno=int(sys.argv[1]))
for answer in os.environ["ANSWERS"].split():
    (length,) = struct.unpack("<I", stream.recv(4, socket.MSG_WAITALL))
    stream.recv(length, socket.MSG_WAITALL)
    stream.sendall(bytes.fromhex(answer))
stream.recv(1)
