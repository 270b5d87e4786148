"""One replica of a run: which part of every batch is its own, and its sums with the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorflow as tf

from trainer.errors import UserError
from trainer.replicas.collectives import Collectives, Group


@dataclass(frozen=True)
class Replica:
    """Say which of the replicas that share every batch this is.

    Replicas hold the same variables, on a device each, in one process or in many. Each computes an equal part of the
    batch: replica i has its i-th slice. What they compute from their parts is added up, so what they write is the
    same. The only replica of a run has no collectives, and every sum is what it was.

    Attributes:
        index: which one, in [0, count).
        count: how many share a batch.
        device: where it computes, such as "/GPU:1"; None for where TensorFlow puts it.
        collectives: make its sums; None for the only one.
    """

    index: int = 0
    count: int = 1
    device: str | None = None
    collectives: Collectives | None = None

    def sum(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the sums over the replicas.

        All replicas must get here in the same steps: never call it in a branch that one of them alone takes. Nor in a
        loop inside the step: TensorFlow tells the sums of loops apart by the loop, and they would never meet.

        Args:
            tensors: float, of shapes known when traced.
        """
        return list(tensors) if self.collectives is None or not tensors else self.collectives.sum(tensors)

    def mean(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the means over the replicas.

        Args:
            tensors: float, of shapes known when traced.
        """
        if self.count == 1:
            return list(tensors)
        return self.sum([tensor / tf.cast(self.count, tensor.dtype) for tensor in tensors])

    def any(self, flags: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return for each flag whether it is True on any replica.

        Args:
            flags: bool scalars.
        """
        if self.count == 1 or not flags:
            return list(flags)
        (raised,) = self.sum([tf.cast(tf.stack(list(flags)), tf.float32)])
        return tf.unstack(raised > 0.0)

    def part(self, draw: Callable[[Sequence[int] | tf.Tensor], tf.Tensor], shape: tf.TensorShape) -> tf.Tensor:
        """Return this replica's part of what is drawn for the examples of a whole batch.

        The whole batch is drawn and cut, so that an example gets the same numbers on any number of replicas.

        Args:
            draw: returns random numbers of a shape, the same on every replica.
            shape: of the part, [examples, ...].
        """
        if self.count == 1:
            return draw(shape)
        if shape.rank is None or not shape.is_fully_defined():
            raise UserError(f"{self.count} replicas draw for examples of the shape {shape}. Expected a fixed one.")
        examples = shape[0]
        whole = draw([self.count * examples, *shape[1:]])
        return whole[self.index * examples : (self.index + 1) * examples]


def replicas_of(devices: Sequence[str | None], *, first: int = 0, count: int | None = None) -> list[Replica]:
    """Return the replicas of this process.

    Args:
        devices: of this process, one for each replica.
        first: index of the first of them among all replicas.
        count: of all replicas of the run; None where this process has them all.
    """
    total = len(devices) if count is None else count
    if total == 1:
        return [Replica(device=devices[0])]
    group = Group(total)
    return [Replica(first + index, total, device, Collectives(group)) for index, device in enumerate(devices)]
