"""Groups of networks, built and copied, and the objectives of the games that they play."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hookline.recipes.adversarial.sample_quality import Quality, average_metrics, draw
from hookline.recipes.adversarial.settings import AdversarialLoss, Noise, Penalty, Settings
from hookline.recipes.models.checks import DISCRIMINATOR, GENERATOR
from hookline.trainer.errors import UserError
from hookline.trainer.final_activation import FinalActivation, take_off
from hookline.trainer.network import Network
from hookline.trainer.objective import Batch, Examples, ForwardFunction, Objective, ObjectiveOutput, Shown
from hookline.trainer.recipe import Parts
from hookline.trainer.step.copy_network import Slots, copy_network
from hookline.trainer.step.metrics import example_weights


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
        activations: tuple[FinalActivation, ...] = ()
        rate = None
        if role == DISCRIMINATOR:
            self._check_batch_norm(model)
            model, activations = take_off(model)
            rate = self._settings.discriminator_learning_rate
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
        optimizer = _inner(self._parts.build_optimizer())
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
    """Describe copies of networks: which ones, and when."""

    sources: Group  # each has made its updates of a step before
    updates: int = 1  # of a source in a step
    every: int = 1  # steps from one copy to the next; the first is in the first step
    optimizer: Slots = "copy"  # what becomes of the copies' optimizers: "copy", "reset" (as a new one) or "keep"

    def operations(self, networks: Mapping[str, Network], targets: tuple[str, ...]) -> list[tf.Operation]:
        """Create and return the ops of one step."""

        def copy() -> list[tf.Operation]:
            pairs = zip(self.sources.names, targets, strict=True)
            copied = [copy_network(networks[a], networks[b], optimizer=self.optimizer) for a, b in pairs]
            return [operation for operations in copied for operation in operations]

        def copied() -> tf.Tensor:
            with tf.control_dependencies(copy()):
                return tf.constant(True)

        if self.every == 1:
            return copy()
        # The number of a step is how often the sources have moved, so it is saved.
        moved = tf.convert_to_tensor(_inner(networks[self.sources.names[0]].optimizer).iterations)
        due = tf.equal((tf.cast(moved, tf.int64) // self.updates - 1) % self.every, 0)
        return [tf.cond(due, copied, lambda: tf.constant(False)).op]


def _inner(optimizer: Any) -> Any:
    """Return the optimizer that another, such as one that scales losses, wraps."""
    return getattr(optimizer, "inner_optimizer", optimizer)


SAMPLES = "samples"


@dataclass(frozen=True)
class Game:
    """Say who plays whom: each generator makes an equal part of the samples that are judged.

    One generator and many discriminators: the generator's samples are divided among these. Many generators and one
    discriminator: it sees all of them. As many of both: generator n plays discriminator n alone.
    """

    generators: Group
    discriminators: Group
    loss: AdversarialLoss
    noise: Noise
    updates: int = 1  # of the discriminators in a step; the generators get the examples of one of them

    def real(self, batch: Batch, *, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Return each discriminator's part of the data, and the weights of these examples.

        In training, each gets its own part of the batch: their data are independent. In an evaluation each sees
        every example.
        """
        inputs, weights, count = batch["inputs"], example_weights(batch), self.discriminators.count
        size = inputs.shape[0]
        if not training:
            return tf.stack([inputs] * count), tf.stack([weights] * count)
        if size % (count * self._multiple):
            raise UserError(
                f"{size} examples are left for an update of all discriminators. Expected a multiple of "
                f"{count * self._multiple}: trainer.batch_size is divided among replicas, task.pairs, and "
                "task.discriminator_updates."
            )
        shape = [count, size // count]
        return tf.reshape(inputs, [*shape, *inputs.shape[1:]]), tf.reshape(weights, shape)

    def samples(self, forward: ForwardFunction, each: int) -> tf.Tensor:
        """Return new samples for every discriminator."""
        judges, makers = self.discriminators.count, self.generators.count
        each = -(-each // self._multiple) * self._multiple
        noise = self.noise.draw(forward, makers, judges * each // makers, use="noise")
        made = forward_group(forward, self.generators, noise)
        return tf.reshape(made, [judges, each, *made.shape[2:]])

    def scores(self, forward: ForwardFunction, examples: tf.Tensor) -> tf.Tensor:
        """Return the scores of each discriminator for its examples: float32 [discriminators, n]."""
        return tf.cast(tf.squeeze(forward_group(forward, self.discriminators, examples), axis=-1), tf.float32)

    @property
    def _multiple(self) -> int:
        """Return the unit that the samples for one discriminator must be a multiple of: all generators make as many."""
        return self.generators.count // math.gcd(self.generators.count, self.discriminators.count)


class Discriminate(Objective):
    """Train discriminators to tell real examples from generated ones.

    Losses are means over examples, summed over the discriminators: each gets the gradient that it would get alone.
    """

    def __init__(self, name: str, game: Game, *, penalty: Penalty | None = None, copies: Copies | None = None) -> None:
        """Set who is trained, and how."""
        self.name, self.trains, self.updates = name, game.discriminators.names, game.updates
        self.game, self.penalty, self.copies = game, penalty, copies

    def begin(self, networks: Mapping[str, Network]) -> list[tf.Operation]:
        """Return the ops that copy other networks into these, if there are any."""
        return [] if self.copies is None else self.copies.operations(networks, self.trains)

    def compute(self, forward: ForwardFunction, batch: Batch) -> ObjectiveOutput:
        """Return the losses of real and of generated examples, the penalty, and the mean scores."""
        game = self.game
        real, weights = game.real(batch, training=forward.training)
        fake = tf.stop_gradient(game.samples(forward, real.shape[1]))
        count = game.discriminators.count
        real_scores, fake_scores = game.scores(forward, real), game.scores(forward, fake)
        losses = {
            "real": count * _mean(game.loss.real(real_scores), weights),
            "fake": count * tf.reduce_mean(game.loss.fake(fake_scores)),
        }
        if self.penalty is not None:
            seed = forward.stateless_seed("between")
            slopes = self.penalty(lambda points: game.scores(forward, points), real, fake, seed, forward.gradients)
            losses["gradient_penalty"] = count * _mean(slopes, weights)
        metrics = {"real_score": _mean(real_scores, weights), "fake_score": tf.reduce_mean(fake_scores)}
        return ObjectiveOutput(losses, metrics)


class Generate(Objective):
    """Train generators to make samples that discriminators take for real.

    The loss is a mean over examples, summed over the generators: each gets the gradient that it would get alone. One
    generator that plays many discriminators gets the mean over these.
    """

    def __init__(self, name: str, game: Game, *, quality: Quality | None = None, samples: int = 2500) -> None:
        """Set who is trained."""
        self.name, self.trains, self.game = name, game.generators.names, game
        self.quality, self.count = quality, samples

    def compute(self, forward: ForwardFunction, batch: Batch) -> ObjectiveOutput:
        """Return the generators' loss and the mean score of their samples."""
        game = self.game
        size = batch["inputs"].shape[0]
        parts = game.discriminators.count * game.updates if forward.training else 1
        scores = game.scores(forward, game.samples(forward, -(-size // parts)))
        loss = game.generators.count * tf.reduce_mean(game.loss.generator(scores))
        collected = {} if forward.training or self.quality is None else self.quality.collect(batch)
        return ObjectiveOutput({"generator": loss}, {"fake_score": tf.reduce_mean(scores)}, collected=collected)

    def sample(self, forward: ForwardFunction) -> dict[str, tf.Tensor]:
        """Return samples of each generator, the same noise at every evaluation."""
        if self.quality is None:
            return {}
        group = self.game.generators
        noise = self.game.noise.draw(forward, group.count, self.count, use="sample")
        return {SAMPLES: tf.cast(forward_group(forward, group, noise), tf.float32)}

    def split_metrics(self, collected: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return how good the samples are; of several generators the mean."""
        quality = self.quality
        if quality is None:
            return {}
        return average_metrics(lambda samples: quality.metrics(samples, collected), collected[SAMPLES])

    def show(self, collected: dict[str, np.ndarray], examples: Examples) -> Shown:
        """Return a picture of the samples, named after the objective."""
        if self.quality is None or SAMPLES not in collected:
            return Shown()
        return Shown({f"{self.name}_samples": draw(self.quality, collected[SAMPLES], collected)})


def _mean(values: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    return tf.math.divide_no_nan(tf.reduce_sum(values * weights), tf.reduce_sum(weights))
