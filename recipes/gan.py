"""GAN: a generator and a discriminator that play against each other.

The discriminator learns to tell examples from samples, the generator to make samples that it takes for examples. In
each step the discriminator learns first; each network has its own optimizer, and neither writes the other's weights.
"""

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

    Equation:
        x an example, z noise, G the generator, D the score of the discriminator, s(t) = log(1 + exp(t)):
        non_saturating:  L_D = mean s(-D(x)) + mean s(D(G(z))),            L_G = mean s(-D(G(z)))
        hinge:           L_D = mean max(0, 1 - D(x)) + mean max(0, 1 + D(G(z))),  L_G = -mean D(G(z))
        wasserstein:     L_D = mean D(G(z)) - mean D(x),                   L_G = -mean D(G(z))
        penalty r1:      L_D + weight / 2 * mean ||dD/dx||^2 at examples
        two_sided:       L_D + weight * mean (||dD/dx|| - 1)^2 at points between examples and samples

    Pitfalls:
        - Losses do not say how good the samples are: watch `coverage`, `frechet_distance` and the pictures of samples.
        - On the mixtures, without the recipe's latent size of 2, uniform noise, small penalty and averaged weights, the
          generator loses modes.
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
