"""A contender in a process of its own: it prepares once, then works for one turn per request.

Its argument describes the contender in JSON; each line on standard input requests a turn. Answers are lines of JSON on
standard output; everything else goes to standard error. The virtual environments of other frameworks run this module
too, so it needs only the standard library.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a script run as a file cannot import its project

from hookline.trainer.errors import UserError

WORKER = Path(__file__).resolve()
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
"""Environment variables that libraries read once, when they are loaded."""
TRIAL, WARM_UP = 0.2, 0.3
"""Fractions of a turn's time: the shortest trial that measures the speed reliably, and an untimed warm-up."""
LAST_SECONDS = 10.0
"""Time for a process to end by itself."""
PACKAGES = (
    *("tensorflow", "keras", "tf_keras", "larq", "tensorflow_model_optimization", "torch", "numpy", "numba"),
    *("onnxruntime", "ai_edge_litert"),
)
"""Their versions are reported if they are loaded."""
MODULES = {"input": "inputs", "images": "inputs", "training": "training", "inference": "inference"}
"""Where the contenders of each comparison are."""
ENVIRONMENTS = {"pytorch": "torch", "larq": "larq", "tfmot": "tfmot"}
"""The virtual environments that contenders need, by the first word of their names."""


@dataclass(frozen=True)
class Settings:
    """Settings of the command line for every contender."""

    data: str = ""  # path of the data; empty for generated data
    batch_size: int | None = None  # None for that of the case
    threads: int | None = None  # of the framework; None for as many as there are cores


Work = Callable[[int], float | None]
"""work(count) does `count` units of work and returns the seconds to count; None for the whole elapsed time."""
Prepare = Callable[[Settings], Work]
"""A contender: it imports its framework, and may raise a `UserError`."""


def find_contenders(what: str) -> dict[str, dict[str, Prepare]]:
    """Return the contenders of a comparison by case and name."""
    module = importlib.import_module(f"hookline.scripts.benchmarks.{MODULES[what]}")
    return module.CONTENDERS[what]


def scratch() -> Path:
    """Return an empty folder that is removed when this process ends."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


class Worker:
    """The process of a contender."""

    def __init__(self, key: tuple[str, str, str], environments: str, settings: Settings, seconds: float) -> None:
        """Start the contender of a comparison, case and name (`key`); its turns take about `seconds`."""
        self.name, self.speeds = key[2], list[float]()
        environment, python = ENVIRONMENTS.get(self.name.split()[0]), Path(sys.executable)
        if environment:
            folder = Path(environments).expanduser() / environment
            python = folder / "bin" / "python"
            if not environments or not python.is_file() or (folder / "incomplete").exists():
                raise UserError(f"{environment} is not installed; see environments= in --help.")
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `close`
        self._process = subprocess.Popen(
            [str(python), str(WORKER), json.dumps([key, asdict(settings), seconds])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={
                **os.environ,
                **dict.fromkeys(THREADS if settings.threads else (), str(settings.threads)),
                "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # contenders share a GPU
                "TF_USE_LEGACY_KERAS": str(int(environment is not None)),  # Larq and TFMOT need it
            },
        )

    def versions(self) -> dict[str, str]:
        """Wait until it is prepared, and return the versions of the packages that it has loaded."""
        return {name: str(each) for name, each in self._answer().items()}

    def turn(self) -> None:
        """Run one turn, and append its units per second to `speeds`."""
        assert self._process.stdin
        with suppress(BrokenPipeError):  # then there is no answer either
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        self.speeds.append(self._answer()["speed"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        if not (line := self._process.stdout.readline()):
            self._errors.seek(0)
            last = self._errors.read().strip().rpartition("\n")[2] or "no message"
            raise UserError(f"The process of '{self.name}' ended: {last}")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise UserError(found["error"])
        return found

    def close(self) -> None:
        """End the process, which removes its temporary files at the end of its input."""
        with suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=LAST_SECONDS)
        self._process.kill()
        self._process.wait()
        self._errors.close()


def main() -> None:
    """Prepare the contender that the argument describes, then work one turn for each line of the input."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(**message: Any) -> None:
        print(json.dumps(message), file=answers, flush=True)

    (what, case, name), settings, seconds = json.loads(sys.argv[1])
    environment = ENVIRONMENTS.get(name.split()[0])
    try:
        _load(environment, settings["threads"])
        work = find_contenders(what)[case][name](Settings(**settings))
        work(1)  # traces and compiles
    except UserError as error:
        answer(error=str(error))
        return
    count = 1
    while (taken := _seconds_of(work, count)) < TRIAL * seconds:
        count = max(2 * count, int(count * TRIAL * seconds / max(taken, 1e-9)))
    count = max(1, round(count * seconds / taken))  # as many as fit into a turn
    answer(**_versions(environment))
    for _ in sys.stdin:
        start = time.perf_counter()
        while time.perf_counter() - start < WARM_UP * seconds:  # uses up what was prefetched in others' turns
            work(max(1, count // 20))
        answer(speed=count / _seconds_of(work, count))


def _load(environment: str | None, threads: int | None) -> None:
    """Import the framework, and set its number of threads."""
    if environment == "torch":
        importlib.import_module("torch").set_num_threads(threads or os.cpu_count() or 1)
        return
    from hookline.trainer.deferred import quiet_start

    with quiet_start():
        import tensorflow as tf
    if threads is not None:
        tf.config.threading.set_intra_op_parallelism_threads(threads)


def _seconds_of(work: Work, count: int) -> float:
    start = time.perf_counter()
    own = work(count)
    return time.perf_counter() - start if own is None else own


def _versions(environment: str | None) -> dict[str, str]:
    """Return the versions of the loaded packages, prefixed with the environment's name if it has one."""
    found = {"python": platform.python_version()} | {name: version(name) for name in PACKAGES if name in sys.modules}
    if environment:
        return {f"{environment}: {name}": each for name, each in found.items()}
    import tensorflow as tf

    devices = [tf.config.experimental.get_device_details(gpu) for gpu in tf.config.list_physical_devices("GPU")]
    return {**found, "accelerators": ", ".join(str(each.get("device_name", "GPU")) for each in devices) or "none"}


if __name__ == "__main__":
    main()
