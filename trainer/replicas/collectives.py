"""Sums over the replicas of a run, as ops in the graph: TensorFlow's own collectives, a few tensors in one message."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

MESSAGE_BYTES = 32 * 2**20
"""Tensors are packed into messages of about this many bytes: many small ones would each pay the network's latency."""

_groups = itertools.count(7_000)  # TensorFlow's collectives know a group by a number that the process never uses twice


@dataclass(frozen=True)
class Group:
    """Name the replicas that add up together, for TensorFlow's collectives.

    Attributes:
        size: number of replicas.
        key: number of the group; the same in every process, since each makes its groups in the same order.
        timeout_seconds: after which a sum that waits for a replica fails; 0 for never.
    """

    size: int
    key: int = field(default_factory=lambda: next(_groups))
    timeout_seconds: float = 0.0


class Collectives:
    """Make the sums of one replica.

    Every replica traces the same sums in the same order: the n-th of one meets the n-th of the others.
    """

    def __init__(self, group: Group) -> None:
        """Begin to count.

        Args:
            group: the same for every replica.
        """
        self._group = group
        self._instances = itertools.count(1)

    def sum(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the sums over the replicas, with the same bits on each.

        The gradient of a sum is the sum of the gradients that the replicas have for it: what one gives moves the losses
        of all.

        Args:
            tensors: of shapes known when traced; float, in the order in which every replica gives them.
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
            summed = self._reduce(flat[0] if len(flat) == 1 else tf.concat(flat, axis=0))
            sizes = [tensors[place].shape.num_elements() for place in places]
            parts = tf.split(summed, sizes) if len(places) > 1 else [summed]
            for place, part in zip(places, parts, strict=True):
                results[place] = tf.reshape(part, tensors[place].shape)
        return results

    def _reduce(self, message: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.CollectiveReduceV2(
            input=message,
            group_size=self._group.size,
            group_key=self._group.key,
            instance_key=next(self._instances),
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
            communication_hint="auto",
            timeout_seconds=self._group.timeout_seconds,
        )


def _messages(tensors: Sequence[tf.Tensor]) -> Iterator[list[int]]:
    """Yield which tensors go together: of one dtype, in order, until a message is full."""
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
