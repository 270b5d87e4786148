"""The other processes of a run: the chief's orders, who follows them, and who is lost."""

from __future__ import annotations

import json
import re
import signal
import socket
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from hookline.trainer.errors import WorkersError
from hookline.trainer.replicas.cluster import Cluster, cluster_of
from hookline.trainer.replicas.replica import Group, Messages, Replica, replicas_of
from hookline.trainer.replicas.start_cluster import start_cluster
from hookline.trainer.replicas.strategy import check_shared, local_replicas, share_of_devices
from hookline.trainer.run.checkpoint_files import tensors_digest
from hookline.trainer.run.fingerprint import facts_of, first_difference
from hookline.trainer.run.interruption import Interrupted, Interruption
from hookline.trainer.run.state import VariableValues, share_variables, trainer_variables

if TYPE_CHECKING:
    from hookline.trainer.run.run import Run

OUT_OF_TIME = 1000
"""In place of a signal's number: the wall-clock budget is over."""


class Kind(IntEnum):
    """Name the kinds of orders."""

    RUN = 1  # train up to the step
    MOVE = 2  # be at the step
    TAKE = 3  # be at the step, with the chief's variables
    COMPARE = 4  # tell the digest of the variables
    LEAVE = 5  # the run is over: done
    INTERRUPTED = 6  # the run is over before its time
    FAILED = 7


@dataclass(frozen=True)
class Order:
    """Hold an order of the chief. Where any worker was asked to end, a chunk is not begun: the chief saves and ends."""

    kind: Kind
    step: int
    number: int  # of the signal that ended the run, or `OUT_OF_TIME`; 0 for none
    asked: tuple[int, ...]  # for each worker what asks it to end, likewise


def ending(error: BaseException | None) -> Kind:
    """Return how the chief says that a run is over."""
    if error is None:
        return Kind.LEAVE
    return Kind.INTERRUPTED if isinstance(error, KeyboardInterrupt) else Kind.FAILED


def asked_by(interruption: Interruption) -> int:
    """Return the signal number that asks this worker to end; 0 for none."""
    if interruption.signal_number is not None:
        return int(interruption.signal_number)
    return 0 if interruption.reason is None else OUT_OF_TIME


def number_of(error: BaseException | None) -> int:
    """Return the signal behind an error as workers tell it."""
    if not isinstance(error, KeyboardInterrupt):
        return 0
    number = getattr(error, "signal_number", signal.SIGINT)
    return OUT_OF_TIME if number is None else int(number)


def signal_of(number: int) -> int | None:
    """Return the signal with a number; None if there is none, as when time is over."""
    return None if number in (0, OUT_OF_TIME) else number


Variables = Mapping[str, tf.Variable]
COMPLETE = "The run is complete: nothing is left to do."
"""What the chief sends the others instead of a start."""


class Workers:
    """Be the only process of a run: there is no other to agree with, and nothing costs anything.

    Attributes:
        index: of this worker; 0 is the chief, which alone has host hooks, and writes.
        count: how many there are.
    """

    index = 0
    count = 1

    def replicas(self, settings: Mapping[str, Any]) -> list[Replica]:
        """Return the replicas of this process."""
        return local_replicas(settings.get("strategy", "none"), settings.get("replicas"), settings["batch_size"])

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Turn TensorFlow's errors on the loss of a worker into one line."""
        yield

    def compare(self, run: Run) -> None:
        """Compare what must be equal on all workers, once, before the start."""

    def run_to(self, step: int) -> tuple[str, int | None] | None:
        """Let all workers begin a chunk."""
        del step
        return None

    def move(self, step: int) -> None:
        """Let all workers be at a step, with the variables that they have."""

    def take(self, step: int, variables: Variables) -> None:
        """Bring all workers to a step with the chief's variables, after something outside the step wrote them."""

    def check_equal(self, variables: Variables) -> None:
        """Warn where the variables of a worker are not those of the chief, bit for bit; called after the last step."""

    def leave(self, error: BaseException | None, *, complete: bool = False) -> None:
        """Tell the other workers that this one ends."""

    def summary(self) -> dict[str, Any]:
        """Return what summary.json holds of the workers."""
        return {}


class ClusterWorkers(Workers):
    """Be one of several processes of a run."""

    def __init__(self, cluster: Cluster, messages: Messages, timeout: float) -> None:
        """Begin."""
        self.index, self.count = cluster.index, len(cluster.addresses)
        self.directory = ""
        self._cluster, self._messages, self._timeout = cluster, messages, timeout
        self._started = self._over = False
        self._equal: bool | None = None

    def replicas(self, settings: Mapping[str, Any]) -> list[Replica]:
        devices = share_of_devices(*self._cluster.beside)
        counts = [int(each["replicas"]) for each in self._tell({"replicas": len(devices)})]
        check_shared(settings["batch_size"], sum(counts))
        return replicas_of(devices, first=sum(counts[: self.index]), count=sum(counts))

    @contextmanager
    def watching(self) -> Iterator[None]:
        try:
            with abort_after(self._timeout):
                yield
        except tf.errors.OpError as error:
            if not is_loss(error):
                raise
            self._over = True
            raise WorkersError(describe_loss(str(error), self._cluster, self.directory)) from None

    def compare(self, run: Run) -> None:
        told = self._tell({"facts": facts_of(run), "directory": str(run.directory.absolute())})
        self.directory, self._started = str(told[0]["directory"]), True
        if found := first_difference([each["facts"] for each in told]):
            raise WorkersError(found)

    def run_to(self, step: int) -> tuple[str, int | None] | None:
        asked = self._order(Kind.RUN, step).asked
        for worker, number in enumerate(asked):
            if number:
                known = signal_of(number)
                what = "trainer.max_seconds" if known is None else signal.Signals(known).name
                return f"{what} on worker {worker}", known
        return None

    def move(self, step: int) -> None:
        self._order(Kind.MOVE, step)

    def take(self, step: int, variables: Variables) -> None:
        self._order(Kind.TAKE, step)
        self.share(variables)

    def share(self, variables: Variables) -> None:
        """Give the variables of every worker the chief's values."""
        for key in sorted(variables):
            value = variables[key].numpy()
            with self.watching():
                given = self._messages.from_first(np.ascontiguousarray(value).tobytes())
            if self.index:
                variables[key].assign(np.frombuffer(given, value.dtype).reshape(value.shape))

    def check_equal(self, variables: Variables) -> None:
        self._order(Kind.COMPARE, 0)
        if others := self.other_digests(variables):
            warnings.warn(
                f"The variables of {named(others)} are not those of worker 0 after the last step. Their machines "
                "compute differently: give all workers the same kind.",
                stacklevel=2,
            )

    def other_digests(self, variables: Variables) -> list[int]:
        """Return the workers whose variables are not those of the chief."""
        with self.watching():
            digests = self._messages.gather(tensors_digest(VariableValues(variables)).encode())
        others = [worker for worker, digest in enumerate(digests) if digest != digests[0]]
        self._equal = not others
        return others

    def leave(self, error: BaseException | None, *, complete: bool = False) -> None:
        if self._over or isinstance(error, WorkersError):
            return
        with suppress(WorkersError, Interrupted):  # the error that ends this one counts
            if not self._started:
                ended = COMPLETE if complete else (str(error) or type(error).__name__)
                self._tell({"ended": ended, "number": number_of(error)})
            elif self.index == 0:
                self._order(ending(error), 0, number_of(error))

    def summary(self) -> dict[str, Any]:
        return {"workers": {"count": self.count, "equal": self._equal}}

    def next_order(self, interruption: Interruption) -> Order:
        """Wait for the chief's next order."""
        return self._exchange(0, 0, 0, asked_by(interruption))

    def _order(self, kind: Kind, step: int, number: int = 0) -> Order:
        return self._exchange(kind, step, number, 0)

    def _exchange(self, kind: int, step: int, number: int, asked: int) -> Order:
        own = np.zeros(3 + self.count, np.int64)
        own[:3] = kind, step, number
        own[3 + self.index] = asked
        with self.watching():
            kind, step, number, *everyone = map(int, self._messages.add(own))
        return Order(Kind(kind), step, number, tuple(everyone))

    def _tell(self, said: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return what each worker says before the start; any of them may say instead that it ends."""
        with self.watching():
            told = [json.loads(each) for each in self._messages.gather(json.dumps(said).encode())]
        for worker, each in enumerate(told):
            if "ended" in each:
                self._over = True
                if each["ended"] == COMPLETE or each["number"]:
                    raise Interrupted(each["ended"], signal_of(each["number"]))
                raise WorkersError(f"Worker {worker} ended before the start: {each['ended']}")
        return told


def join_workers(settings: Mapping[str, Any]) -> Workers:
    """Return the workers of a run, once all have come; at once where there is one process."""
    cluster = cluster_of(settings)
    if cluster is None or len(cluster.addresses) == 1:
        return Workers()
    start_cluster(cluster)
    messages = Messages(cluster.index, Group(len(cluster.addresses)))
    return ClusterWorkers(cluster, messages, settings.get("worker_timeout", 0))


def follow(run: Run, workers: ClusterWorkers) -> None:
    """Train beside the chief: follow its orders until the run is over."""
    variables = trainer_variables(run.trainer)
    interruption = Interruption(run.settings["max_seconds"])
    step = 0
    with interruption.listening():
        while True:
            order = workers.next_order(interruption)
            if order.kind is Kind.RUN:
                if not any(order.asked):
                    with workers.watching():
                        step, _ = run.loop.run(step, order.step - step)
            elif order.kind is Kind.MOVE:
                step = order.step
            elif order.kind is Kind.TAKE:
                step = order.step
                workers.share(variables)
                share_variables(run.loop.trainers)
            elif order.kind is Kind.COMPARE:
                workers.other_digests(variables)
            else:
                return _end(order)


def _end(order: Order) -> None:
    if order.kind is Kind.INTERRUPTED:
        raise Interrupted("Ended with worker 0, which has saved the run.", signal_of(order.number))
    if order.kind is Kind.FAILED:
        raise WorkersError("Worker 0 failed: its output says why.")


TASK = re.compile(r"/job:worker/(?:replica:\d+/)?task:(\d+)")
LOST = (tf.errors.UnavailableError, tf.errors.DeadlineExceededError, tf.errors.AbortedError)
ABORTED = "Collective ops is aborted"
ANSWER_SECONDS = 2.0


def is_loss(error: tf.errors.OpError) -> bool:
    """Return whether a TensorFlow error means that workers have lost each other."""
    return isinstance(error, LOST) or ABORTED in str(error)


def describe_loss(error: str, cluster: Cluster, directory: str) -> str:
    """Return one line on which workers are gone and how to resume."""
    others = [worker for worker in range(len(cluster.addresses)) if worker != cluster.index]
    gone = [worker for worker in others if not _answers(cluster.addresses[worker])]
    gone = gone or sorted({int(number) for number in TASK.findall(error)} & set(others))
    return (
        f"{named(gone)} {'are' if len(gone) > 1 else 'is'} gone, or no longer answering; the output there may say why. "
        f"Resume by starting all workers again with resume={directory or '<run>'}"
    )


def named(workers: Sequence[int]) -> str:
    """Return workers in words."""
    if not workers:
        return "A worker"
    if len(workers) == 1:
        return f"Worker {workers[0]}"
    return f"Workers {', '.join(map(str, workers[:-1]))} and {workers[-1]}"


@contextmanager
def abort_after(seconds: float) -> Iterator[None]:
    """Make sums that wait for other workers fail after some time; a timeout in each sum would cost each a timer."""
    if not seconds:
        yield
        return
    message = f"Waited for {seconds:g} s (trainer.worker_timeout)"
    abort = threading.Timer(
        seconds, lambda: context.context().abort_collective_ops(tf.errors.DEADLINE_EXCEEDED, message)
    )
    abort.daemon = True
    abort.start()
    try:
        yield
    finally:
        abort.cancel()


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS).close()
    except OSError:
        return False
    return True
