"""One job's process: its command, its log, how it ended."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainer.files import open_append, open_file

TRAIN = Path(__file__).resolve().parents[2] / "train.py"
TETHER = Path(__file__).resolve().parent / "tether.py"
ERROR = re.compile(r"^(Error: |\w*(Error|Exception)\b.*: )")
LAST_BYTES = 20_000
LINE_LENGTH = 300


@dataclass
class JobProcess:
    """Hold a process that was started.

    Attributes:
        process: leads a session of its own, so that Ctrl-C on the terminal reaches the sweep only.
        log: what it prints, appended to what earlier processes of the job printed.
        offset: where its part of the log begins.
        began: by `time.monotonic`.
    """

    process: subprocess.Popen[bytes]
    log: Path
    offset: int
    began: float

    @property
    def seconds(self) -> float:
        """Return how long ago it began."""
        return time.monotonic() - self.began

    def exit_code(self) -> int | None:
        """Return its exit code as shells have it, 128 and the number of the signal that killed it; None while it runs.

        What it may have left behind in its process group is killed.
        """
        code = self.process.poll()
        if code is None:
            return None
        self.kill()
        return 128 - code if code < 0 else code

    def ask_to_end(self, number: int) -> None:
        """Send a signal to the process; a run saves and ends.

        Args:
            number: of the signal.
        """
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the process group at once."""
        with suppress(ProcessLookupError, PermissionError):  # macOS: of a group that has ended
            os.killpg(self.process.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Wait for its end."""
        self.process.wait()

    def error_line(self) -> str:
        """Return the line of its log that says what went wrong; the last one where none looks like it."""
        try:
            with open_file(self.log) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(self.offset, size - LAST_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        found = next((line for line in reversed(lines) if ERROR.match(line)), lines[-1] if lines else "")
        return found if len(found) <= LINE_LENGTH else f"{found[: LINE_LENGTH - 3]}..."


def start_job(
    arguments: Sequence[str], log: Path, environment: Mapping[str, str], tether: int, script: Path = TRAIN
) -> JobProcess:
    """Start a process that ends with this one.

    Args:
        arguments: of the script.
        log: file to append its output to; the command stands above it.
        environment: variables beside those of this process.
        tether: reading end of a pipe whose writing end only this process holds.
        script: to run.
    """
    shown = " ".join(
        [*(f"{name}={value}" for name, value in environment.items()), shlex.join(["python", script.name, *arguments])]
    )
    command = [sys.executable, str(TETHER), str(tether), str(script), *arguments]
    with open_append(log) as file:
        file.write(f"$ {shown}\n".encode())
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(tether,),
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
        )
        return JobProcess(process, log, file.tell(), time.monotonic())
