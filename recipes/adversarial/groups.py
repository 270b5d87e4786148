"""Networks of one kind that run side by side: one stacked network, or several separate ones."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from trainer.objective import ForwardFunction


@dataclass(frozen=True)
class Group:
    """Name networks of one kind.

    Attributes:
        names: of the networks; a single one where they are stacked.
        count: how many networks this is. A stacked one has them along the first axis of every weight, of its inputs
            and of its outputs, so one matrix product computes all of them and none sees another.
    """

    names: tuple[str, ...]
    count: int

    @property
    def stacked(self) -> bool:
        """Return whether one network stands for several."""
        return self.count > len(self.names)


def forward_group(forward: ForwardFunction, group: Group, inputs: tf.Tensor) -> tf.Tensor:
    """Return what each network of a group makes of its own inputs.

    Args:
        forward: runs a network by name.
        group: the networks.
        inputs: [count, batch, ...], those of network n in row n.

    Returns:
        [count, batch, ...].
    """
    if group.stacked:
        return forward(group.names[0], inputs)
    return tf.stack([forward(name, inputs[place]) for place, name in enumerate(group.names)])
