"""The worker processes of a run, as TF_CONFIG, SLURM or torchrun describe them; without TensorFlow, so at once."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hookline.trainer.config.schema import batch_sizes_for
from hookline.trainer.errors import UserError

NONE, MULTI_WORKER = "none", "multi_worker"
EXPECTED = "Expected python scripts/launch.py workers=<number> ..., TF_CONFIG, srun, or RANK and WORLD_SIZE."


@dataclass(frozen=True)
class Cluster:
    """Where the workers of a run are, and which one this process is."""

    addresses: tuple[str, ...]  # "host:port" of each worker
    index: int  # of this one; 0 is the chief, which alone writes
    source: str  # of the environment, for messages

    @property
    def beside(self) -> tuple[int, int]:
        """Return which of the workers on its host this one is, and how many there are."""
        hosts = [address.rpartition(":")[0] for address in self.addresses]
        here = hosts[self.index]
        return hosts[: self.index].count(here), hosts.count(here)


def cluster_of(trainer: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Cluster | None:
    """Return the cluster of a run; None if it needs none."""
    if trainer.get("strategy") != MULTI_WORKER:
        return None
    if (replicas := trainer.get("replicas")) is not None:
        raise UserError(
            f"trainer.replicas={replicas} received with trainer.strategy=multi_worker, where each worker has a replica "
            "on each of its GPUs, or one on its CPU. Expected trainer.replicas=null."
        )
    cluster = read_cluster(environment)
    workers, size = len(cluster.addresses), trainer["batch_size"]
    if size % workers:
        raise UserError(
            f"trainer.batch_size={size} cannot be shared equally by {workers} workers. Expected "
            f"{batch_sizes_for(size, workers)}: it is the batch of all workers together."
        )
    return cluster


def read_cluster(environment: Mapping[str, str]) -> Cluster:
    """Return the cluster that an environment describes: TF_CONFIG counts first, then SLURM, then RANK."""
    if environment.get("TF_CONFIG", "").strip():
        source, (addresses, index) = "TF_CONFIG", _of_tf_config(environment["TF_CONFIG"])
    elif "SLURM_PROCID" in environment and "SLURM_NTASKS" in environment:
        source, (addresses, index) = "SLURM", _of_slurm(environment)
    elif "RANK" in environment and "WORLD_SIZE" in environment:
        source, (addresses, index) = "RANK", _of_torchrun(environment)
    else:
        raise UserError(
            f"trainer.strategy=multi_worker received, but nothing says where the workers are. {EXPECTED} "
            "For one process, use trainer.strategy=none or mirrored."
        )
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise UserError(f"{source} names the worker '{address}'. Expected host:port.")
    if repeated := [address for address, count in Counter(addresses).items() if count > 1]:
        raise UserError(f"{source} names {repeated[0]} for more than one worker. Expected a port for each.")
    if not 0 <= index < len(addresses):
        raise UserError(
            f"{source} says that this is worker {index} of {len(addresses)}. Expected a number from 0 to "
            f"{len(addresses) - 1}."
        )
    return Cluster(tuple(addresses), index, source)


EXAMPLE = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'


def _of_tf_config(text: str) -> tuple[list[str], int]:
    """Return the addresses of all workers, a chief before the others, and the index of this one."""
    try:
        described = json.loads(text)
        cluster, kind, index = dict(described["cluster"]), described["task"]["type"], int(described["task"]["index"])
        jobs = {job: [str(address) for address in cluster.pop(job, ())] for job in ("chief", "worker")}
        place = range(len(jobs[kind]))[index] if index >= 0 else None
    except (ValueError, TypeError, LookupError):
        place = None
    if place is None or cluster:
        raise UserError(
            f"TF_CONFIG={text} received. Expected a cluster of the jobs chief and worker alone, and a task that is one "
            f"of them, such as {EXAMPLE}."
        )
    return [*jobs["chief"], *jobs["worker"]], place + (len(jobs["chief"]) if kind == "worker" else 0)


NODES = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
TASKS = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
FIRST_PORT, PORT_RANGES, PORTS = 12_000, 300, 64
"""Ports of a job: below those that Linux gives to clients; jobs that share a host rarely meet in one range."""
REPEATED = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def _of_slurm(environment: Mapping[str, str]) -> tuple[list[str], int]:
    """Return the address of each task of srun, and the index of this one. The port follows from the job's number."""
    index, count = _number(environment, "SLURM_PROCID"), _number(environment, "SLURM_NTASKS")
    listed = next((environment[name] for name in NODES if environment.get(name)), None)
    if listed is None:
        raise UserError(f"SLURM_PROCID is set, but no {NODES[1]}. Expected a process that srun has started.")
    hosts = expand_hosts(listed)
    port = FIRST_PORT + _number(environment, "SLURM_JOB_ID", 0) % PORT_RANGES * PORTS
    addresses, local = [], []
    for host, tasks in zip(hosts, _tasks(environment, len(hosts), count), strict=True):
        local += list(range(tasks))
        addresses += [f"{host}:{port + number}" for number in range(tasks)]
    if index < count and _number(environment, "SLURM_LOCALID", local[index]) != local[index]:
        raise UserError(
            f"SLURM_LOCALID={environment['SLURM_LOCALID']} received for task {index}, which is number {local[index]} "
            "of its host where tasks fill host after host. Expected srun --distribution=block, or TF_CONFIG."
        )
    return addresses, index


def _tasks(environment: Mapping[str, str], hosts: int, count: int) -> list[int]:
    """Return how many tasks each host has."""
    text = next((environment[name] for name in TASKS if environment.get(name)), None)
    if text is None:
        tasks = [count // hosts] * hosts
    else:
        found = [REPEATED.fullmatch(part.strip()) for part in text.split(",")]
        tasks = [int(each[1]) for each in found if each for _ in range(int(each[2] or 1))]
    if len(tasks) != hosts or sum(tasks) != count or not count:
        raise UserError(
            f"SLURM_NTASKS={count} received with {hosts} hosts and {TASKS[1]}={text}. Expected as many tasks as the "
            "hosts have together."
        )
    return tasks


def _of_torchrun(environment: Mapping[str, str]) -> tuple[list[str], int]:
    """Return the addresses of all workers, which HOSTS must name if there are several hosts, and the index of this one.

    Worker n listens at MASTER_PORT + n, one higher where torchrun itself holds that port.
    """
    index, count = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
    if not count:
        raise UserError("WORLD_SIZE=0 received. Expected the number of workers.")
    port = _number(environment, "MASTER_PORT") + (environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True")
    if text := environment.get("HOSTS", "").strip():
        hosts = expand_hosts(text)
        if count % len(hosts):
            raise UserError(f"WORLD_SIZE={count} and {len(hosts)} HOSTS received. Expected as many workers on each.")
    elif (_number(environment, "LOCAL_RANK", index), _number(environment, "LOCAL_WORLD_SIZE", count)) != (index, count):
        raise UserError(
            f"WORLD_SIZE={count} workers are on several hosts, and MASTER_ADDR names one. Expected "
            "HOSTS=host1,host2,... in the order of the ranks, or TF_CONFIG."
        )
    else:
        hosts = [environment.get("MASTER_ADDR", "").strip() or "127.0.0.1"]
    each = count // len(hosts)
    return [f"{hosts[rank // each]}:{port + rank}" for rank in range(count)], index


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Return a variable as a whole number of at least 0."""
    text = environment.get(name, "").strip()
    if not text and default is not None:
        return default
    if not text.isdecimal():
        raise UserError(f"{name}={text or '(not set)'} received. Expected a whole number of at least 0.")
    return int(text)


HOST = re.compile(r"([^,\[\]]|\[\d+(-\d+)?(,\d+(-\d+)?)*\])+")


def expand_hosts(text: str) -> list[str]:
    """Return the hosts of a list such as "gpu[01-03,7],login", in order."""
    names = re.split(r",(?![^\[]*\])", "".join(text.split()))
    if not all(map(HOST.fullmatch, names)) or not (hosts := [host for name in names for host in _expand(name)]):
        raise UserError(f"The list of hosts '{text}' cannot be read. Expected such as gpu[01-03,7],login.")
    return hosts


def _expand(name: str) -> list[str]:
    before, opened, rest = name.partition("[")
    if not opened:
        return [name]
    inside, _, after = rest.partition("]")
    ranges = [(first, last or first) for first, _, last in (part.partition("-") for part in inside.split(","))]
    numbers = [str(n).zfill(len(first)) for first, last in ranges for n in range(int(first), int(last) + 1)]
    return [before + number + end for number in numbers for end in _expand(after)]
