"""Adversarial games: losses, penalties and noise, the networks that play, and their objectives."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from hookline.recipes import check_choice, check_number, check_whole
from hookline.recipes.models import DISCRIMINATOR, GENERATOR
from hookline.recipes.sample_quality import Quality, average_metrics, draw
from hookline.trainer.errors import UserError
from hookline.trainer.final_activation import FinalActivation, take_off
from hookline.trainer.network import Network
from hookline.trainer.objective import Batch, Examples, ForwardFunction, Objective, ObjectiveOutput, Shown
from hookline.trainer.recipe import Parts
from hookline.trainer.step.copy_network import Slots, copy_network
from hookline.trainer.step.metrics import example_weights

Term: TypeAlias = "Callable[[tf.Tensor], tf.Tensor]"


@dataclass(frozen=True)
class AdversarialLoss:
    """The terms of a loss; each maps scores of any shape to losses of that shape."""

    real: Term  # of the discriminator, for its scores of real examples
    fake: Term  # of the discriminator, for its scores of generated examples
    generator: Term  # of the generator, for the discriminator's scores of its samples
    needs_penalty: bool = False  # whether the discriminator must be held Lipschitz by a gradient penalty


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
        generator=lambda scores: tf.negative(scores),
    ),
    # Gulrajani et al., Improved Training of Wasserstein GANs, 2017, arXiv 1704.00028.
    "wasserstein": AdversarialLoss(
        real=lambda scores: tf.negative(scores),
        fake=lambda scores: tf.identity(scores),
        generator=lambda scores: tf.negative(scores),
        needs_penalty=True,
    ),
}


PENALTIES = ("r1", "two_sided")

Scores: TypeAlias = "Callable[[tf.Tensor], tf.Tensor]"
"""Maps inputs [networks, batch, ...] to scores [networks, batch]; each score depends on its own example alone."""
Differentiate: TypeAlias = "Callable[[tf.Tensor, Sequence[tf.Tensor]], list[tf.Tensor | None]]"
"""Returns the gradients of a scalar: `ForwardFunction.gradients`, which keeps those of float16 from vanishing."""


def _squared_slope(scores: Scores, points: tf.Tensor, gradients: Differentiate) -> tf.Tensor:
    points = tf.stop_gradient(points)
    (gradient,) = gradients(tf.reduce_sum(scores(points)), [points])
    return tf.reduce_sum(tf.square(gradient), axis=list(range(2, points.shape.rank)))


@dataclass(frozen=True)
class Penalty:
    """A penalty of a discriminator's slope."""

    kind: str  # one of `PENALTIES`
    weight: float  # of the penalty in the discriminator's loss, above 0

    def __call__(
        self, scores: Scores, real: tf.Tensor, fake: tf.Tensor, seed: tf.Tensor, gradients: Differentiate
    ) -> tf.Tensor:
        """Return the weighted penalty of each example: float32 [networks, batch].

        "r1" is half the squared slope at real examples (Mescheder et al. 2018, arXiv 1801.04406, equation 9);
        "two_sided" is (slope - 1)^2 at random points between real and generated examples (Gulrajani et al., Improved
        Training of Wasserstein GANs, 2017, arXiv 1704.00028, algorithm 1).
        """
        if self.kind == "r1":
            return self.weight * (0.5 * _squared_slope(scores, real, gradients))
        real, fake = tf.cast(real, tf.float32), tf.cast(fake[:, : real.shape[1]], tf.float32)
        shape = tf.concat([tf.shape(real)[:2], tf.ones([real.shape.rank - 2], tf.int32)], axis=0)
        share = tf.random.stateless_uniform(shape, seed, dtype=real.dtype)
        # The derivative of a root is infinite at 0: an example without slope would give NaN.
        slope = tf.sqrt(_squared_slope(scores, fake + share * (real - fake), gradients) + 1e-12)
        return self.weight * tf.square(slope - 1.0)


NOISES = ("normal", "uniform")


@dataclass(frozen=True)
class Noise:
    """How a generator's inputs are drawn."""

    size: int  # numbers of one input
    kind: str = "normal"  # mean 0 and variance 1; or "uniform", in [-1, 1)

    def draw(self, forward: ForwardFunction, pairs: int, count: int, *, use: str) -> tf.Tensor:
        """Return noise for each of several generators; each has a seed of its own, in whatever form it is run."""
        seeds = [forward.stateless_seed(f"{use}_{pair}") for pair in range(pairs)]
        shape = [count, self.size]
        if self.kind == "uniform":
            return tf.stack([tf.random.stateless_uniform(shape, seed, -1.0, 1.0) for seed in seeds])
        return tf.stack([tf.random.stateless_normal(shape, seed) for seed in seeds])


AUTO = "auto"


@dataclass(frozen=True)
class Settings:
    """The settings of an adversarial game."""

    loss: AdversarialLoss
    penalty: Penalty | None  # of the discriminators' slope
    noise: Noise
    updates: int  # of the discriminators in a step
    discriminator_learning_rate: float | None  # None for the optimizer's own
    samples: int  # that an evaluation judges, of each generator


def check_settings(
    *,
    loss: str,
    gradient_penalty: float,
    penalty: str,
    discriminator_updates: int,
    discriminator_learning_rate: float | None,
    latent_size: int,
    noise: str,
    samples: int,
) -> Settings:
    """Return the settings of a recipe's arguments of the same names."""
    check_choice("loss", loss, LOSSES)
    check_choice("noise", noise, NOISES)
    check_choice("penalty", penalty, (AUTO, *PENALTIES))
    check_whole("discriminator_updates", discriminator_updates, 1)
    check_whole("latent_size", latent_size, 1)
    check_whole("samples", samples, 2)
    rate = discriminator_learning_rate
    if rate is not None:
        check_number("discriminator_learning_rate", rate, 0, open_below=True)
    weight, needs_penalty = check_number("gradient_penalty", gradient_penalty, 0), LOSSES[loss].needs_penalty
    if needs_penalty and not weight:
        raise UserError(
            f"gradient_penalty=0 received with loss={loss}, whose discriminator is unbounded without one. Expected a "
            "number above 0, such as 10."
        )
    if penalty == AUTO:
        penalty = "two_sided" if needs_penalty else "r1"
    slope = Penalty(penalty, weight) if weight else None
    return Settings(LOSSES[loss], slope, Noise(latent_size, noise), discriminator_updates, rate, samples)


def settings_of(arguments: Mapping[str, Any]) -> Settings:
    """Return the settings among a recipe's arguments."""
    return check_settings(**{name: arguments[name] for name in inspect.signature(check_settings).parameters})


@dataclass(frozen=True)
class Group:
    """Networks of one kind.

    Stacked ones are one network, which has them along the first axis of every weight, of its inputs and of its outputs:
    one matrix product computes all of them, and none sees another.
    """

    names: tuple[str, ...]  # a single one where they are stacked
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
        self._parts, self._settings = parts, settings

    def build(self, role: str, name: str, *, stacked: int | None = None, updates: int = 1) -> Network:
        """Return a network; of a discriminator without a final sigmoid, since its losses take scores."""
        model = self._model(role, stacked)
        activations: tuple[FinalActivation, ...] = ()
        rate = None
        if role == DISCRIMINATOR:
            layers = model._flatten_layers(include_self=False)
            if self._settings.penalty and any(isinstance(each, keras.layers.BatchNormalization) for each in layers):
                raise UserError(
                    "A gradient penalty needs scores that depend on one example alone, but the discriminator has batch "
                    "norm. Expected model.batch_norm=generator, or task.gradient_penalty=0."
                )
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

    sources: Group  # each has made its updates of a step before
    updates: int = 1  # of a source in a step
    every: int = 1  # steps from one copy to the next; the first is in the first step
    optimizer: Slots = "copy"  # what becomes of the copies' optimizers: "copy", "reset" (as a new one) or "keep"

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
    """Who plays whom: each generator makes an equal part of the samples that are judged.

    One generator and many discriminators: the generator's samples are divided among these. Many generators and one
    discriminator: it sees all of them. As many of both: generator n plays discriminator n alone.
    """

    generators: Group
    discriminators: Group
    loss: AdversarialLoss
    noise: Noise
    updates: int = 1  # of the discriminators in a step; the generators get the examples of one of them

    def real(self, batch: Batch, *, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the data of each discriminator, and their weights: parts of the batch; in an evaluation all of it."""
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
        """Set who is trained, and how; `copies` become these discriminators before they learn."""
        self.name, self.trains, self.updates = name, game.discriminators.names, game.updates
        self.game, self.penalty, self.copies = game, penalty, copies

    def begin(self, networks: Mapping[str, Network]) -> list[tf.Operation]:
        """Return the ops that copy other networks into these."""
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

    Losses are means over examples, summed over the generators; one that plays many discriminators gets their mean.
    """

    def __init__(self, name: str, game: Game, *, quality: Quality | None = None, samples: int = 2500) -> None:
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
