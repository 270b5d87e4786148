"""A contender: one way to do some work, timed in a process of its own against other ways to do the same.

It prepares once, then works as much and as often as requested. Requests and answers are lines of JSON on standard input
and output; everything else goes to standard error. The virtual environments of other frameworks run this module too, so
it needs the standard library alone.
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
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a file, a script does not see its project

from hookline.trainer.errors import UserError

WORKER = Path(__file__).resolve()
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
"""Environment variables that libraries read once, when they are loaded."""
TRIAL, WARM_UP = 0.2, 0.3
"""Share of a turn's time after which a measured speed is trusted, and that is worked uncounted before a turn."""
LAST_SECONDS = 10.0
"""For a process to end by itself."""
PACKAGES = (
    *("tensorflow", "keras", "tf_keras", "larq", "tensorflow_model_optimization", "torch", "numpy", "numba"),
    *("onnxruntime", "ai_edge_litert"),
)
"""Their versions are reported if they are loaded."""


@dataclass(frozen=True)
class Settings:
    """What the command line gives to every contender."""

    data: str = ""  # path of the data; empty for what is embedded or generated
    batch_size: int = 128
    threads: int | None = None  # of the framework; None for as many as there are cores


Work = Callable[[int], float | None]
"""work(count) does so many units of work, and returns the seconds that count; None for all that passed.

Its attribute `products`, if it has one: the multiply-accumulates of one example, forward and backward.
"""


@dataclass(frozen=True)
class Contender:
    """One way to do some work. Importing its module must be cheap."""

    what: str  # the comparison that it belongs to: `what=` of the command line
    case: str  # the work; contenders of one case do the same
    name: str  # unique in its case
    prepare: Callable[[Settings], Work]  # may raise a `UserError`
    baseline: bool = False  # whether others are compared with it; of several in a case, with the fastest
    limit: bool = False  # whether it does only a part of the work, and so bounds the speed of the others
    batch_size: int = 128  # unless the command line says otherwise
    environment: str = ""  # the virtual environment that its framework needs; empty for ours
    threads: int | None = None  # unless the command line says otherwise; None for as many as there are cores

    @property
    def key(self) -> str:
        """Return its identity among all contenders."""
        return f"{self.what}/{self.case}/{self.name}"


def scratch() -> Path:
    """Return an empty folder that is removed when this process ends."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def find_contenders() -> list[Contender]:
    """Return the contenders of all modules, in their order."""
    names = ("inputs", "inference", "training")
    modules = [importlib.import_module(f"hookline.scripts.benchmarks.{name}") for name in names]
    return [each for module in modules for each in module.CONTENDERS]


class Worker:
    """The process of a contender."""

    def __init__(self, contender: Contender, environments: str, settings: Settings, seconds: float) -> None:
        """Start it, and let it prepare and find how much work fits into the seconds of a turn."""
        self.contender, self.settings, self.speeds = contender, settings, list[float]()
        folder, python = Path(environments).expanduser() / contender.environment, Path(sys.executable)
        if contender.environment:
            python = folder / "bin" / "python"
            if not environments or not python.is_file() or (folder / "incomplete").exists():
                raise UserError(f"{contender.environment} is not installed; see environments= in --help.")
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `close`
        threads = [] if settings.threads is None else THREADS
        self._process = subprocess.Popen(
            [str(python), str(WORKER), contender.key],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={
                **os.environ,
                **dict.fromkeys(threads, str(settings.threads)),
                "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # contenders share a GPU
                "TF_USE_LEGACY_KERAS": str(int(bool(contender.environment))),  # Larq and TFMOT need it
            },
        )
        try:
            found = self._ask(settings=asdict(settings), seconds=seconds)
        except UserError:
            self.close()
            raise
        self._count: int = found["count"]
        self.products: int | None = found["products"]
        self.versions: dict[str, str] = found["versions"]

    def close(self) -> None:
        """End the process, which removes its temporary files at the end of its input."""
        with suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=LAST_SECONDS)
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def turn(self) -> None:
        """Let it work once, and note how many units it did in a second."""
        self.speeds.append(self._count / float(self._ask(count=self._count)["seconds"]))

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        with suppress(BrokenPipeError):  # then there is no answer either
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


def main() -> None:
    """Serve the contender that the argument names until the input ends; the first request prepares it."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(**message: Any) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    (contender,) = [each for each in find_contenders() if each.key == sys.argv[1]]
    request = json.loads(sys.stdin.readline())
    seconds = request["seconds"]
    try:
        work = _prepare(contender, Settings(**request["settings"]))
        work(1)  # traces and compiles
        count = 1
        while (taken := _seconds_of(work, count)) < TRIAL * seconds:
            count = max(2 * count, int(count * TRIAL * seconds / max(taken, 1e-9)))
        count = max(1, round(count * seconds / taken))  # that fits into a turn
    except UserError as error:
        answer(error=str(error))
        return
    answer(count=count, products=getattr(work, "products", None), versions=_versions(contender.environment))
    for line in sys.stdin:
        count, start = json.loads(line)["count"], time.perf_counter()
        while time.perf_counter() - start < WARM_UP * seconds:  # uses up what was prepared during others' turns
            work(max(1, count // 20))
        answer(seconds=_seconds_of(work, count))


def _prepare(contender: Contender, settings: Settings) -> Work:
    """Import the framework with so many threads, and return the work."""
    if contender.environment == "torch":
        importlib.import_module("torch").set_num_threads(settings.threads or os.cpu_count() or 1)
    else:
        from hookline.trainer.deferred import quiet_start

        with quiet_start():
            import tensorflow as tf
        if settings.threads is not None:
            tf.config.threading.set_intra_op_parallelism_threads(settings.threads)
    return contender.prepare(settings)


def _seconds_of(work: Work, count: int) -> float:
    start = time.perf_counter()
    own = work(count)
    return time.perf_counter() - start if own is None else own


def _versions(environment: str) -> dict[str, str]:
    """Return the versions of what is loaded; those of another environment under its name."""
    found = {"python": platform.python_version()} | {name: version(name) for name in PACKAGES if name in sys.modules}
    if environment:
        return {f"{environment}: {name}": each for name, each in found.items()}
    import tensorflow as tf

    devices = [tf.config.experimental.get_device_details(gpu) for gpu in tf.config.list_physical_devices("GPU")]
    return {**found, "accelerators": ", ".join(str(each.get("device_name", "GPU")) for each in devices) or "none"}


if __name__ == "__main__":
    main()
