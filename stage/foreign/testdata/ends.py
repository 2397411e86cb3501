"""Programs that end, hang, or harm what is around them in build, without a framework."""

import os
import signal
import sys
import threading
import time


def exits():
    print("a last word", file=sys.stderr)
    os._exit(3)


def is_killed():
    os.kill(os.getpid(), signal.SIGKILL)


def hangs():
    while True:  # at: hangs
        pass


def sleeps():
    while True:
        time.sleep(0.1)  # at: sleeps


def stops():
    os.kill(os.getpid(), signal.SIGSTOP)  # at: stops


def closes():
    os.closerange(0, 4096)


def closes_and_connects():
    import socket

    os.closerange(0, 4096)
    globals()["kept"] = [socket.socketpair() for _ in range(4)]


def prints(megabytes):
    for _ in range(megabytes):
        sys.stdout.write("x" * (1 << 20))
    sys.stdout.flush()


def prints_lines(megabytes):
    for i in range(megabytes * (1 << 10)):
        sys.stderr.write("x\n" * 512)


def takes():
    import mmap

    return [mmap.mmap(-1, 1 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(1 << 14)]  # at: takes


def runs_on():
    threading.Thread(target=time.sleep, args=(1000,)).start()


def forks(session, ends):
    child = os.fork()
    if child == 0:
        if session:
            os.setsid()
        if session or ends:
            time.sleep(1000)
        return  # to where the stub would answer a second time
    print("child", child)
    if ends:
        os._exit(5)


def starts():
    import subprocess

    child = subprocess.Popen(["sleep", "1000"], close_fds=False)
    print("child", child.pid)
    os._exit(6)
