"""GAN, a generator and a discriminator that play against each other; and SGAN, several such pairs and a global one.

In each step of SGAN, in this order: every local discriminator learns from its own real examples and its own generator's
samples ("local_discriminators"); every local generator learns from its own discriminator ("local_generators"); every
messenger, which regularly becomes a deep copy of its local discriminator, learns to recognize the global generator's
samples ("messengers"); the global generator learns from the messengers ("global_generator"); the global discriminator
learns to recognize the samples of all local generators ("global_discriminator"). So the global pair depends on the
local ones, and no local network on the global pair; the two global networks never meet.

Chavdarova and Fleuret, SGAN: An Alternative Training of Generative Adversarial Networks, 2018, arXiv 1712.02330.
"""

from __future__ import annotations

from typing import cast, get_args

from hookline.recipes import check_choice, check_whole
from hookline.recipes.adversarial import (
    AUTO,
    Copies,
    Discriminate,
    Game,
    Generate,
    NetworkBuilder,
    Settings,
    settings_of,
)
from hookline.recipes.models import DISCRIMINATOR, GENERATOR
from hookline.recipes.sample_quality import quality_for
from hookline.trainer.deferred import prechecked
from hookline.trainer.errors import UserError
from hookline.trainer.recipe import Parts, Recipe
from hookline.trainer.step.copy_network import Slots

GLOBAL_GENERATOR, GLOBAL_DISCRIMINATOR = "global_generator", "global_discriminator"
MESSENGER_OPTIMIZERS = get_args(Slots)


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

    Goodfellow et al., Generative Adversarial Nets, 2014. The arguments are those of `configs/task/gan.yaml`; the model
    is one with roles, such as gan_mlp or dcgan.
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

    The arguments are those of `configs/task/sgan.yaml`. Between two copies, the messengers play the global generator as
    any discriminators do. With few steps between them they forget too soon what they have learned of it, and the global
    generator loses modes; with 1 it collapses to the one point that they score highest.
    """
    settings = settings_of(locals())
    check_whole("pairs", pairs, 2)
    check_whole("messenger_every", messenger_every, 1)
    check_choice("messenger_optimizer", messenger_optimizer, MESSENGER_OPTIMIZERS)
    quality = quality_for(parts.data, classifier, parts.plugins)
    builder = NetworkBuilder(parts, settings)
    stack = _decide(builder, pairs, stacked)
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


def _decide(builder: NetworkBuilder, pairs: int, stacked: bool | str | None) -> bool:
    if not isinstance(stacked, bool) and stacked not in (None, AUTO):
        raise UserError(f"stacked={stacked} received. Expected true, false, or null (auto).")
    if stacked is False:
        return False
    reason = builder.can_stack(pairs)
    if reason is not None and stacked is True:
        raise UserError(f"stacked=true received, but {reason}. Expected task.stacked=false, or auto.")
    return reason is None
