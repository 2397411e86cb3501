"""When this process ends, and what it has of others."""

import os
import select
import threading
from time import sleep  # a program may replace that of the module

EXIT_SECONDS = 0.5  # that what runs at the exit of the user's program has


def end_with(descriptor, event, seconds):
    """Ends this process so long after an event, whatever the user's program does."""

    def watch():
        poll = select.poll()
        poll.register(descriptor, event)
        poll.poll()
        sleep(seconds)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def close_others(last):
    """Closes descriptors that this process has from whoever started the daemon: they are nothing for the user's program."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > last:
            try:
                if os.get_inheritable(int(name)):  # those that Python opened since are not
                    os.close(int(name))
            except OSError:
                pass  # that of the listing
