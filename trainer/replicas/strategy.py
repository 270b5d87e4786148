"""The replicas of this process, as `trainer.strategy` wants them."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.replicas.cluster import MULTI_WORKER, NONE
from hookline.trainer.replicas.replica import Replica, replicas_of


def local_replicas(strategy: str, replicas: int | None, batch_size: int) -> list[Replica]:
    """Return the replicas that this process has."""
    if strategy == NONE:
        return replicas_of([None])
    devices = share_of_devices(0, 1) if strategy == MULTI_WORKER else mirrored_devices(replicas)
    check_shared(batch_size, len(devices))
    return replicas_of(devices)


def check_number(strategy: str, replicas: int | None) -> None:
    """Refuse a number of replicas where the strategy has one alone."""
    if strategy == NONE and replicas is not None:
        raise UserError(
            f"trainer.replicas={replicas} received. Expected trainer.strategy=mirrored, or trainer.replicas=null."
        )


def check_shared(batch_size: int, replicas: int) -> None:
    """Refuse a batch that replicas cannot share equally."""
    if batch_size % replicas:
        raise UserError(
            f"trainer.batch_size={batch_size} cannot be shared equally by {replicas} replicas. Expected "
            f"a multiple, such as trainer.batch_size={-(-batch_size // replicas) * replicas}."
        )


def describe_replicas(strategy: str, replica: Replica, batch_size: int) -> dict[str, Any]:
    """Return what summary.json says of replicas."""
    return {"strategy": strategy, "count": replica.count, "examples": batch_size // replica.count}


def mirrored_devices(count: int | None) -> list[str | None]:
    """Return the names of the devices of replicas in this process: GPUs where there are any, else parts of the CPU."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        if count is not None and count > len(gpus):
            raise UserError(f"trainer.replicas={count} received for {len(gpus)} GPUs. Expected at most these.")
        return [f"/GPU:{index}" for index in range(len(gpus) if count is None else count)]
    if count is None:
        raise UserError("trainer.strategy=mirrored needs a GPU, or trainer.replicas=<number> to divide the CPU.")
    _divide_cpu(count)
    return [f"/CPU:{index}" for index in range(count)]


def share_of_devices(place: int, workers: int) -> list[str | None]:
    """Return the devices of the replicas of one of several workers on this host.

    GPUs that CUDA_VISIBLE_DEVICES names are this worker's own, as a scheduler gives them. Others are divided.
    """
    gpus: list[str | None] = [f"/GPU:{index}" for index in range(len(tf.config.list_logical_devices("GPU")))]
    if not gpus:
        return [None]
    if os.environ.get("CUDA_VISIBLE_DEVICES") or workers == 1:
        return gpus
    if len(gpus) < workers:
        raise UserError(f"{workers} workers share this host's {len(gpus)} GPUs. Expected at most one for each GPU.")
    each = len(gpus) // workers
    return gpus[place * each : (place + 1) * each]


def _divide_cpu(count: int) -> None:
    """Make logical CPUs, once for a process: TensorFlow fixes its devices when it starts."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    try:
        if len(tf.config.get_logical_device_configuration(cpu) or ()) < count:
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    except RuntimeError as error:
        have = len(tf.config.list_logical_devices("CPU"))
        if have >= count:
            return
        raise UserError(f"trainer.replicas={count} comes too late: TensorFlow has started with {have} CPUs.") from error
