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

from hookline.recipes.adversarial.groups import Copies, Group, NetworkBuilder
from hookline.recipes.adversarial.objectives import Discriminate, Game, Generate
from hookline.recipes.adversarial.sample_quality import Quality, quality_for
from hookline.recipes.adversarial.settings import AUTO, Settings, check_count, check_settings
from hookline.recipes.models.roles import DISCRIMINATOR, GENERATOR
from hookline.trainer.deferred import prechecked
from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.network import Network
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

    Args:
        parts: data and builders; the model is one with roles, such as gan_mlp or dcgan.
        pairs: local pairs, at least 2. `trainer.batch_size` is divided among them.
        stacked: whether the networks of all pairs are built as one, with the pairs along the first axis of each
            weight: True, False, or None or "auto", which stacks them where the model and the optimizer allow it.
        messenger_every: steps from one copy of the local discriminators to the next; in between, the messengers play
            the global generator as any discriminators do. With few steps they forget too soon what they have learned of
            it, and the global generator loses modes; with 1 it collapses to the one point that they score highest.
        messenger_optimizer: what happens to a messenger's optimizer when it becomes a copy: "copy" (that of the local
            discriminator), "reset" (a new one) or "keep" (its own).
        loss: this and what follows are as for `hookline.recipes.gan.gan`.
        gradient_penalty: of all discriminators.
        penalty: where the slope is held.
        discriminator_updates: of the local discriminators.
        discriminator_learning_rate: of all discriminators.
        latent_size: of all generators.
        noise: of all generators.
        samples: of each generator.
        classifier: for images.

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
    check_count("pairs", pairs, 2)
    check_count("messenger_every", messenger_every, 1)
    if messenger_optimizer not in MESSENGER_OPTIMIZERS:
        raise unknown_name("messenger_optimizer", messenger_optimizer, MESSENGER_OPTIMIZERS)
    quality = quality_for(parts.data, classifier, parts.plugins)
    players = _Players(NetworkBuilder(parts, settings), settings, pairs, stacked)
    copies = Copies(players.discriminators, settings.updates, messenger_every, cast(Slots, messenger_optimizer))
    return Recipe(players.networks, _objectives(players, settings, copies, quality))


def _objectives(players: _Players, settings: Settings, copies: Copies, quality: Quality | None) -> list[Objective]:
    """Return the objectives of a step, in order."""
    local, hunted, judged = players.games()
    return [
        Discriminate("local_discriminators", local, penalty=settings.penalty),
        Generate("local_generators", local, quality=quality, samples=settings.samples),
        Discriminate("messengers", hunted, penalty=settings.penalty, copies=copies),
        Generate(GLOBAL_GENERATOR, hunted, quality=quality, samples=settings.samples),
        Discriminate(GLOBAL_DISCRIMINATOR, judged, penalty=settings.penalty),
    ]


class _Players:
    """Build the networks, and say who plays whom.

    Attributes:
        networks: all of them.
        discriminators: the local ones.
    """

    def __init__(self, builder: NetworkBuilder, settings: Settings, pairs: int, stacked: bool | str | None) -> None:
        self._settings = settings
        self._stacked = _decide(builder, pairs, stacked)
        self.networks: list[Network] = []
        self._generators = self._group(builder, GENERATOR, GENERATOR, pairs, 1)
        self.discriminators = self._group(builder, DISCRIMINATOR, DISCRIMINATOR, pairs, settings.updates)
        # Messengers have the schedule of the networks whose optimizers they copy.
        self._messengers = self._group(builder, DISCRIMINATOR, "messenger", pairs, settings.updates)
        self.networks.append(builder.build(GENERATOR, GLOBAL_GENERATOR))
        self.networks.append(builder.build(DISCRIMINATOR, GLOBAL_DISCRIMINATOR))

    def _group(self, builder: NetworkBuilder, role: str, name: str, pairs: int, updates: int) -> Group:
        group, networks = builder.group(role, name, pairs, stacked=self._stacked, updates=updates)
        self.networks += networks
        return group

    def games(self) -> tuple[Game, Game, Game]:
        """Return the pairs' games, that of the global generator, and that of the global discriminator."""
        loss, noise, updates = self._settings.loss, self._settings.noise, self._settings.updates
        generator, discriminator = Group((GLOBAL_GENERATOR,), 1), Group((GLOBAL_DISCRIMINATOR,), 1)
        return (
            Game(self._generators, self.discriminators, loss, noise, updates),
            Game(generator, self._messengers, loss, noise),
            Game(self._generators, discriminator, loss, noise),
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
