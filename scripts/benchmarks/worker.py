"""The process of one contender: it prepares once, and does as much work as it is told, as often as it is told.

Requests and answers are lines of JSON on standard input and output; what else is printed goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a file, it does not see its project

from scripts.benchmarks.contender import Settings, Work, find_contenders
from trainer.errors import UserError

SMALLEST = 0.2
"""Share of the time of a turn that must have passed before the speed is believed."""
WARM_UP = 0.3
"""Share of the time of a turn that is worked before it, and not counted."""


def main() -> None:
    """Prepare the contender that the first line names, then serve requests until the input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    request = json.loads(sys.stdin.readline())
    try:
        work = _prepare(request["key"], Settings(**request["settings"]))
        count = _calibrate(work, request["seconds"])
    except UserError as error:
        _answer(answers, {"error": str(error)})
        return
    _answer(answers, {"count": count, "versions": _versions()})
    for line in sys.stdin:
        count = json.loads(line)["count"]
        _warm_up(work, count, WARM_UP * request["seconds"])
        _answer(answers, {"seconds": _seconds(work, count)})


def _prepare(key: str, settings: Settings) -> Work:
    from trainer.quiet import quiet_start

    with quiet_start():
        import tensorflow as tf
    if settings.threads is not None:
        tf.config.threading.set_intra_op_parallelism_threads(settings.threads)
    (contender,) = [each for each in find_contenders() if each.key == key]
    return contender.prepare(settings)


def _calibrate(work: Work, seconds: float) -> int:
    """Return how much work takes so long. The first unit, which traces and compiles, does not count."""
    work(1)
    count = 1
    while (taken := _seconds(work, count)) < SMALLEST * seconds:
        count = max(2 * count, int(count * SMALLEST * seconds / max(taken, 1e-9)))
    return max(1, round(count * seconds / taken))


def _warm_up(work: Work, count: int, seconds: float) -> None:
    """Work for some time. What was prepared ahead while others had their turns is used up by then."""
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        work(max(1, count // 20))


def _seconds(work: Work, count: int) -> float:
    start = time.perf_counter()
    work(count)
    return time.perf_counter() - start


def _answer(answers: Any, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _versions() -> dict[str, str]:
    import platform

    import keras
    import numpy as np
    import tensorflow as tf

    accelerators = [tf.config.experimental.get_device_details(each) for each in tf.config.list_physical_devices("GPU")]
    names = ", ".join(str(each.get("device_name", "GPU")) for each in accelerators) or "none"
    return {
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
        "accelerators": names,
    }


if __name__ == "__main__":
    main()
