"""The worker processes of a run: their addresses, and the start of TensorFlow's server once all have connected."""

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
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hookline.trainer.config.schema import check_parts
from hookline.trainer.deferred import silent
from hookline.trainer.errors import UserError, WorkersError

if TYPE_CHECKING:
    import tensorflow as tf

NONE, MULTI_WORKER = "none", "multi_worker"
EXPECTED = "Expected python scripts/launch.py workers=<number> ..., TF_CONFIG, srun, or RANK and WORLD_SIZE."


@dataclass(frozen=True)
class Cluster:
    """The addresses of a run's workers, and the index of this process among them."""

    addresses: tuple[str, ...]  # "host:port" of each worker
    index: int  # of this worker; 0 is the chief, the only one that writes
    source: str  # which environment variables these come from, such as "SLURM", for messages

    @property
    def beside(self) -> tuple[int, int]:
        """Return the index of this worker among those on its host, and their number."""
        hosts = [address.rpartition(":")[0] for address in self.addresses]
        here = hosts[self.index]
        return hosts[: self.index].count(here), hosts.count(here)


def cluster_source(trainer: Mapping[str, Any]) -> str | None:
    """Return the source that describes a run's cluster, TF_CONFIG first; None if it needs none. Needs no TensorFlow."""
    if trainer.get("strategy") != MULTI_WORKER:
        return None
    if os.environ.get("TF_CONFIG", "").strip():
        return "TF_CONFIG"
    if "SLURM_PROCID" in os.environ and "SLURM_NTASKS" in os.environ:
        return "SLURM"
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return "RANK"
    raise UserError(
        f"trainer.strategy=multi_worker received, but no worker addresses are configured. {EXPECTED} "
        "For one process, use trainer.strategy=none or mirrored."
    )


def cluster_of(trainer: Mapping[str, Any]) -> Cluster | None:
    """Return the cluster of a run; None if it needs none."""
    if (source := cluster_source(trainer)) is None:
        return None
    addresses, index = {"TF_CONFIG": _of_tf_config, "SLURM": _of_slurm, "RANK": _of_torchrun}[source]()
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise UserError(f"{source} names the worker '{address}'. Expected host:port.")
    if not 0 <= index < len(addresses):
        found = f"{source} gives this worker the index {index}, but there are {len(addresses)} workers"
        raise UserError(f"{found}. Expected 0 to {len(addresses) - 1}.")
    check_workers(trainer, len(addresses))
    return Cluster(tuple(addresses), index, source)


def check_workers(trainer: Mapping[str, Any], workers: int) -> None:
    """Raise an error if the workers cannot share a batch equally."""
    check_parts(trainer["batch_size"], workers, f"{workers} workers, who share it", "workers")


EXAMPLE = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'


def _of_tf_config() -> tuple[list[str], int]:
    """Return the addresses of all workers, with a chief first, and the index of this one."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    try:
        cluster, kind, index = resolver.cluster_spec().as_dict(), resolver.task_type, resolver.task_id
        jobs = {job: list(cluster.pop(job, ())) for job in ("chief", "worker")}
        place = range(len(jobs[kind]))[index] if index >= 0 else None
    except (ValueError, TypeError, LookupError, AttributeError):
        place = None
    if place is None or cluster:
        raise UserError(
            f"TF_CONFIG={os.environ['TF_CONFIG']} received. Expected a cluster of only the jobs chief and worker, and "
            f"a task that is one of them, such as {EXAMPLE}."
        )
    return [*jobs["chief"], *jobs["worker"]], place + (len(jobs["chief"]) if kind == "worker" else 0)


FIRST_PORT, PORT_RANGES, PORTS = 12_000, 300, 64
"""Ports of a job, below Linux's ephemeral ports; jobs that share a host rarely get the same range."""


def _of_slurm() -> tuple[list[str], int]:
    """Return the address of each srun task, and the index of this one. The job ID determines the port."""
    import tensorflow as tf

    port = FIRST_PORT + _number("SLURM_JOB_ID", 0) % PORT_RANGES * PORTS
    try:  # SLURM itself assigns GPUs, so the resolver must not; it only counts one device per task
        resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
            port_base=port, gpus_per_node=PORTS, gpus_per_task=1, auto_set_gpu=False
        )
        addresses = resolver.cluster_spec().as_dict()["worker"]
    except (RuntimeError, ValueError) as error:
        raise UserError(f"{error} Expected a process that srun has started, with block distribution.") from error
    # The resolver sorts hosts by name, with node10 before node9; srun numbers tasks in the order of its node list.
    hosts = _expand_hosts(os.environ["SLURM_STEP_NODELIST"])
    places = {host: place for place, host in enumerate(hosts)}
    addresses.sort(key=lambda address: places[address.rpartition(":")[0]])
    return addresses, _number("SLURM_PROCID")


def _of_torchrun() -> tuple[list[str], int]:
    """Return the addresses of all workers and the index of this one: worker n listens at MASTER_PORT + n.

    The port is one higher if torchrun itself uses MASTER_PORT. If there are several hosts, HOSTS must list them.
    """
    index, count = _number("RANK"), _number("WORLD_SIZE")
    port = _number("MASTER_PORT") + (os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True")
    if text := os.environ.get("HOSTS", "").strip():
        hosts = _expand_hosts(text)
        if count % len(hosts):
            raise UserError(f"WORLD_SIZE={count} and {len(hosts)} HOSTS received. Expected equally many on each host.")
    elif (_number("LOCAL_RANK", index), _number("LOCAL_WORLD_SIZE", count)) != (index, count):
        raise UserError(
            f"WORLD_SIZE={count} workers are on several hosts, and MASTER_ADDR names one. Expected "
            "HOSTS=host1,host2,... in the order of the ranks, or TF_CONFIG."
        )
    else:
        hosts = [os.environ.get("MASTER_ADDR", "").strip() or "127.0.0.1"]
    each = count // len(hosts)
    return [f"{hosts[rank // each]}:{port + rank}" for rank in range(count)], index


def _number(name: str, default: int | None = None) -> int:
    """Return an environment variable as a nonnegative integer."""
    text = os.environ.get(name, "").strip()
    if not text and default is not None:
        return default
    if not text.isdecimal():
        raise UserError(f"{name}={text or '(not set)'} received. Expected a whole number of at least 0.")
    return int(text)


def _expand_hosts(text: str) -> list[str]:
    """Return the hosts of a list such as "gpu[01-03,7],login", in order."""
    from tensorflow.python.distribute.cluster_resolver.slurm_cluster_resolver import expand_hostlist

    try:
        hosts: list[str] = expand_hostlist("".join(text.split()))
    except ValueError:
        hosts = []
    if not hosts:
        raise UserError(f"Cannot parse the host list '{text}'. Expected a list such as gpu[01-03,7],login.")
    return hosts


START_SECONDS = 120
"""Timeout after which a hanging start ends the process: TensorFlow does not react to signals while it starts."""
WAIT_SECONDS = 300.0
"""How long workers wait for all of them to connect."""
POLL_SECONDS = 0.2
GREETING, GO = "hookline", b"go\n"


@functools.cache
def start_cluster(cluster: Cluster) -> tf.distribute.Strategy:
    """Start this worker's server and connect it to the others; call before TensorFlow initializes its devices.

    The strategy itself is not used: creating it starts the server, and the service that detects the loss of a worker
    within seconds by heartbeats.
    """
    import tensorflow as tf

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
        signal.signal(signal.SIGTERM, handler)  # restore Python's handler, which TensorFlow's service replaced
    return strategy


def meet(cluster: Cluster, seconds: float = WAIT_SECONDS) -> None:
    """Wait until all workers have connected. The chief listens at its own address, and frees it afterwards."""
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
                        guests[index] = guest  # the latest connection: the worker may have been restarted
        except UserError as error:
            _send(guests.values(), f"{error}\n".encode())
            raise
        _send(guests.values(), GO)


def _read_greeting(guest: socket.socket, cluster: Cluster) -> int | None:
    """Return the index of the worker that connected; None if it does not belong to this run."""
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
    """Return one line, or less if the other end closes the connection."""
    with other.makefile("rb") as file:
        return file.readline(2**20)


def _check_time(deadline: float, missing: list[int], cluster: Cluster) -> None:
    if time.monotonic() > deadline:
        names = ", ".join(f"worker {n} ({cluster.addresses[n]})" for n in missing)
        raise WorkersError(f"Timed out waiting for {names}. Expected all {len(cluster.addresses)} workers to start.")
