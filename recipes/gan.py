"""GAN, a generator and a discriminator that play against each other; and SGAN, several such pairs and a global one.

The discriminator learns to tell examples from samples, the generator to make samples that it takes for examples. In
each step the discriminator learns first; each network has its own optimizer, and neither writes the other's weights.
In SGAN, no local network depends on the global pair, and the two global networks are never trained against each other.

Chavdarova and Fleuret, SGAN: An Alternative Training of Generative Adversarial Networks, 2018, arXiv 1712.02330.
"""

from __future__ import annotations

from typing import cast, get_args

from hookline.recipes.adversarial import Copies, Discriminate, Game, Generate, NetworkBuilder, Settings, settings_of
from hookline.recipes.models import DISCRIMINATOR, GENERATOR
from hookline.recipes.sample_quality import quality_for
from hookline.trainer.deferred import prechecked
from hookline.trainer.errors import check_choice, check_integer
from hookline.trainer.recipe import Parts, Recipe
from hookline.trainer.step.copy_network import Slots

GLOBAL_GENERATOR, GLOBAL_DISCRIMINATOR = "global_generator", "global_discriminator"


@prechecked(Settings)
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

    Goodfellow et al., Generative Adversarial Nets, 2014. The arguments are described in `configs/task/gan.yaml`; the
    model must be one with roles, such as gan_mlp or dcgan.

    Equation:
        x an example, z noise, G the generator, D the score of the discriminator, s(t) = log(1 + exp(t)):
        non_saturating:  L_D = mean s(-D(x)) + mean s(D(G(z))),            L_G = mean s(-D(G(z)))
        hinge:           L_D = mean max(0, 1 - D(x)) + mean max(0, 1 + D(G(z))),  L_G = -mean D(G(z))
        wasserstein:     L_D = mean D(G(z)) - mean D(x),                   L_G = -mean D(G(z))
        penalty r1:      L_D + weight / 2 * mean ||dD/dx||^2 at examples
        two_sided:       L_D + weight * mean (||dD/dx|| - 1)^2 at points between examples and samples

    Pitfalls:
        - Losses do not measure sample quality: watch `coverage`, `frechet_distance` and the pictures of samples.
        - On the mixtures, without the recipe's latent size of 2, uniform noise, small penalty and averaged weights, the
          generator loses modes.
    """
    settings = settings_of(locals())
    quality = quality_for(parts.data, classifier, parts.plugins)
    builder = NetworkBuilder(parts, settings)
    updates = settings.discriminator_updates
    generator = builder.group(GENERATOR, GENERATOR)
    game = Game(generator, builder.group(DISCRIMINATOR, DISCRIMINATOR, updates=updates), settings, updates)
    return Recipe(builder.networks, [Discriminate(DISCRIMINATOR, game), Generate(GENERATOR, game, quality=quality)])


@prechecked(Settings)
def sgan(
    *,
    parts: Parts,
    pairs: int = 4,
    stacked: bool | str | None = None,
    messenger_every: int = 1000,
    messenger_optimizer: str = "copy",
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
    """Build the local pairs, the messengers and the global pair, and the five objectives of a step.

    The arguments are described in `configs/task/sgan.yaml`. With few steps between copies, the messengers forget too
    soon what they learned about the global generator, and it loses modes; with 1 it collapses to one point.

    Equation:
        n = 1..N, each step, with the losses L_D and L_G of recipe=gan:
        local pairs:           D_n on L_D(examples, G_n),   G_n on L_G(D_n)
        messengers:            M_n <- copy of D_n every `messenger_every` steps;  M_n on L_D(examples, G_0)
        global generator:      G_0 on the mean over n of L_G(M_n)
        global discriminator:  D_0 on L_D(examples, samples of all G_n)

    Pitfalls:
        - A global network must not change a local one, not even its moving statistics: such a run is refused.
    """
    settings = settings_of(locals())
    check_integer("pairs", pairs, 2)
    check_integer("messenger_every", messenger_every, 1)
    check_choice("messenger_optimizer", messenger_optimizer, get_args(Slots))
    quality = quality_for(parts.data, classifier, parts.plugins)
    builder = NetworkBuilder(parts, settings)
    stack = builder.stacks(pairs, stacked)
    generators = builder.group(GENERATOR, GENERATOR, pairs, stacked=stack)
    updates = settings.discriminator_updates
    discriminators = builder.group(DISCRIMINATOR, DISCRIMINATOR, pairs, stacked=stack, updates=updates)
    # Messengers have the schedule of the networks whose optimizers they copy.
    messengers = builder.group(DISCRIMINATOR, "messenger", pairs, stacked=stack, updates=updates)
    global_generator = builder.group(GENERATOR, GLOBAL_GENERATOR)
    global_discriminator = builder.group(DISCRIMINATOR, GLOBAL_DISCRIMINATOR)
    local = Game(generators, discriminators, settings, updates)
    hunted = Game(global_generator, messengers, settings)
    judged = Game(generators, global_discriminator, settings)
    copying = Copies(discriminators, updates, messenger_every, cast(Slots, messenger_optimizer))
    return Recipe(
        builder.networks,
        [
            Discriminate("local_discriminators", local),
            Generate("local_generators", local, quality=quality),
            Discriminate("messengers", hunted, copies=copying),
            Generate(GLOBAL_GENERATOR, hunted, quality=quality),
            Discriminate(GLOBAL_DISCRIMINATOR, judged),
        ],
    )
