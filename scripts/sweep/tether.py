"""Run a Python script that ends with the process that started it: `python tether.py <descriptor> <script> ...`.

Only that process holds the write end of the descriptor's pipe. When it is gone, however it ended, the pipe closes, and
this process is killed with all that it has started. Works on Linux and macOS.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading


def end_with(descriptor: int) -> None:
    """Wait until the other end of a pipe, to which nothing is written, is closed; then kill this process group."""
    while os.read(descriptor, 1):
        pass
    if os.getpgrp() == os.getpid():  # its own group, as a sweep starts it
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Watch the pipe, and run the script in place of this one."""
    descriptor, *arguments = sys.argv[1:]
    threading.Thread(target=end_with, args=(int(descriptor),), name="tether", daemon=True).start()
    sys.argv = arguments
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
