"""SGAN: pairs that train on their own, and a global pair that learns from all of them without changing any.

In each step, in this order: every local discriminator learns from its own real examples and its own generator's
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
    Group,
    NetworkBuilder,
    check_settings,
    settings_of,
)
from hookline.recipes.models import DISCRIMINATOR, GENERATOR
from hookline.recipes.sample_quality import quality_for
from hookline.trainer.deferred import prechecked
from hookline.trainer.errors import UserError
from hookline.trainer.objective import Objective
from hookline.trainer.recipe import Parts, Recipe
from hookline.trainer.step.copy_network import Slots

GLOBAL_GENERATOR, GLOBAL_DISCRIMINATOR = "global_generator", "global_discriminator"
MESSENGER_OPTIMIZERS = get_args(Slots)


@prechecked(check_settings)
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

    Equation:
        n = 1..N, each step, with the losses L_D and L_G of recipe=gan:
        local pairs:           D_n on L_D(examples, G_n),   G_n on L_G(D_n)
        messengers:            M_n <- copy of D_n every `messenger_every` steps;  M_n on L_D(examples, G_0)
        global generator:      G_0 on the mean over n of L_G(M_n)
        global discriminator:  D_0 on L_D(examples, samples of all G_n)

    Pitfalls:
        - A global network must not change a local one, not even its moving statistics: such a run is refused.
        - Two pairs that draw the same noise or the same examples would train alike: each has its own.
    """
    settings = settings_of(locals())
    check_whole("pairs", pairs, 2)
    check_whole("messenger_every", messenger_every, 1)
    check_choice("messenger_optimizer", messenger_optimizer, MESSENGER_OPTIMIZERS)
    quality = quality_for(parts.data, classifier, parts.plugins)
    builder = NetworkBuilder(parts, settings)
    stack = _decide(builder, pairs, stacked)
    generators, made = builder.group(GENERATOR, GENERATOR, pairs, stacked=stack)
    updates = settings.updates
    discriminators, judges = builder.group(DISCRIMINATOR, DISCRIMINATOR, pairs, stacked=stack, updates=updates)
    # Messengers have the schedule of the networks whose optimizers they copy.
    messengers, copies = builder.group(DISCRIMINATOR, "messenger", pairs, stacked=stack, updates=updates)
    networks = [*made, *judges, *copies, builder.build(GENERATOR, GLOBAL_GENERATOR)]
    networks.append(builder.build(DISCRIMINATOR, GLOBAL_DISCRIMINATOR))
    local = Game(generators, discriminators, settings.loss, settings.noise, updates)
    hunted = Game(Group((GLOBAL_GENERATOR,), 1), messengers, settings.loss, settings.noise)
    judged = Game(generators, Group((GLOBAL_DISCRIMINATOR,), 1), settings.loss, settings.noise)
    copying = Copies(discriminators, updates, messenger_every, cast(Slots, messenger_optimizer))
    objectives: list[Objective] = [
        Discriminate("local_discriminators", local, penalty=settings.penalty),
        Generate("local_generators", local, quality=quality, samples=settings.samples),
        Discriminate("messengers", hunted, penalty=settings.penalty, copies=copying),
        Generate(GLOBAL_GENERATOR, hunted, quality=quality, samples=settings.samples),
        Discriminate(GLOBAL_DISCRIMINATOR, judged, penalty=settings.penalty),
    ]
    return Recipe(networks, objectives)


def _decide(builder: NetworkBuilder, pairs: int, stacked: bool | str | None) -> bool:
    if not isinstance(stacked, bool) and stacked not in (None, AUTO):
        raise UserError(f"stacked={stacked} received. Expected true, false, or null (auto).")
    if stacked is False:
        return False
    reason = builder.can_stack(pairs)
    if reason is not None and stacked is True:
        raise UserError(f"stacked=true received, but {reason}. Expected task.stacked=false, or auto.")
    return reason is None
