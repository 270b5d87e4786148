"""A recipe of several networks: a student, a messenger that starts from it in every step, and a fixed teacher."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from hookline.trainer.network import Network
from hookline.trainer.objective import Batch, ForwardFunction, Objective, ObjectiveOutput
from hookline.trainer.recipe import Parts, Recipe
from hookline.trainer.step.copy_network import copy_network


class Imitate(Objective):
    """Train one network on labels and on what the teacher says; the others begin with a copy of the student."""

    def __init__(self, name: str, network: str, updates: int) -> None:
        self.name, self.network, self.trains, self.updates = name, network, (network,), updates

    def begin(self, networks: Mapping[str, Network]) -> list[tf.Operation]:
        if self.network == "model":
            return []
        return copy_network(networks["model"], networks[self.network], optimizer="copy")

    def compute(self, forward: ForwardFunction, batch: Batch) -> ObjectiveOutput:
        noise = tf.random.stateless_normal(tf.shape(batch["inputs"]), forward.stateless_seed("noise"), stddev=0.1)
        logits = forward(self.network, batch["inputs"] + noise)
        taught = tf.reduce_mean(tf.square(logits - tf.stop_gradient(forward("teacher", batch["inputs"]))), -1)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["targets"], logits)
        correct = tf.cast(tf.equal(tf.argmax(logits, -1), tf.cast(batch["targets"], tf.int64)), tf.float32)
        return ObjectiveOutput({"labels": loss, "taught": 0.01 * taught}, {"accuracy": correct}, logits)


def several(*, parts: Parts, updates: int = 2) -> Recipe:
    """Return the recipe."""
    networks = [
        Network(
            name,
            parts.build_model(input_shape=parts.data.input_shape, classes=parts.data.classes),
            parts.build_optimizer(),
            fixed=name == "teacher",
        )
        for name in ("model", "messenger", "teacher")
    ]
    return Recipe(networks, [Imitate("student", "model", updates), Imitate("messenger", "messenger", 1)])
