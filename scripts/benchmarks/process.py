"""The handle of a contender's process, and the interpreter that it needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from hookline.scripts.benchmarks.contender import Contender, Settings
from hookline.trainer.errors import UserError

INCOMPLETE = "incomplete"
"""File in a virtual environment that `environments.sh` has not finished."""
WORKER = Path(__file__).resolve().parent / "worker.py"
VARIABLES = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
"""Of the environment: contenders share a GPU."""
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
"""Variables of the environment that libraries read once, when they are loaded."""


def interpreter(contender: Contender, environments: str) -> Path | None:
    """Return the Python that a contender runs with; None if its virtual environment is missing or half-made."""
    if not contender.environment:
        return Path(sys.executable)
    if not environments:
        return None
    folder = Path(environments).expanduser() / contender.environment
    if (folder / INCOMPLETE).exists():
        return None
    found = [each for each in (folder / "bin" / "python", folder / "Scripts" / "python.exe") if each.is_file()]
    return found[0] if found else None


class Worker:
    """Run a contender in a process of its own.

    Attributes:
        contender: which.
        settings: of the command line.
        facts: what it reported when it was prepared: see `Work`.
        versions: of what it runs with.
    """

    def __init__(self, contender: Contender, python: Path, settings: Settings, seconds: float) -> None:
        """Take what the process is started with."""
        self.contender, self.settings = contender, settings
        self.facts: dict[str, Any] = {}
        self.versions: dict[str, str] = {}
        self._python, self._seconds = python, seconds
        self._count = 0

    def __enter__(self) -> Worker:
        self._errors = tempfile.TemporaryFile("w+")
        pipe = subprocess.PIPE
        legacy = {"TF_USE_LEGACY_KERAS": str(int(bool(self.contender.environment)))}  # the libraries there need it
        self._process = subprocess.Popen(
            [str(self._python), str(WORKER), self.contender.key],
            stdin=pipe,
            stdout=pipe,
            stderr=self._errors,
            text=True,
            env={**os.environ, **VARIABLES, **legacy, **self._threads()},
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _threads(self) -> dict[str, str]:
        threads = self.settings.threads
        return {} if threads is None else dict.fromkeys(THREADS, str(threads))

    def wait(self) -> None:
        """Return when its framework is imported."""
        self._answer()

    def prepare(self) -> None:
        """Let it prepare and find its speed."""
        found = self._ask({"settings": asdict(self.settings), "seconds": self._seconds})
        self._count, self.facts, self.versions = int(found["count"]), found["facts"], found["versions"]

    def speed(self) -> float:
        """Let it work, and return how much it did in a second."""
        return self._count / float(self._ask({"count": self._count})["seconds"])

    def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin
        with suppress(BrokenPipeError):  # without an answer, then
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        if not (line := self._process.stdout.readline()):
            self._errors.seek(0)
            last = self._errors.read().strip().rpartition("\n")[2] or "no message"
            raise UserError(f"The process of '{self.contender.key}' ended: {last}")
        found = json.loads(line)
        if "error" in found:
            raise UserError(found["error"])
        return cast(dict[str, Any], found)
