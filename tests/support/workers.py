"""Runs of several real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Launched:
    """Hold a run of several workers that continues in the background."""

    def __init__(self, *overrides: str, log: Path, workers: int = 2) -> None:
        self._log = log
        command = [sys.executable, str(ROOT / "scripts" / "launch.py"), f"workers={workers}", *overrides]
        with log.open("w") as file:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)

    @property
    def text(self) -> str:
        return self._log.read_text()

    def workers(self) -> list[int]:
        """Return the processes of the workers, in their order."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return sorted(int(each) for each in path.read_text().split())

    def wait_for(self, condition: Callable[[], bool], seconds: float = 90.0) -> None:
        """Return when a condition holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.text
            assert self.process.poll() is None, self.text
            time.sleep(0.05)

    def end(self, seconds: float = 90.0) -> int:
        """Return the exit code."""
        return self.process.wait(timeout=seconds)


def launched(*overrides: str, log: Path, workers: int = 2) -> tuple[int, str]:
    """Return the exit code and the output of a whole run."""
    run = Launched(*overrides, log=log, workers=workers)
    return run.end(600.0), run.text


def trained(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Return a run of one process that has ended."""
    command = [sys.executable, str(ROOT / "train.py"), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


def is_gone(process: int) -> bool:
    """Return whether a process has ended."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def kill(process: int, number: int = signal.SIGKILL) -> float:
    """Send a signal; return when, by `time.monotonic`."""
    os.kill(process, number)
    return time.monotonic()
