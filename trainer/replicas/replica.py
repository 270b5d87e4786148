"""The replicas of this process, sums over all replicas, and messages between workers."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from hookline.trainer.config.schema import check_parts
from hookline.trainer.errors import UserError
from hookline.trainer.replicas.cluster import MULTI_WORKER, NONE

MESSAGE_BYTES = 32 * 2**20
"""Approximate size of the messages that tensors are packed into: many small ones would each incur network latency."""

_groups = itertools.count(7_000)  # keys of groups for TensorFlow's collectives, which a process must never reuse


@dataclass(frozen=True)
class Group:
    """A group of replicas that compute sums together, for TensorFlow's collectives."""

    size: int  # number of replicas
    # identifies the group; the same in every process, since all create their groups in the same order
    key: int = field(default_factory=lambda: next(_groups))

    def reduce(self, message: tf.Tensor, instance: int, *, hint: str = "auto") -> tf.Tensor:
        """Return the sum of a message over the group; the instance matches the calls of its replicas."""
        return tf.raw_ops.CollectiveReduceV2(
            input=message,
            group_size=self.size,
            group_key=self.key,
            instance_key=instance,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
            communication_hint=hint,
        )


class Collectives:
    """The sums of one replica. All replicas trace theirs in the same order, so that the n-th sums match."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._instances = itertools.count(1)

    def sum(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the sums over the replicas, bit-identical on each.

        The gradient of a sum is the sum of its gradients on the replicas.
        """

        @tf.custom_gradient
        def add(*values: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., list[tf.Tensor]]]:
            return self._sum(values), lambda *upstream: self.sum(upstream)

        summed = add(*tensors)
        return list(summed) if len(tensors) > 1 else [tf.convert_to_tensor(each) for each in tf.nest.flatten(summed)]

    def _sum(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        results: list[tf.Tensor] = list(tensors)
        for places in _messages(tensors):
            flat = [tf.reshape(tensors[place], [-1]) for place in places]
            message = flat[0] if len(flat) == 1 else tf.concat(flat, axis=0)
            summed = self._group.reduce(message, next(self._instances))
            sizes = [tensors[place].shape.num_elements() for place in places]
            parts = tf.split(summed, sizes) if len(places) > 1 else [summed]
            for place, part in zip(places, parts, strict=True):
                results[place] = tf.reshape(part, tensors[place].shape)
        return results


def _messages(tensors: Sequence[tf.Tensor]) -> Iterator[list[int]]:
    """Yield the positions of tensors that share a message: of one dtype, in order, until the message is full."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        places: list[int] = []
        size = 0
        for place, tensor in enumerate(tensors):
            if tensor.dtype == dtype:
                places.append(place)
                size += tensor.shape.num_elements() * dtype.size
                if size >= MESSAGE_BYTES:
                    yield places
                    places, size = [], 0
        if places:
            yield places


@dataclass(frozen=True)
class Replica:
    """One of the replicas that share every batch equally; it gets the index-th slice.

    Replicas hold copies of the same variables, each on its own device, in one process or in several. They sum the
    results from their slices, so all write the same values.
    """

    index: int = 0  # in [0, count)
    count: int = 1  # number of replicas that share a batch
    device: str | None = None  # such as "/GPU:1"; None for TensorFlow's default placement
    collectives: Collectives | None = None  # compute its sums; None for a single replica

    def sum(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the sums over the replicas.

        All replicas must reach this in the same steps: never call it in a branch that only one of them takes, nor in a
        loop inside the step: TensorFlow identifies sums in loops by the loop, and they would never match.
        """
        return list(tensors) if self.collectives is None or not tensors else self.collectives.sum(tensors)

    def mean(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        if self.count == 1:
            return list(tensors)
        return self.sum([tensor / tf.cast(self.count, tensor.dtype) for tensor in tensors])

    def any(self, flags: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return for each flag whether it is True on any replica."""
        if self.count == 1 or not flags:
            return list(flags)
        (raised,) = self.sum([tf.cast(tf.stack(list(flags)), tf.float32)])
        return tf.unstack(raised > 0.0)

    def part(self, draw: Callable[[Sequence[int] | tf.Tensor], tf.Tensor], shape: tf.TensorShape) -> tf.Tensor:
        """Return this replica's part of random numbers for the examples of the whole batch.

        The whole batch is drawn and then sliced, so that an example gets the same numbers on any number of replicas.
        """
        if self.count == 1:
            return draw(shape)
        if shape.rank is None or not shape.is_fully_defined():
            raise UserError(f"Random draws on {self.count} replicas received shape {shape}. Expected a fixed shape.")
        examples = shape[0]
        whole = draw([self.count * examples, *shape[1:]])
        return whole[self.index * examples : (self.index + 1) * examples]


def replicas_of(devices: Sequence[str | None], *, first: int = 0, count: int | None = None) -> list[Replica]:
    """Return the replicas of this process."""
    total = len(devices) if count is None else count
    if total == 1:
        return [Replica(device=devices[0])]
    group = Group(total)
    return [Replica(first + index, total, device, Collectives(group)) for index, device in enumerate(devices)]


STRIDE = 0x9E3779B9
"""Distance between the seeds of replicas: 2^32 / golden ratio, so that small seeds of several runs do not collide."""


def own_seeds(state: Mapping[str, tf.Tensor], seeds: Iterable[str], replica: Replica) -> dict[str, tf.Tensor]:
    """Return the initial state of a replica's forward pass, with its own seeds, so that dropout masks differ."""
    return dict(state) | {name: state[name] + _offset(state[name], replica) for name in seeds if replica.index}


def shared_seeds(new_state: Mapping[str, tf.Tensor], seeds: Iterable[str], replica: Replica) -> dict[str, tf.Tensor]:
    """Return the state to write after a pass that started from `own_seeds`: the same on every replica."""
    changed = [name for name in seeds if replica.index and name in new_state]
    return dict(new_state) | {name: new_state[name] - _offset(new_state[name], replica) for name in changed}


def common_seed(seed: tf.Tensor, replica: Replica) -> tf.Tensor:
    """Return the seed of a draw for the whole batch, which is the same on every replica."""
    return seed - _offset(seed, replica) if replica.index else seed


def _offset(seed: tf.Tensor, replica: Replica) -> tf.Tensor:
    """Return a replica's offset to a seed state; integers wrap around, so that it can be subtracted exactly."""
    return tf.cast(tf.constant([replica.index * STRIDE % 2**32, 0], tf.int64), seed.dtype)


SHORT, LONG = 2**9, 2**17
"""Lengths of the messages in int64; only a few, since each length is traced once."""
WORD = 8


class Messages:
    """Exchange integers and bytes between workers, which must call the same methods in the same order.

    Bytes are sent as exact sums of integers over the workers, to which all but the sender contribute zeros.
    """

    def __init__(self, index: int, group: Group) -> None:
        self.index, self._group = index, group
        self._sums: dict[int, Callable[[tf.Tensor], tf.Tensor]] = {}

    @property
    def count(self) -> int:
        return self._group.size

    def add(self, values: np.ndarray) -> np.ndarray:
        """Return the sums of int64 values over the workers."""
        length = len(values)
        if length not in self._sums:
            instance, specs = len(self._sums) + 1, [tf.TensorSpec([length], tf.int64)]
            add = tf.function(lambda own: self._group.reduce(own, instance, hint="ring"), specs, autograph=False)
            self._sums[length] = add
        with tf.device("/CPU:0"):
            return self._sums[length](tf.constant(values, tf.int64)).numpy()

    def gather(self, data: bytes) -> list[bytes]:
        """Return the data of every worker, in order of their indices."""
        own = np.zeros(self.count, np.int64)
        own[self.index] = len(data)
        sizes = self.add(own)
        return [self._from(sender, data, int(size)) for sender, size in enumerate(sizes)]

    def from_first(self, data: bytes) -> bytes:
        return self.gather(data if self.index == 0 else b"")[0]

    def _from(self, sender: int, data: bytes, size: int) -> bytes:
        words = -(-size // WORD)
        length = SHORT if words <= SHORT else LONG
        own = np.frombuffer(data.ljust(words * WORD, b"\0"), np.int64) if sender == self.index else None
        received = []
        for start in range(0, words, length):
            piece = np.zeros(length, np.int64)
            if own is not None:
                part = own[start : start + length]
                piece[: len(part)] = part
            received.append(self.add(piece).tobytes())
        return b"".join(received)[:size]


def local_replicas(strategy: str, replicas: int | None, batch_size: int) -> list[Replica]:
    """Return the replicas of this process for a strategy."""
    if strategy == NONE:
        return replicas_of([None])
    devices = share_of_devices(0, 1) if strategy == MULTI_WORKER else mirrored_devices(replicas)
    check_parts(batch_size, len(devices), f"{len(devices)} replicas", "replicas")
    return replicas_of(devices)


def describe_replicas(strategy: str, replica: Replica, batch_size: int) -> dict[str, Any]:
    """Return the entry on replicas for summary.json."""
    return {"strategy": strategy, "count": replica.count, "examples": batch_size // replica.count}


def mirrored_devices(count: int | None) -> list[str | None]:
    """Return the device names for this process's replicas: GPUs if there are any, else logical CPUs."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        if count is not None and count > len(gpus):
            raise UserError(f"trainer.replicas={count} received for {len(gpus)} GPUs. Expected at most {len(gpus)}.")
        return [f"/GPU:{index}" for index in range(len(gpus) if count is None else count)]
    if count is None:
        raise UserError("trainer.strategy=mirrored needs a GPU, or trainer.replicas=<number> to divide the CPU.")
    _divide_cpu(count)
    return [f"/CPU:{index}" for index in range(count)]


def share_of_devices(place: int, workers: int) -> list[str | None]:
    """Return the devices for the replicas of one of several workers on this host.

    GPUs listed in CUDA_VISIBLE_DEVICES, as set by a scheduler, all belong to this worker. Otherwise they are divided.
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
    """Create logical CPUs, once per process: TensorFlow fixes its devices when it starts."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    try:
        if len(tf.config.get_logical_device_configuration(cpu) or ()) < count:
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    except RuntimeError as error:
        have = len(tf.config.list_logical_devices("CPU"))
        if have >= count:
            return
        fixed = f"TensorFlow has already initialized its devices, with {have} CPUs"
        raise UserError(f"trainer.replicas={count} cannot be applied: {fixed}.") from error
