"""Workers from the variables that SLURM's srun sets: one task is one worker."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hookline.trainer.errors import UserError
from hookline.trainer.replicas.hosts import expand_hosts, number_of

NAME = "SLURM"
INDEX, COUNT, LOCAL, JOB = "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_JOB_ID"
HOSTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
TASKS = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
FIRST_PORT, JOBS, PORTS = 12_000, 300, 64
"""Ports of a job: below those that Linux gives to clients; jobs that share a host rarely meet in one of `JOBS`."""
REPEATED = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def is_there(environment: Mapping[str, str]) -> bool:
    """Return whether srun started this process."""
    return INDEX in environment and COUNT in environment


def read(environment: Mapping[str, str]) -> tuple[list[str], int]:
    """Return the addresses of all workers and the index of this one. The port follows from the job's number."""
    index, count = number_of(environment, INDEX), number_of(environment, COUNT)
    listed = next((environment[name] for name in HOSTS if environment.get(name)), None)
    if listed is None:
        raise UserError(f"{INDEX} is set, but no {HOSTS[1]}. Expected a process that srun has started.")
    hosts = expand_hosts(listed)
    port = FIRST_PORT + number_of(environment, JOB, 0) % JOBS * PORTS
    addresses, local = [], []
    for host, tasks in zip(hosts, _tasks(environment, len(hosts), count), strict=True):
        local += list(range(tasks))
        addresses += [f"{host}:{port + number}" for number in range(tasks)]
    if index < count and LOCAL in environment and local[index] != number_of(environment, LOCAL):
        raise UserError(
            f"{LOCAL}={environment[LOCAL]} received for task {index}, which is number {local[index]} of its host where "
            "tasks fill host after host. Expected srun --distribution=block, or TF_CONFIG."
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
            f"{COUNT}={count} received with {hosts} hosts and {TASKS[1]}={text}. Expected as many tasks as the hosts "
            "have together."
        )
    return tasks
