"""The worker processes of a run, as the environment describes them: TF_CONFIG, SLURM, or variables as torchrun's."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hookline.trainer.errors import UserError
from hookline.trainer.input.shares import batch_sizes_for
from hookline.trainer.replicas import slurm, tf_config, torchrun

NONE, MULTI_WORKER = "none", "multi_worker"
EXPECTED = "Expected python scripts/launch.py workers=<number> ..., TF_CONFIG, srun, or RANK and WORLD_SIZE."


@dataclass(frozen=True)
class Cluster:
    """Say where the workers of a run are, and which one this process is.

    Attributes:
        addresses: "host:port" of each worker.
        index: of this one; 0 is the chief, which alone writes.
        source: of the environment, for messages.
    """

    addresses: tuple[str, ...]
    index: int
    source: str

    @property
    def beside(self) -> tuple[int, int]:
        """Return which of the workers on its host this one is, and how many there are."""
        hosts = [address.rpartition(":")[0] for address in self.addresses]
        here = hosts[self.index]
        return hosts[: self.index].count(here), hosts.count(here)


def cluster_of(trainer: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Cluster | None:
    """Return the cluster of a run; None if it needs none. Free of TensorFlow, so that mistakes show at once."""
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
    for source in (tf_config, slurm, torchrun):
        if source.is_there(environment):
            addresses, index = source.read(environment)
            name = source.NAME
            _check(addresses, index, name)
            return Cluster(tuple(addresses), index, name)
    raise UserError(
        f"trainer.strategy=multi_worker received, but nothing says where the workers are. {EXPECTED} "
        "For one process, use trainer.strategy=none or mirrored."
    )


def _check(addresses: list[str], index: int, source: str) -> None:
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
