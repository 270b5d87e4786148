"""The process of one contender, both ends: it prepares once, and works as much as requested, as often as requested.

Requests and answers are lines of JSON on standard input and output; what else is printed goes to standard error.
It may run in the virtual environment of another framework.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a file, a script does not see its project

from hookline.scripts.benchmarks.contender import TENSORFLOW, Contender, Settings, Work, find_contenders
from hookline.trainer.errors import UserError

WORKER = Path(__file__).resolve()
INCOMPLETE = "incomplete"
"""File in a virtual environment that `environments.sh` has not finished."""
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
"""Variables of the environment that libraries read once, when they are loaded."""


def interpreter(contender: Contender, environments: str) -> Path | None:
    """Return the Python that a contender runs with; None if its virtual environment is missing or half-made."""
    if not contender.environment:
        return Path(sys.executable)
    folder = Path(environments).expanduser() / contender.environment
    python = folder / "bin" / "python"
    return python if environments and python.is_file() and not (folder / INCOMPLETE).exists() else None


class Worker:
    """Run a contender in a process of its own."""

    def __init__(self, contender: Contender, python: Path, settings: Settings, seconds: float) -> None:
        """Take what the process is started with."""
        self.contender, self.settings = contender, settings
        self.facts: dict[str, Any] = {}  # what it reported when it was prepared: see `Work`
        self.versions: dict[str, str] = {}  # of what it runs with
        self._python, self._seconds, self._count = python, seconds, 0

    def __enter__(self) -> Worker:
        self._errors = tempfile.TemporaryFile("w+")
        threads = [] if self.settings.threads is None else THREADS
        environment = {
            **os.environ,
            **dict.fromkeys(threads, str(self.settings.threads)),
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # contenders share a GPU
            "TF_USE_LEGACY_KERAS": str(int(bool(self.contender.environment))),  # Larq and TFMOT need it
        }
        self._process = subprocess.Popen(
            [str(self._python), str(WORKER), self.contender.key],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def prepare(self) -> None:
        """Let it prepare and find its speed."""
        found = self._ask(settings=asdict(self.settings), seconds=self._seconds)
        self._count, self.facts, self.versions = found["count"], found["facts"], found["versions"]

    def speed(self) -> float:
        """Let it work, and return how much it did in a second."""
        return self._count / float(self._ask(count=self._count)["seconds"])

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        with suppress(BrokenPipeError):  # without an answer, then
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            self._errors.seek(0)
            last = self._errors.read().strip().rpartition("\n")[2] or "no message"
            raise UserError(f"The process of '{self.contender.key}' ended: {last}")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise UserError(found["error"])
        return found


SMALLEST = 0.2
"""Share of the time of a turn that must have passed before the speed is believed."""
WARM_UP = 0.3
"""Share of the time of a turn that is worked before it, and not counted."""
TORCH = "torch"
PACKAGES: tuple[str, ...] = ("tensorflow", "keras", "tf_keras", "larq", "tensorflow_model_optimization", TORCH)
PACKAGES += ("numpy", "numba", "onnxruntime", "ai_edge_litert")
"""Those whose versions are reported if they are loaded."""


def main() -> None:
    """Serve requests to the contender that the argument names until the input ends; the first one prepares it."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    (contender,) = [each for each in find_contenders() if each.key == sys.argv[1]]
    if not (line := sys.stdin.readline()):
        return
    request = json.loads(line)
    try:
        work = _prepare(contender, Settings(**request["settings"]))
        loss = mean_loss(work, contender.loss_steps)
        count = calibrate(work, request["seconds"])
    except UserError as error:
        _answer(answers, {"error": str(error)})
        return
    facts = {**getattr(work, "facts", {}), **({} if loss is None else {"loss": loss})}
    _answer(answers, {"count": count, "versions": _versions(contender.environment), "facts": facts})
    for line in sys.stdin:
        count = json.loads(line)["count"]
        warm_up(work, count, WARM_UP * request["seconds"])
        _answer(answers, {"seconds": seconds_of(work, count)})


def _prepare(contender: Contender, settings: Settings) -> Work:
    if contender.environment == TORCH:
        importlib.import_module(TORCH).set_num_threads(settings.threads or os.cpu_count() or 1)
    elif contender.imports:
        from hookline.trainer.quiet import quiet_start

        with quiet_start():
            framework = importlib.import_module(contender.imports)
        if settings.threads is not None:
            framework.config.threading.set_intra_op_parallelism_threads(settings.threads)
    return contender.prepare(settings)


def mean_loss(work: Work, steps: int) -> float | None:
    """Return the mean loss over the second half of so many steps from the start; None if there is none."""
    if not steps:
        return None
    work(steps // 2)
    done = work(steps - steps // 2)
    return None if done is None else done.loss


def calibrate(work: Work, seconds: float) -> int:
    """Return how much work fits into a time. The first unit, which traces and compiles, does not count."""
    work(1)
    count = 1
    while (taken := seconds_of(work, count)) < SMALLEST * seconds:
        count = max(2 * count, int(count * SMALLEST * seconds / max(taken, 1e-9)))
    return max(1, round(count * seconds / taken))


def warm_up(work: Work, count: int, seconds: float) -> None:
    """Work for some time, until everything prepared ahead during others' turns is used up."""
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        work(max(1, count // 20))


def seconds_of(work: Work, count: int) -> float:
    """Work, and return the seconds that count."""
    start = time.perf_counter()
    done = work(count)
    elapsed = time.perf_counter() - start
    return elapsed if done is None or done.seconds is None else done.seconds


def _answer(answers: Any, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _versions(environment: str) -> dict[str, str]:
    """Return the versions of what is loaded; those of another environment under its name."""
    found = {"python": platform.python_version()} | {name: version(name) for name in PACKAGES if name in sys.modules}
    if environment:
        return {f"{environment}: {name}": each for name, each in found.items()}
    if TENSORFLOW not in sys.modules:
        return found
    import tensorflow as tf

    accelerators = [tf.config.experimental.get_device_details(each) for each in tf.config.list_physical_devices("GPU")]
    return found | {"accelerators": ", ".join(str(each.get("device_name", "GPU")) for each in accelerators) or "none"}


if __name__ == "__main__":
    main()
