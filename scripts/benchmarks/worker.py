"""The process of one contender: it prepares once, and does as much work as requested, as often as requested.

Requests and answers are lines of JSON on standard input and output; what else is printed goes to standard error.
It may run in the virtual environment of another framework.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a file, a script does not see its project

from hookline.scripts.benchmarks.contender import TENSORFLOW, Contender, Settings, Work, find_contenders
from hookline.trainer.errors import UserError

SMALLEST = 0.2
"""Share of the time of a turn that must have passed before the speed is believed."""
WARM_UP = 0.3
"""Share of the time of a turn that is worked before it, and not counted."""
TORCH = "torch"
SHOWN = {
    "tensorflow": "tensorflow",
    "keras": "keras",
    "tf_keras": "tf_keras",
    "larq": "larq",
    "tensorflow_model_optimization": "tensorflow-model-optimization",
    "torch": "torch",
    "numpy": "numpy",
    "numba": "numba",
    "onnxruntime": "onnxruntime",
    "ai_edge_litert": "ai-edge-litert",
}
"""Modules whose versions are reported if they are loaded, with the packages that they come in."""


def main() -> None:
    """Import the framework of the contender that the argument names, then serve requests until the input ends.

    The first answer says that it is imported, the second, to the settings, that the contender is prepared.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    (contender,) = [each for each in find_contenders() if each.key == sys.argv[1]]
    _import_framework(contender)
    _answer(answers, {})
    if not (line := sys.stdin.readline()):
        return
    request = json.loads(line)
    try:
        work = _prepare(contender, Settings(**request["settings"]))
        loss = _loss(work, contender.loss_steps)
        count = _calibrate(work, request["seconds"])
    except UserError as error:
        _answer(answers, {"error": str(error)})
        return
    facts = {**getattr(work, "facts", {}), **({} if loss is None else {"loss": loss})}
    _answer(answers, {"count": count, "versions": _versions(contender.environment), "facts": facts})
    for line in sys.stdin:
        count = json.loads(line)["count"]
        _warm_up(work, count, WARM_UP * request["seconds"])
        _answer(answers, {"seconds": _seconds(work, count)})


def _import_framework(contender: Contender) -> None:
    if contender.environment == TORCH:
        importlib.import_module(TORCH)
        return
    if not contender.imports:
        return
    from hookline.trainer.quiet import quiet_start

    with quiet_start():
        importlib.import_module(contender.imports)


def _prepare(contender: Contender, settings: Settings) -> Work:
    if contender.environment == TORCH:
        importlib.import_module(TORCH).set_num_threads(settings.threads or os.cpu_count() or 1)
    elif settings.threads is not None and TENSORFLOW in sys.modules:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(settings.threads)
    return contender.prepare(settings)


def _loss(work: Work, steps: int) -> float | None:
    """Return the mean loss over the second half of so many steps from the start; None if there is none."""
    if not steps:
        return None
    work(steps // 2)
    done = work(steps - steps // 2)
    return None if done is None else done.loss


def _calibrate(work: Work, seconds: float) -> int:
    """Return how much work fits into a time. The first unit, which traces and compiles, does not count."""
    work(1)
    count = 1
    while (taken := _seconds(work, count)) < SMALLEST * seconds:
        count = max(2 * count, int(count * SMALLEST * seconds / max(taken, 1e-9)))
    return max(1, round(count * seconds / taken))


def _warm_up(work: Work, count: int, seconds: float) -> None:
    """Work for some time, until everything prepared ahead during others' turns is used up."""
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        work(max(1, count // 20))


def _seconds(work: Work, count: int) -> float:
    start = time.perf_counter()
    done = work(count)
    elapsed = time.perf_counter() - start
    return elapsed if done is None or done.seconds is None else done.seconds


def _answer(answers: Any, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _versions(environment: str) -> dict[str, str]:
    """Return the versions of what is loaded; those of another environment under its name."""
    found = {"python": platform.python_version()}
    found |= {name: version(package) for name, package in SHOWN.items() if name in sys.modules}
    if environment:
        return {f"{environment}: {name}": each for name, each in found.items()}
    if TENSORFLOW not in sys.modules:
        return found
    import tensorflow as tf

    accelerators = [tf.config.experimental.get_device_details(each) for each in tf.config.list_physical_devices("GPU")]
    return found | {"accelerators": ", ".join(str(each.get("device_name", "GPU")) for each in accelerators) or "none"}


if __name__ == "__main__":
    main()
