"""Networks that become deep copies of others every so many steps, and learn on their own in between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tensorflow as tf

from recipes.adversarial.groups import Group
from trainer.network import Network
from trainer.step.copy_network import Slots, copy_network


@dataclass(frozen=True)
class Copies:
    """Say what is copied, and when.

    Attributes:
        sources: the networks that are copied; each has made its updates of a step before.
        updates: of a source in a step.
        every: steps from one copy to the next; the first is in the first step.
        optimizer: what becomes of the copies' optimizers: "copy", "reset" (as a new one) or "keep".
    """

    sources: Group
    updates: int = 1
    every: int = 1
    optimizer: Slots = "copy"

    def operations(self, networks: Mapping[str, Network], targets: tuple[str, ...]) -> list[tf.Operation]:
        """Create and return the ops of one step.

        Args:
            networks: of the run, by name.
            targets: names of the networks that become the copies, in the order of the sources.
        """
        if self.every == 1:
            return self._copy(networks, targets)
        done = tf.cond(self._due(networks), lambda: self._copied(networks, targets), lambda: tf.constant(False))
        return [done.op]

    def _due(self, networks: Mapping[str, Network]) -> tf.Tensor:
        """Return whether this step copies, bool []: its number is how often the sources have moved, so it is saved."""
        optimizer = networks[self.sources.names[0]].optimizer
        moved = tf.convert_to_tensor(getattr(optimizer, "inner_optimizer", optimizer).iterations)
        return tf.equal((tf.cast(moved, tf.int64) // self.updates - 1) % self.every, 0)

    def _copied(self, networks: Mapping[str, Network], targets: tuple[str, ...]) -> tf.Tensor:
        with tf.control_dependencies(self._copy(networks, targets)):
            return tf.constant(True)

    def _copy(self, networks: Mapping[str, Network], targets: tuple[str, ...]) -> list[tf.Operation]:
        pairs = zip(self.sources.names, targets, strict=True)
        copied = [copy_network(networks[a], networks[b], optimizer=self.optimizer) for a, b in pairs]
        return [operation for operations in copied for operation in operations]
