"""Workers that talk within one process, one a thread, and runs of several real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from hookline.trainer.replicas.cluster import Cluster
from hookline.trainer.replicas.messages import Messages
from hookline.trainer.replicas.replica import Group
from hookline.trainer.run.workers import ClusterWorkers

ROOT = Path(__file__).resolve().parents[2]


class Hub:
    """Add up what the threads give."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._given: dict[int, np.ndarray] = {}
        self._sum = np.zeros(0, np.int64)
        self._all = threading.Barrier(count, action=self._add, timeout=20)
        self._read = threading.Barrier(count, timeout=20)

    def _add(self) -> None:
        self._sum = np.sum([self._given[index] for index in range(self.count)], axis=0)

    def add(self, index: int, values: np.ndarray) -> np.ndarray:
        self._given[index] = values
        self._all.wait()
        result = self._sum.copy()
        self._read.wait()
        return result


class HubMessages(Messages):
    """Meet the other workers in a hub in place of TensorFlow."""

    def __init__(self, index: int, hub: Hub) -> None:
        super().__init__(index, Group(hub.count))
        self._hub = hub

    def add(self, values: np.ndarray) -> np.ndarray:
        assert values.dtype == np.int64
        return self._hub.add(self.index, values)


def in_threads(count: int, work: Callable[[int, Hub], Any]) -> list[Any]:
    """Return what each worker returned, or the error that it raised."""
    hub = Hub(count)

    def run(index: int) -> Any:
        try:
            return work(index, hub)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def hub_workers(index: int, hub: Hub) -> ClusterWorkers:
    """Return the workers of a thread."""
    cluster = Cluster(tuple(f"127.0.0.1:{number}" for number in range(1, hub.count + 1)), index, "TF_CONFIG")
    return ClusterWorkers(cluster, HubMessages(index, hub), 0.0)


class Launched:
    """Hold a run of several workers that goes on in the background."""

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
