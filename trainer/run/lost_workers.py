"""TensorFlow's errors when workers lose each other, as one line; and a time limit for waiting."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import tensorflow as tf
from tensorflow.python.eager import context

from hookline.trainer.replicas.cluster import Cluster

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
    several = len(gone) > 1
    return (
        f"{named(gone)} {'are' if several else 'is'} gone, or {'answer' if several else 'answers'} no more; "
        f"{'their' if several else 'its'} own output may say why. Resume by starting all workers again with "
        f"resume={directory or '<run>'}"
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
