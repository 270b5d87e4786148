"""GAN: a generator and a discriminator that play against each other."""

from __future__ import annotations

from hookline.recipes.adversarial.groups import Group, NetworkBuilder
from hookline.recipes.adversarial.objectives import Discriminate, Game, Generate
from hookline.recipes.adversarial.sample_quality import quality_for
from hookline.recipes.adversarial.settings import check_settings
from hookline.recipes.models.roles import DISCRIMINATOR, GENERATOR
from hookline.trainer.deferred import prechecked
from hookline.trainer.recipe import Parts, Recipe


@prechecked(check_settings)
def gan(
    *,
    parts: Parts,
    loss: str = "non_saturating",
    gradient_penalty: float = 0.0,
    penalty: str = "auto",
    discriminator_updates: int = 1,
    discriminator_learning_rate: float | None = None,
    latent_size: int = 16,
    noise: str = "normal",
    samples: int = 2500,
    classifier: str | None = None,
) -> Recipe:
    """Build a generator and a discriminator, and the objectives "discriminator" and "generator", in this order.

    Goodfellow et al., Generative Adversarial Nets, 2014.

    Args:
        parts: data and builders; the model is one with roles, such as gan_mlp or dcgan.
        loss: "non_saturating", "hinge" or "wasserstein".
        gradient_penalty: weight of the penalty on the discriminator's slope; 0 for none.
        penalty: "r1" (at real examples, to 0), "two_sided" (between real and generated examples, to 1), or "auto":
            two_sided for the Wasserstein loss, else r1.
        discriminator_updates: of the discriminator in a step, each with its own part of the batch.
        discriminator_learning_rate: None for that of the optimizer.
        latent_size: numbers that the generator starts from.
        noise: how they are drawn: "normal", or "uniform" in [-1, 1).
        samples: generated in each evaluation, to be judged.
        classifier: for images: directory of a finished run of recipe=baseline, whose features and classes judge them.

    Raises:
        UserError: a value out of range, or a model that is not made for this.
    """
    settings = check_settings(
        loss=loss,
        gradient_penalty=gradient_penalty,
        penalty=penalty,
        discriminator_updates=discriminator_updates,
        discriminator_learning_rate=discriminator_learning_rate,
        latent_size=latent_size,
        noise=noise,
        samples=samples,
    )
    quality = quality_for(parts.data, classifier, parts.plugins)
    builder = NetworkBuilder(parts, settings)
    generator = builder.build(GENERATOR, GENERATOR)
    discriminator = builder.build(DISCRIMINATOR, DISCRIMINATOR, updates=settings.updates)
    game = Game(Group((GENERATOR,), 1), Group((DISCRIMINATOR,), 1), settings.loss, settings.noise, settings.updates)
    return Recipe(
        [generator, discriminator],
        [
            Discriminate(DISCRIMINATOR, game, penalty=settings.penalty),
            Generate(GENERATOR, game, quality=quality, samples=settings.samples),
        ],
    )
