"""Start the workers of a run on this machine.

python scripts/launch.py workers=<number> [grace=<seconds>] recipe=<name> [key=value ...]

  workers  processes to start on this machine, which share every batch
  grace    seconds that the others have to end on their own after one has failed; then SIGTERM, then SIGKILL

Everything else is passed to train.py. The output of worker 0 is printed unchanged, that of the others with a prefix.
Ctrl-C and SIGTERM are sent to all: the run is saved and ends. The exit code is the highest of the workers.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from hookline.scripts.command import make_main, parse_options
from hookline.scripts.sweep.run import TETHER, TRAIN, shell_code
from hookline.train import check
from hookline.trainer.errors import UserError
from hookline.trainer.replicas.cluster import check_workers
from hookline.trainer.run.directory import usable_cores

OURS = ("workers", "grace")
STRATEGY, THREADS = "trainer.strategy", "trainer.threads"
LAST_SECONDS = 10.0
"""Time between SIGTERM and SIGKILL."""
POLL_SECONDS = 0.1


@dataclass
class Options:
    """The options of the command line."""

    workers: int
    grace: float = 20.0
    overrides: list[str] = field(default_factory=list)  # for each worker


def parse(arguments: Sequence[str]) -> Options:
    """Return the options of a command line."""
    rest = [each for each in arguments if each.partition("=")[0] not in OURS]
    options = parse_options([each for each in arguments if each not in rest], Options)
    for text in rest:
        if text.startswith("-"):
            raise UserError(f"'{text}' received. Expected key=value; a sweep (-m) starts its jobs itself.")
        if text.partition("=")[0].lstrip("+") == STRATEGY and text.partition("=")[2] != "multi_worker":
            raise UserError(f"'{text}' received. Expected multi_worker, which this script sets itself.")
    if not rest:
        raise UserError("No recipe was given. Expected, for example: workers=2 recipe=bnn.")
    known = {each.partition("=")[0].lstrip("+") for each in rest}
    added = {STRATEGY: "multi_worker", THREADS: max(1, usable_cores() // options.workers)}
    options.overrides = [*rest, *(f"{key}={value}" for key, value in added.items() if key not in known)]
    return options


def checked(options: Options) -> Options:
    """Validate and return options, so that an error is reported once, before anything is started."""
    for job in check(options.overrides):
        check_workers(job.config["trainer"], options.workers)
    return options


def free_ports(count: int) -> list[int]:
    """Return unused ports of the loopback interface."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def environments(workers: int, environment: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the environment of each worker: all addresses, and its share of CUDA_VISIBLE_DEVICES if that suffices."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(workers)]
    gpus = [each for each in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
    result = []
    for index in range(workers):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        own = {"TF_CONFIG": json.dumps(task), "PYTHONUNBUFFERED": "1"}
        if len(gpus) >= workers:
            each = len(gpus) // workers
            own["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[index * each : (index + 1) * each])
        result.append({**environment, **own})
    return result


def launch(options: Options) -> int:
    """Start the workers, wait for them, and return the worst exit code."""
    workers: list[subprocess.Popen[bytes]] = []
    threads = []
    tether, held = os.pipe()
    command = [sys.executable, str(TETHER), str(tether), str(TRAIN), *options.overrides]
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda given, frame: _send(workers, given)) for number in signals]
    try:
        for index, environment in enumerate(environments(options.workers, os.environ)):
            shown = index == 0
            workers.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=None if shown else subprocess.PIPE,
                    stderr=None if shown else subprocess.STDOUT,
                    process_group=0,  # a new group: Ctrl-C arrives once, through the launcher
                    pass_fds=[tether],
                )
            )
            if not shown:
                threads.append(threading.Thread(target=_stream, args=(workers[index].stdout, index), daemon=True))
                threads[-1].start()
        number, due = signal.SIGTERM, math.inf
        while any(each.poll() is None for each in workers):
            now = time.monotonic()
            if due == math.inf and any(each.poll() for each in workers):  # one failed: the others get a grace period
                due = now + options.grace
            if now >= due:
                _send(workers, number)
                number, due = signal.SIGKILL, now + LAST_SECONDS
            time.sleep(POLL_SECONDS)
        return max(shell_code(each.returncode) for each in workers)
    finally:
        _send(workers, signal.SIGKILL)
        for thread in threads:
            thread.join(timeout=5.0)
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
        os.close(tether)
        os.close(held)


def _send(workers: Sequence[subprocess.Popen[bytes]], number: int) -> None:
    """Send a signal to the process group of every running worker."""
    for each in workers:
        if each.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(each.pid, number)


def _stream(lines: IO[bytes], index: int) -> None:
    """Print the lines of a worker, each prefixed with its number."""
    with lines:
        for line in lines:
            sys.stdout.write(f"[worker {index}] {line.decode(errors='replace').rstrip()}\n")
            sys.stdout.flush()


main = make_main(__doc__, lambda arguments: checked(parse(arguments)), launch)

if __name__ == "__main__":
    sys.exit(main())
