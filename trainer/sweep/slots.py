"""How many jobs run at a time, and what each gets of the machine: its share of the cores, one of the GPUs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Slots:
    """Hold the places for jobs.

    Attributes:
        environments: variables for the job in each place.
        threads: that each job gets of the cores.
    """

    environments: tuple[Mapping[str, str], ...]
    threads: int

    def __len__(self) -> int:
        return len(self.environments)


def divide(jobs: int, asked: int | None, cores: int, gpus: tuple[str, ...], *, spread: bool = False) -> Slots:
    """Return the places for the jobs of a sweep.

    Without GPUs there are as many as cores. With GPUs there are as many as GPUs, since a job takes one for itself;
    where the user asks for more, those on one GPU take its memory as they need it.

    Args:
        jobs: to make; at least 1.
        asked: how many at a time the user wants; None for as many as fit.
        cores: of the machine.
        gpus: names of the GPUs that jobs may take, as CUDA_VISIBLE_DEVICES has them.
        spread: whether a job has replicas, which take all GPUs.
    """
    fitting = (1 if spread else len(gpus)) if gpus else cores
    count = max(1, min(jobs, asked or fitting))
    environments: list[dict[str, str]] = [{} for _ in range(count)]
    for place, environment in enumerate(environments):
        if gpus and not spread:
            environment[VISIBLE] = gpus[place % len(gpus)]
        if gpus and count > fitting:
            environment["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    return Slots(tuple(environments), max(1, cores // count))


def usable_cores() -> int:
    """Return how many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def usable_gpus(command: str = "nvidia-smi") -> tuple[str, ...]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES has them; none where there are none.

    Args:
        command: lists the GPUs of the machine with -L.
    """
    if (named := os.environ.get(VISIBLE)) is not None:
        names = [name.strip() for name in named.split(",")]
        return tuple(name for name in names if name and not name.startswith("-"))
    try:
        listed = subprocess.run([command, "-L"], capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    count = sum(line.startswith("GPU ") for line in listed.splitlines())
    return tuple(str(number) for number in range(count))
