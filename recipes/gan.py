"""GAN: a generator and a discriminator that play against each other."""

from __future__ import annotations

from hookline.recipes.adversarial import (
    Discriminate,
    Game,
    Generate,
    Group,
    NetworkBuilder,
    check_settings,
    settings_of,
)
from hookline.recipes.models import DISCRIMINATOR, GENERATOR
from hookline.recipes.sample_quality import quality_for
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

    Goodfellow et al., Generative Adversarial Nets, 2014. The arguments are those of `configs/task/gan.yaml`; the model
    is one with roles, such as gan_mlp or dcgan.
    """
    settings = settings_of(locals())
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
