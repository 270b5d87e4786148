"""Adversarial games: losses, penalties and noise, the networks that play, and their objectives."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from hookline.recipes.models import DISCRIMINATOR, GENERATOR
from hookline.recipes.sample_quality import Quality, average_metrics, draw
from hookline.trainer.errors import UserError, check_choice, check_integer, check_number
from hookline.trainer.final_activation import FinalActivation, take_off
from hookline.trainer.network import Network, inner_of
from hookline.trainer.objective import Batch, Examples, ForwardFunction, Objective, ObjectiveOutput, Shown
from hookline.trainer.recipe import Parts
from hookline.trainer.step.copy_network import Slots, copy_network
from hookline.trainer.step.means import example_weights

Term: TypeAlias = "Callable[[tf.Tensor], tf.Tensor]"


class AdversarialLoss(NamedTuple):
    """The terms of a loss; each maps scores of any shape to losses of that shape."""

    real: Term  # of the discriminator, for its scores of real examples
    fake: Term  # of the discriminator, for its scores of generated examples
    generator: Term  # of the generator, for the discriminator's scores of its samples


LOSSES: dict[str, AdversarialLoss] = {
    # Goodfellow et al., Generative Adversarial Nets, 2014: -log sigmoid(s) and -log(1 - sigmoid(s)); the generator
    # maximises log sigmoid(s), whose gradient does not vanish where the discriminator wins.
    "non_saturating": AdversarialLoss(
        real=lambda scores: tf.nn.softplus(-scores),
        fake=lambda scores: tf.nn.softplus(scores),
        generator=lambda scores: tf.nn.softplus(-scores),
    ),
    # Lim and Ye, Geometric GAN, 2017, arXiv 1705.02894.
    "hinge": AdversarialLoss(
        real=lambda scores: tf.nn.relu(1.0 - scores),
        fake=lambda scores: tf.nn.relu(1.0 + scores),
        generator=lambda scores: -scores,
    ),
    # Gulrajani et al., Improved Training of Wasserstein GANs, 2017, arXiv 1704.00028.
    "wasserstein": AdversarialLoss(real=lambda s: -s, fake=lambda s: s, generator=lambda s: -s),
}
UNBOUNDED = "wasserstein"  # its discriminator must be kept Lipschitz by a gradient penalty
NOISES = ("normal", "uniform")
AUTO = "auto"
PENALTIES = R1, TWO_SIDED = "r1", "two_sided"


@dataclass(frozen=True)
class Settings:
    """The settings of an adversarial game, checked; `configs/task/gan.yaml` explains them."""

    loss: str = "non_saturating"
    gradient_penalty: float = 0.0
    penalty: str = AUTO
    discriminator_updates: int = 1
    discriminator_learning_rate: float | None = None
    latent_size: int = 16
    noise: str = "normal"
    samples: int = 2500

    def __post_init__(self) -> None:
        """Check the values."""
        check_choice("loss", self.loss, LOSSES)
        check_choice("noise", self.noise, NOISES)
        check_choice("penalty", self.penalty, (AUTO, *PENALTIES))
        check_integer("discriminator_updates", self.discriminator_updates, 1)
        check_integer("latent_size", self.latent_size, 1)
        check_integer("samples", self.samples, 2)
        if self.discriminator_learning_rate is not None:
            check_number("discriminator_learning_rate", self.discriminator_learning_rate, 0, above_minimum=True)
        if not check_number("gradient_penalty", self.gradient_penalty, 0) and self.loss == UNBOUNDED:
            raise UserError(
                f"gradient_penalty=0 received with loss={self.loss}, whose discriminator is unbounded without one. "
                "Expected a number above 0, such as 10."
            )


def settings_of(arguments: Mapping[str, Any]) -> Settings:
    """Return the settings among a task's arguments."""
    return Settings(**{each.name: arguments[each.name] for each in fields(Settings)})


Scores: TypeAlias = "Callable[[tf.Tensor], tf.Tensor]"
"""Maps inputs [networks, batch, ...] to scores [networks, batch]; each score depends on its own example alone."""
Differentiate: TypeAlias = "Callable[[tf.Tensor, Sequence[tf.Tensor]], list[tf.Tensor | None]]"
"""Returns the gradients of a scalar: `ForwardFunction.gradients`, which keeps float16 gradients from vanishing."""


def _squared_slope(scores: Scores, points: tf.Tensor, gradients: Differentiate) -> tf.Tensor:
    points = tf.stop_gradient(points)
    (gradient,) = gradients(tf.reduce_sum(scores(points)), [points])
    return tf.reduce_sum(tf.square(gradient), axis=list(range(2, points.shape.rank)))


def slope_penalty(
    kind: str, scores: Scores, real: tf.Tensor, fake: tf.Tensor, seed: tf.Tensor, gradients: Differentiate
) -> tf.Tensor:
    """Return the penalty of each example: float32 [networks, batch].

    "r1" is half the squared slope at real examples (Mescheder et al. 2018, arXiv 1801.04406, equation 9); "two_sided"
    is (slope - 1)^2 at random points between real and generated examples (Gulrajani et al., Improved Training of
    Wasserstein GANs, 2017, arXiv 1704.00028, algorithm 1).
    """
    if kind == R1:
        return 0.5 * _squared_slope(scores, real, gradients)
    real, fake = tf.cast(real, tf.float32), tf.cast(fake[:, : real.shape[1]], tf.float32)
    shape = tf.concat([tf.shape(real)[:2], tf.ones([real.shape.rank - 2], tf.int32)], axis=0)
    share = tf.random.stateless_uniform(shape, seed, dtype=real.dtype)
    # The derivative of a square root is infinite at 0: an example with zero slope would give NaN.
    slope = tf.sqrt(_squared_slope(scores, fake + share * (real - fake), gradients) + 1e-12)
    return tf.square(slope - 1.0)


def draw_noise(
    forward: ForwardFunction, pairs: int, count: int, size: int, *, kind: str = "normal", use: str = "noise"
) -> tf.Tensor:
    """Return generator inputs, each with its own seed, float32 [pairs, count, size]: normal or uniform in [-1, 1)."""
    seeds = [forward.stateless_seed(f"{use}_{pair}") for pair in range(pairs)]
    if kind == "uniform":
        return tf.stack([tf.random.stateless_uniform([count, size], seed, -1.0, 1.0) for seed in seeds])
    return tf.stack([tf.random.stateless_normal([count, size], seed) for seed in seeds])


@dataclass(frozen=True)
class Group:
    """Networks of one kind; stacked ones form one network, along the first axis of its weights and tensors."""

    names: tuple[str, ...]  # a single one if they are stacked
    count: int

    def outputs(self, forward: ForwardFunction, inputs: tf.Tensor) -> tf.Tensor:
        """Return each network's outputs for its own inputs."""
        if self.count > len(self.names):
            return forward(self.names[0], inputs)
        return tf.stack([forward(name, inputs[place]) for place, name in enumerate(self.names)])


ENTRYWISE = {"Adadelta", "Adagrad", "Adam", "Adamax", "AdamW", "Ftrl", "Lion", "Nadam", "RMSprop", "SGD"}
"""Keras optimizers that update each entry of a variable from the gradients of that entry alone."""


class NetworkBuilder:
    """Build generators and discriminators of one recipe; `networks` are those built so far."""

    def __init__(self, parts: Parts, settings: Settings) -> None:
        self._parts, self._settings = parts, settings
        self.networks: list[Network] = []

    def group(self, role: str, name: str, count: int = 1, *, stacked: bool = False, updates: int = 1) -> Group:
        """Build one or several networks of one kind."""
        names = [f"{name}s" if stacked else name]
        if count > 1 and not stacked:
            names = [f"{name}_{place}" for place in range(count)]
        for each in names:
            self._build(role, each, count if stacked else None, updates)
        return Group(tuple(names), count)

    def _build(self, role: str, name: str, stacked: int | None, updates: int) -> None:
        """Build a network; a discriminator without a final sigmoid, since its losses take scores."""
        model = self._model(role, stacked)
        activations: tuple[FinalActivation, ...] = ()
        rate = None
        if role == DISCRIMINATOR:
            norms = [each for each in model._flatten_layers() if isinstance(each, keras.layers.BatchNormalization)]
            if self._settings.gradient_penalty and norms:
                raise UserError(
                    "A gradient penalty needs scores that depend on one example alone, but the discriminator has batch "
                    "norm. Expected model.batch_norm=generator, or task.gradient_penalty=0."
                )
            model, activations = take_off(model)
            rate = self._settings.discriminator_learning_rate
        optimizer = self._parts.build_optimizer(learning_rate=rate, updates=updates)
        self.networks.append(Network(name, model, optimizer, final_activations=activations))

    def stacks(self, count: int, wanted: bool | str | None) -> bool:
        """Return whether to stack networks: if possible, unless `wanted` is False."""
        reason = None if wanted is False else self._why_apart(count)
        if reason is not None and wanted is True:
            raise UserError(f"stacked=true received, but {reason}. Expected task.stacked=false, or auto.")
        return wanted is not False and reason is None

    def _why_apart(self, count: int) -> str | None:
        optimizer = inner_of(self._parts.build_optimizer())
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
        latent, shape = self._settings.latent_size, tuple(self._parts.data.input_shape)
        model = self._parts.build_model(input_shape=shape, role=role, latent_size=latent, stacked=stacked, classes=1)
        leading = (None,) if stacked is None else (stacked, None)
        noise, example = (*leading, latent), (*leading, *shape)
        expected = (noise, example) if role == GENERATOR else (example, (*leading, 1))
        found = (getattr(model, "input_shape", None), getattr(model, "output_shape", None))
        if found != expected:
            raise UserError(
                f"The network '{model.name}' maps {found[0]} to {found[1]}. Expected {expected[0]} to {expected[1]} of "
                f"a {role}: model=gan_mlp, or dcgan for images."
            )
        return model


@dataclass(frozen=True)
class Copies:
    """Copies of networks: which ones, and when."""

    sources: Group  # already updated in the current step
    updates: int = 1  # of a source per step
    every: int = 1  # steps between copies; the first copy is in the first step
    optimizer: Slots = "copy"  # of the copies: "copy", "reset" (to the state of a new one) or "keep"

    def operations(self, networks: Mapping[str, Network], targets: tuple[str, ...]) -> list[tf.Operation]:
        """Create and return the ops of one step."""

        def copy() -> list[tf.Operation]:
            operations: list[tf.Operation] = []
            for source, target in zip(self.sources.names, targets, strict=True):
                operations += copy_network(networks[source], networks[target], optimizer=self.optimizer)
            return operations

        def copied() -> tf.Tensor:
            with tf.control_dependencies(copy()):
                return tf.constant(True)

        if self.every == 1:
            return copy()
        # The step number is derived from the sources' update count, which checkpoints save.
        moved = tf.convert_to_tensor(inner_of(networks[self.sources.names[0]].optimizer).iterations)
        due = tf.equal((tf.cast(moved, tf.int64) // self.updates - 1) % self.every, 0)
        return [tf.cond(due, copied, lambda: tf.constant(False)).op]


SAMPLES = "samples"


@dataclass(frozen=True)
class Game:
    """Pair generators with discriminators; each generator makes an equal part of the samples that are judged.

    One generator and many discriminators: the samples are divided among the discriminators. Many generators and one
    discriminator: it sees the samples of all. As many of both: generator n plays against discriminator n only.
    """

    generators: Group
    discriminators: Group
    settings: Settings
    updates: int = 1  # of the discriminators per step; the generators get the examples of one update

    def real(self, batch: Batch, *, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the data of each discriminator, and their weights: a part of the batch; in evaluations all of it."""
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
        made = self.generate(forward, judges * each // makers, use="noise")
        return tf.reshape(made, [judges, each, *made.shape[2:]])

    def generate(self, forward: ForwardFunction, count: int, *, use: str) -> tf.Tensor:
        """Return samples of each generator, from noise drawn for this use."""
        settings, makers = self.settings, self.generators
        noise = draw_noise(forward, makers.count, count, settings.latent_size, kind=settings.noise, use=use)
        return makers.outputs(forward, noise)

    def scores(self, forward: ForwardFunction, examples: tf.Tensor) -> tf.Tensor:
        """Return the scores of each discriminator for its examples: float32 [discriminators, n]."""
        return tf.cast(tf.squeeze(self.discriminators.outputs(forward, examples), axis=-1), tf.float32)

    @property
    def _multiple(self) -> int:
        """Return the factor that the sample count per discriminator must have, so that generators make equal parts."""
        return self.generators.count // math.gcd(self.generators.count, self.discriminators.count)


class Discriminate(Objective):
    """Train discriminators to tell real examples from generated ones.

    Losses are means over examples, summed over the discriminators: each gets the gradient that it would get alone.
    """

    def __init__(self, name: str, game: Game, *, copies: Copies | None = None) -> None:
        """Set the game and, optionally, the networks to copy into these discriminators before they learn."""
        self.name, self.trains, self.updates = name, game.discriminators.names, game.updates
        self.game, self.copies = game, copies

    def begin(self, networks: Mapping[str, Network]) -> list[tf.Operation]:
        """Return the ops that copy other networks into these."""
        return [] if self.copies is None else self.copies.operations(networks, self.trains)

    def compute(self, forward: ForwardFunction, batch: Batch) -> ObjectiveOutput:
        """Return the losses of real and of generated examples, the penalty, and the mean scores."""
        game, settings = self.game, self.game.settings
        loss = LOSSES[settings.loss]
        real, weights = game.real(batch, training=forward.training)
        fake = tf.stop_gradient(game.samples(forward, real.shape[1]))
        count = game.discriminators.count
        real_scores, fake_scores = game.scores(forward, real), game.scores(forward, fake)
        losses = {
            "real": count * _mean(loss.real(real_scores), weights),
            "fake": count * tf.reduce_mean(loss.fake(fake_scores)),
        }
        if settings.gradient_penalty:
            kind = (TWO_SIDED if settings.loss == UNBOUNDED else R1) if settings.penalty == AUTO else settings.penalty
            seed = forward.stateless_seed("between")
            slopes = slope_penalty(
                kind, lambda points: game.scores(forward, points), real, fake, seed, forward.gradients
            )
            losses["gradient_penalty"] = count * _mean(settings.gradient_penalty * slopes, weights)
        metrics = {"real_score": _mean(real_scores, weights), "fake_score": tf.reduce_mean(fake_scores)}
        return ObjectiveOutput(losses, metrics)


class Generate(Objective):
    """Train generators to make samples that discriminators take for real.

    Losses are means over examples, summed over the generators; one that plays many discriminators gets their mean.
    """

    def __init__(self, name: str, game: Game, *, quality: Quality | None = None) -> None:
        self.name, self.trains, self.game, self.quality = name, game.generators.names, game, quality

    def compute(self, forward: ForwardFunction, batch: Batch) -> ObjectiveOutput:
        """Return the generators' loss and the mean score of their samples."""
        game = self.game
        size = batch["inputs"].shape[0]
        parts = game.discriminators.count * game.updates if forward.training else 1
        scores = game.scores(forward, game.samples(forward, -(-size // parts)))
        loss = game.generators.count * tf.reduce_mean(LOSSES[game.settings.loss].generator(scores))
        collected = {} if forward.training or self.quality is None else self.quality.collect(batch)
        return ObjectiveOutput({"generator": loss}, {"fake_score": tf.reduce_mean(scores)}, collected=collected)

    def sample(self, forward: ForwardFunction) -> dict[str, tf.Tensor]:
        """Return samples of each generator, from the same noise at every evaluation."""
        if self.quality is None:
            return {}
        return {SAMPLES: tf.cast(self.game.generate(forward, self.game.settings.samples, use="sample"), tf.float32)}

    def split_metrics(self, collected: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return the quality of the samples; see `average_metrics` for several generators."""
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
