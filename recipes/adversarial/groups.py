"""Groups of networks: built, and copied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import keras
import tensorflow as tf

from hookline.recipes.adversarial.settings import Settings
from hookline.recipes.models.roles import DISCRIMINATOR, GENERATOR
from hookline.trainer.errors import UserError
from hookline.trainer.final_activation import take_off
from hookline.trainer.network import Network
from hookline.trainer.objective import ForwardFunction
from hookline.trainer.recipe import Parts
from hookline.trainer.step.copy_network import Slots, copy_network


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
        """Return whether one network is a stack of several."""
        return self.count > len(self.names)


def forward_group(forward: ForwardFunction, group: Group, inputs: tf.Tensor) -> tf.Tensor:
    """Return each network's outputs for its own inputs."""
    if group.stacked:
        return forward(group.names[0], inputs)
    return tf.stack([forward(name, inputs[place]) for place, name in enumerate(group.names)])


ENTRYWISE = {"Adadelta", "Adagrad", "Adam", "Adamax", "AdamW", "Ftrl", "Lion", "Nadam", "RMSprop", "SGD"}
"""Optimizers of Keras that move each entry of a variable by the gradients of that entry alone."""


class NetworkBuilder:
    """Build generators and discriminators of one recipe."""

    def __init__(self, parts: Parts, settings: Settings) -> None:
        """Take the config's parts."""
        self._parts, self._settings = parts, settings

    def build(self, role: str, name: str, *, stacked: int | None = None, updates: int = 1) -> Network:
        """Return a network; of a discriminator without a final sigmoid, since its losses take scores."""
        model = self._model(role, stacked)
        if role == DISCRIMINATOR:
            self._check_batch_norm(model)
        model, activations = take_off(model) if role == DISCRIMINATOR else (model, ())
        rate = self._settings.discriminator_learning_rate if role == DISCRIMINATOR else None
        optimizer = self._parts.build_optimizer(learning_rate=rate, updates=updates)
        return Network(name, model, optimizer, final_activations=activations)

    def group(
        self, role: str, name: str, count: int, *, stacked: bool, updates: int = 1
    ) -> tuple[Group, list[Network]]:
        """Return several networks of one kind."""
        if stacked:
            networks = [self.build(role, f"{name}s", stacked=count, updates=updates)]
        else:
            networks = [self.build(role, f"{name}_{place}", updates=updates) for place in range(count)]
        return Group(tuple(network.name for network in networks), count), networks

    def can_stack(self, count: int) -> str | None:
        """Return why networks cannot be stacked; None if they can."""
        optimizer = self._parts.build_optimizer()
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        kind = type(optimizer).__name__
        if kind not in ENTRYWISE:
            return f"the optimizer {kind} may mix the entries of a weight"
        if optimizer.clipnorm is not None or optimizer.global_clipnorm is not None:
            return "clipping by the norm of a gradient would mix the networks"
        try:
            for role in (GENERATOR, DISCRIMINATOR):
                self._model(role, count)
        except UserError as error:
            return str(error).partition(". Expected")[0].rstrip(".")
        return None

    def _model(self, role: str, stacked: int | None) -> keras.Model:
        latent, shape = self._settings.noise.size, tuple(self._parts.data.input_shape)
        model = self._parts.build_model(input_shape=shape, role=role, latent_size=latent, stacked=stacked, classes=1)
        leading = (None,) if stacked is None else (stacked, None)
        expected = (
            ((*leading, latent), (*leading, *shape)) if role == GENERATOR else ((*leading, *shape), (*leading, 1))
        )
        found = (getattr(model, "input_shape", None), getattr(model, "output_shape", None))
        if found != expected:
            raise UserError(
                f"The network '{model.name}' maps {found[0]} to {found[1]}. Expected {expected[0]} to {expected[1]} of "
                f"a {role}: model=gan_mlp, or dcgan for images."
            )
        return model

    def _check_batch_norm(self, model: keras.Model) -> None:
        layers = model._flatten_layers(include_self=False)
        if self._settings.penalty and any(isinstance(each, keras.layers.BatchNormalization) for each in layers):
            raise UserError(
                "A gradient penalty needs scores that depend on one example alone, but the discriminator has batch "
                "norm. Expected model.batch_norm=generator, or task.gradient_penalty=0."
            )


@dataclass(frozen=True)
class Copies:
    """Describe copies of networks: which ones, and when.

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
        """Create and return the ops of one step."""
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
