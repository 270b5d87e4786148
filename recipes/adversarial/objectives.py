"""Adversarial losses, penalties and objectives."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from hookline.recipes.adversarial.groups import Copies, Group, forward_group
from hookline.recipes.adversarial.sample_quality import Quality, average_metrics, draw
from hookline.recipes.adversarial.settings import AdversarialLoss, Noise, Penalty
from hookline.trainer.errors import UserError
from hookline.trainer.network import Network
from hookline.trainer.objective import Batch, Examples, ForwardFunction, Objective, ObjectiveOutput, Shown
from hookline.trainer.step.metrics import example_weights

SAMPLES = "samples"


@dataclass(frozen=True)
class Game:
    """Say who plays whom: each generator makes an equal part of the samples that are judged.

    One generator and many discriminators: the generator's samples are divided among these. Many generators and one
    discriminator: it sees all of them. As many of both: generator n plays discriminator n alone.

    Attributes:
        generators: those that make samples.
        discriminators: those that judge.
        loss: what both minimise.
        noise: what generators start from.
        updates: of the discriminators in a step; the generators get the examples of one of them.
    """

    generators: Group
    discriminators: Group
    loss: AdversarialLoss
    noise: Noise
    updates: int = 1

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
            raise _uneven(size, count * self._multiple)
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

    def __init__(
        self,
        name: str,
        game: Game,
        *,
        penalty: Penalty | None = None,
        copies: Copies | None = None,
    ) -> None:
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


def _uneven(size: int, parts: int) -> UserError:
    return UserError(
        f"{size} examples are left for an update of all discriminators. Expected a multiple of {parts}: "
        "trainer.batch_size is divided among replicas, task.pairs, and task.discriminator_updates."
    )
