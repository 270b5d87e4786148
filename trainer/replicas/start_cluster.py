"""Start TensorFlow's server and collectives in a worker, once all workers have come.

Workers wait for one another before TensorFlow starts: TensorFlow would wait forever, deaf to signals.
"""

from __future__ import annotations

import faulthandler
import functools
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import Any

import tensorflow as tf

from hookline.trainer.errors import UserError, WorkersError
from hookline.trainer.quiet import silent
from hookline.trainer.replicas.cluster import Cluster

START_SECONDS = 120
"""After which a start that hangs ends the process: during it, TensorFlow hears no signal."""
WAIT_SECONDS = 300.0
"""How long workers wait for all of them to come."""
POLL_SECONDS = 0.2
GREETING, GO = "hookline", b"go\n"


@functools.cache
def start_cluster(cluster: Cluster) -> tf.distribute.Strategy:
    """Start the server of this worker and connect it with the others; before TensorFlow has initialized its devices.

    The strategy itself is not used: it starts the server, and the service by whose heartbeats TensorFlow finds within
    seconds that a worker is gone.
    """
    meet(cluster)
    faulthandler.dump_traceback_later(START_SECONDS, exit=True, file=sys.__stderr__ or sys.stderr)
    try:
        with silent():
            resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec({"worker": list(cluster.addresses)}),
                task_type="worker",
                task_id=cluster.index,
                rpc_layer="grpc",
            )
            strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    except (tf.errors.OpError, RuntimeError) as error:
        line = " ".join(str(error).split())[:200]
        raise WorkersError(f"Worker {cluster.index} could not start TensorFlow's server: {line}") from error
    finally:
        faulthandler.cancel_dump_traceback_later()
    handler = signal.getsignal(signal.SIGTERM)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # Python's own, which TensorFlow's service has replaced
    return strategy


def meet(cluster: Cluster, seconds: float = WAIT_SECONDS) -> None:
    """Return when all workers have come. The chief listens at its own address, which is free again afterwards."""
    deadline = time.monotonic() + seconds
    if cluster.index == 0:
        _gather(cluster, deadline)
    else:
        _greet(cluster, deadline)


def _gather(cluster: Cluster, deadline: float) -> None:
    """Listen until every worker has greeted, then release them all."""
    count, port = len(cluster.addresses), int(cluster.addresses[0].rpartition(":")[2])
    guests: dict[int, socket.socket] = {}
    try:
        server = socket.create_server(("", port), backlog=count)
    except OSError as error:
        raise UserError(
            f"Worker 0 cannot listen at {cluster.addresses[0]}: {os.strerror(error.errno or 0)}. Expected a free port."
        ) from error
    with server, ExitStack() as connections:
        server.settimeout(POLL_SECONDS)
        try:
            while len(guests) < count - 1:
                _check_time(deadline, [n for n in range(1, count) if n not in guests], cluster)
                with suppress(TimeoutError):
                    guest = connections.enter_context(server.accept()[0])
                    if (index := _read_greeting(guest, cluster)) is not None:
                        guests.setdefault(index, guest)
        except UserError as error:
            _send(guests.values(), f"{error}\n".encode())
            raise
        _send(guests.values(), GO)


def _read_greeting(guest: socket.socket, cluster: Cluster) -> int | None:
    """Return which worker has connected; None if it is not one of this run."""
    guest.settimeout(5.0)
    try:
        greeting: dict[str, Any] = json.loads(_line(guest))
        index, addresses = int(greeting[GREETING]), greeting["addresses"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if addresses != list(cluster.addresses):
        message = (
            f"Worker {index} knows the workers {', '.join(map(str, addresses))}, worker 0 knows "
            f"{', '.join(cluster.addresses)}. Expected the same list on each."
        )
        _send([guest], f"{message}\n".encode())
        raise UserError(message)
    return index if 0 < index < len(cluster.addresses) else None


def _greet(cluster: Cluster, deadline: float) -> None:
    """Greet the chief as soon as it listens, and wait for its answer."""
    host, _, port = cluster.addresses[0].rpartition(":")
    greeting = json.dumps({GREETING: cluster.index, "addresses": cluster.addresses}).encode() + b"\n"
    while True:
        _check_time(deadline, [0], cluster)
        try:
            with socket.create_connection((host, int(port)), timeout=5.0) as chief:
                chief.sendall(greeting)
                chief.settimeout(max(1.0, deadline - time.monotonic()))
                answer = _line(chief)
        except socket.gaierror as error:
            raise UserError(f"Worker 0 is at {cluster.addresses[0]}, and no host has that name.") from error
        except OSError:
            answer = b""
        if answer == GO:
            return
        if answer.endswith(b"\n"):
            raise UserError(answer.decode(errors="replace"))
        time.sleep(POLL_SECONDS)


def _send(guests: Iterable[socket.socket], line: bytes) -> None:
    for guest in guests:
        with suppress(OSError):  # if it is gone, TensorFlow's start fails
            guest.sendall(line)


def _line(other: socket.socket) -> bytes:
    """Return a line; less where the other end closes."""
    with other.makefile("rb") as file:
        return file.readline(2**20)


def _check_time(deadline: float, missing: list[int], cluster: Cluster) -> None:
    if time.monotonic() > deadline:
        names = ", ".join(f"worker {n} ({cluster.addresses[n]})" for n in missing)
        raise WorkersError(f"Timed out waiting for {names}. Expected all {len(cluster.addresses)} workers to start.")
