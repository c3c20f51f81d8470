"""Prepare a process that another one has started by multiprocessing."""

import os
import signal
import threading
from multiprocessing import parent_process


def follow_parent() -> None:
    """Let Ctrl-C be the parent's to handle, and end with the parent, even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end_with_parent() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
