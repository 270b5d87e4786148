"""The processes of a run: checks that they agree, orders from the chief, and the loss of a worker."""

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
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from hookline.trainer.config.overrides import resume_override
from hookline.trainer.config.parts import used_plugins
from hookline.trainer.config.schema import check_parts, leaves
from hookline.trainer.errors import Interrupted, WorkersError
from hookline.trainer.hook import Run
from hookline.trainer.replicas.cluster import Cluster, cluster_of, start_cluster
from hookline.trainer.replicas.replica import Group, Messages, Replica, local_replicas, replicas_of, share_of_devices
from hookline.trainer.run.checkpoint_files import tensors_digest
from hookline.trainer.run.control import Interruption
from hookline.trainer.run.directory import environment
from hookline.trainer.run.state import share_variables, trainer_variables, values_by_key

OUT_OF_TIME = 1000
"""Used instead of a signal's number: the wall-clock budget is spent."""


class Kind(IntEnum):
    """Enumerate the orders of the chief."""

    RUN = 1  # train up to the step
    MOVE = 2  # move to the step
    TAKE = 3  # move to the step and take the chief's variables
    COMPARE = 4  # send the digest of the variables
    LEAVE = 5  # the run is complete
    INTERRUPTED = 6  # the run ended early
    FAILED = 7


@dataclass(frozen=True)
class Order:
    """Hold an order of the chief. If any worker was asked to end, no chunk starts: the chief saves and ends."""

    kind: Kind
    step: int
    number: int  # of the signal that ended the run, or `OUT_OF_TIME`; 0 for none
    asked: tuple[int, ...]  # for each worker, the signal that asks it to end, encoded like `number`


def _asked_by(interruption: Interruption) -> int:
    """Return the signal number that asks this worker to end; 0 for none."""
    if interruption.signal_number is not None:
        return int(interruption.signal_number)
    return 0 if interruption.reason is None else OUT_OF_TIME


def _number_of(error: BaseException | None) -> int:
    """Return the number of the signal behind an error, as workers send it."""
    if not isinstance(error, KeyboardInterrupt):
        return 0
    number = getattr(error, "signal_number", signal.SIGINT)
    return OUT_OF_TIME if number is None else int(number)


def _signal_of(number: int) -> int | None:
    return None if number in (0, OUT_OF_TIME) else number


SEPARATE = ("debug", "run_dir")
"""Keys of the config that may differ between workers."""


def facts_of(run: Run) -> dict[str, str]:
    """Return the facts that must be equal on all workers before the start, as text by name."""
    config, resumed = run.config, run.config["resume"] is not None
    here, variables = environment(), trainer_variables(run.trainer)
    facts = {f"the version of {name}": version for name, version in here["packages"].items()}
    facts |= {f"the version of the plugin {name}": str(here["plugins"].get(name)) for name in used_plugins(config)}
    facts |= {"the version of python": here["python"], "the commit of this project": str(here["git_commit"])}
    separate = (*SEPARATE, "init_from") if resumed else SEPARATE
    facts |= {name: repr(value) for name, value in leaves(config) if name.partition(".")[0] not in separate}
    facts["the data"] = run._fingerprint
    facts["the variables"] = " ".join(f"{key} {variables[key].shape}" for key in sorted(variables))
    if not resumed:  # otherwise the chief sends its own
        facts["the initial values of the variables"] = tensors_digest(values_by_key(variables))
    return facts


def first_difference(facts: Sequence[Mapping[str, str]]) -> str | None:
    """Return a line about the first worker that differs from the chief; None if all are equal."""
    for worker, theirs in enumerate(facts):
        for name in dict.fromkeys([*facts[0], *theirs]):
            was, is_ = facts[0].get(name, "missing"), theirs.get(name, "missing")
            if was != is_:
                values = f": {is_} there, {was} on worker 0" if len(was) + len(is_) < 120 else ""
                return f"Worker {worker} differs from worker 0 in {name}{values}. Expected the same on all."
    return None


Variables = Mapping[str, tf.Variable]
COMPLETE = "The run is complete: nothing is left to do."
"""Sent by the chief to the other workers instead of starting a complete run."""


class Workers:
    """Represent the only process of a run, with no others to coordinate with."""

    index = 0  # 0 is the chief; only it has host hooks and writes files
    count = 1

    def replicas(self, settings: Mapping[str, Any]) -> list[Replica]:
        """Return the replicas of this process."""
        return local_replicas(settings.get("strategy", "none"), settings.get("replicas"), settings["batch_size"])

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Turn TensorFlow's errors about the loss of a worker into a one-line `WorkersError`."""
        yield

    def compare(self, run: Run) -> None:
        """Check once, before the start, that all workers agree."""

    def run_to(self, step: int) -> tuple[str, int | None] | None:
        """Start a chunk on all workers; if one was asked to end, return the reason and its signal instead."""
        return None

    def move(self, step: int) -> None:
        """Move all workers to a step; they keep their variables."""

    def take(self, step: int, variables: Variables) -> None:
        """Move all workers to a step and give them the chief's variables, after these were changed outside a step."""

    def check_equal(self, variables: Variables) -> None:
        """Warn if the variables of a worker are not bit-identical to the chief's; called after the last step."""

    def leave(self, error: BaseException | None, *, complete: bool = False) -> None:
        """Report to the other workers that this one ends."""

    def summary(self) -> dict[str, Any]:
        """Return the entries of summary.json about the workers."""
        return {}


class ClusterWorkers(Workers):
    """Represent one of several processes of a run."""

    def __init__(self, cluster: Cluster, messages: Messages, timeout: float) -> None:
        self.index, self.count = cluster.index, len(cluster.addresses)
        self.directory = ""
        self._cluster, self._messages, self._timeout = cluster, messages, timeout
        self._started = self._over = False
        self._equal: bool | None = None

    def replicas(self, settings: Mapping[str, Any]) -> list[Replica]:
        devices = share_of_devices(*self._cluster.beside)
        counts = [int(each["replicas"]) for each in self._gather({"replicas": len(devices)})]
        check_parts(settings["batch_size"], sum(counts), f"{sum(counts)} replicas", "replicas")
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
        all_facts = self._gather({"facts": facts_of(run), "directory": str(run.directory.absolute())})
        self.directory, self._started = str(all_facts[0]["directory"]), True
        if found := first_difference([each["facts"] for each in all_facts]):
            raise WorkersError(found)

    def run_to(self, step: int) -> tuple[str, int | None] | None:
        asked = self._order(Kind.RUN, step).asked
        for worker, number in enumerate(asked):
            if number:
                known = _signal_of(number)
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
                "compute differently: use the same kind of machine for all workers.",
                stacklevel=2,
            )

    def other_digests(self, variables: Variables) -> list[int]:
        """Return the workers with variables that differ from the chief's."""
        with self.watching():
            digests = self._messages.gather(tensors_digest(values_by_key(variables)).encode())
        others = [worker for worker, digest in enumerate(digests) if digest != digests[0]]
        self._equal = not others
        return others

    def leave(self, error: BaseException | None, *, complete: bool = False) -> None:
        if self._over or isinstance(error, WorkersError):
            return
        with suppress(WorkersError, Interrupted):  # the error that ends this worker matters more
            if not self._started:
                ended = COMPLETE if complete else (str(error) or type(error).__name__)
                self._gather({"ended": ended, "number": _number_of(error)})
            elif self.index == 0:
                early = Kind.INTERRUPTED if isinstance(error, KeyboardInterrupt) else Kind.FAILED
                self._order(Kind.LEAVE if error is None else early, 0, _number_of(error))

    def summary(self) -> dict[str, Any]:
        return {"workers": {"count": self.count, "equal": self._equal}}

    def next_order(self, interruption: Interruption) -> Order:
        """Wait for the chief's next order."""
        return self._order(0, 0, asked=_asked_by(interruption))

    def _order(self, kind: int, step: int, number: int = 0, *, asked: int = 0) -> Order:
        """Return the chief's order and which workers were asked to end, as the sum of the messages of all workers."""
        own = np.zeros(3 + self.count, np.int64)
        own[:3] = kind, step, number
        own[3 + self.index] = asked
        with self.watching():
            kind, step, number, *everyone = map(int, self._messages.add(own))
        return Order(Kind(kind), step, number, tuple(everyone))

    def _gather(self, own: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the messages of all workers before the start; raise if one of them reports its end instead."""
        with self.watching():
            messages = [json.loads(each) for each in self._messages.gather(json.dumps(own).encode())]
        for worker, each in enumerate(messages):
            if "ended" in each:
                self._over = True
                if each["ended"] == COMPLETE or each["number"]:
                    raise Interrupted(each["ended"], _signal_of(each["number"]))
                raise WorkersError(f"Worker {worker} ended before the start: {each['ended']}")
        return messages


def join_workers(settings: Mapping[str, Any]) -> Workers:
    """Return the workers of a run, once all are connected."""
    cluster = cluster_of(settings)
    if cluster is None or len(cluster.addresses) == 1:
        return Workers()
    start_cluster(cluster)
    messages = Messages(cluster.index, Group(len(cluster.addresses)))
    return ClusterWorkers(cluster, messages, settings.get("worker_timeout", 0))


def follow(run: Run, workers: ClusterWorkers) -> None:
    """Train alongside the chief, following its orders until the run is over."""
    variables = trainer_variables(run.trainer)
    interruption = Interruption(run.settings["max_seconds"])
    step, report = 0, -1
    with interruption.listening():
        while True:
            order = workers.next_order(interruption)
            if order.kind is Kind.RUN:
                if not any(order.asked):
                    report = run.cadence.next_report(step)
                    with workers.watching():
                        step, _ = run.loop.run(step, order.step - step)
            elif order.kind is Kind.MOVE:
                step = order.step
            elif order.kind is Kind.TAKE:
                step = order.step
                workers.share(run.variables)
                share_variables(run.loop.trainers)
            elif order.kind is Kind.COMPARE:
                workers.other_digests(variables)
            elif order.kind is Kind.INTERRUPTED:
                raise Interrupted("Ended with worker 0, which has saved the run.", _signal_of(order.number))
            elif order.kind is Kind.FAILED:
                raise WorkersError("Worker 0 failed: its output says why.")
            else:
                return
            if step == report:  # as on the chief: hooks are measured in the first step after a report
                run.loop.accumulators.reset()


TASK = re.compile(r"/job:worker/(?:replica:\d+/)?task:(\d+)")
LOST = (tf.errors.UnavailableError, tf.errors.DeadlineExceededError, tf.errors.AbortedError)
ABORTED = "Collective ops is aborted"
ANSWER_SECONDS = 2.0


def is_loss(error: tf.errors.OpError) -> bool:
    """Return whether a TensorFlow error means that the connection to a worker is lost."""
    return isinstance(error, LOST) or ABORTED in str(error)


def describe_loss(error: str, cluster: Cluster, directory: str) -> str:
    """Return a line that names the workers that are gone and says how to resume."""
    others = [worker for worker in range(len(cluster.addresses)) if worker != cluster.index]
    gone = [worker for worker in others if not _answers(cluster.addresses[worker])]
    gone = gone or sorted({int(number) for number in TASK.findall(error)} & set(others))  # one that hangs
    return (
        f"{named(gone)} {'are' if len(gone) > 1 else 'is'} gone, or no longer answering; the output there may say why. "
        f"Resume by starting all workers again with {resume_override(directory) if directory else 'resume=<run>'}"
    )


def named(workers: Sequence[int]) -> str:
    """Return workers as text, such as "Workers 1 and 2"."""
    if not workers:
        return "A worker"
    if len(workers) == 1:
        return f"Worker {workers[0]}"
    return f"Workers {', '.join(map(str, workers[:-1]))} and {workers[-1]}"


@contextmanager
def abort_after(seconds: float) -> Iterator[None]:
    """Abort sums that wait for other workers after some time, with one timer instead of one for each sum."""
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
