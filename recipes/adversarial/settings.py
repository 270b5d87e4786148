"""The settings that recipes with generators and discriminators share, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from recipes.adversarial.gradient_penalty import KINDS as PENALTIES
from recipes.adversarial.gradient_penalty import Penalty
from recipes.adversarial.losses import LOSSES, AdversarialLoss
from recipes.adversarial.noise import KINDS as NOISES
from recipes.adversarial.noise import Noise
from trainer.errors import UserError, unknown_name
from trainer.input.checks import is_whole_number

AUTO = "auto"


@dataclass(frozen=True)
class Settings:
    """Hold what networks play for.

    Attributes:
        loss: of discriminators and generators.
        penalty: of the discriminators' slope; None for none.
        noise: what generators start from.
        updates: of the discriminators in a step.
        discriminator_learning_rate: None for the optimizer's own.
        samples: that an evaluation judges, of each generator.
    """

    loss: AdversarialLoss
    penalty: Penalty | None
    noise: Noise
    updates: int
    discriminator_learning_rate: float | None
    samples: int


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
    """Return the settings of a recipe's arguments of the same names.

    Raises:
        UserError: a value out of range, or a Wasserstein loss without a gradient penalty.
    """
    if loss not in LOSSES:
        raise unknown_name("loss", loss, LOSSES)
    if noise not in NOISES:
        raise unknown_name("noise", noise, NOISES)
    check_count("discriminator_updates", discriminator_updates, 1)
    check_count("latent_size", latent_size, 1)
    check_count("samples", samples, 2)
    rate = discriminator_learning_rate
    if rate is not None and not 0.0 < rate < math.inf:
        raise UserError(
            f"discriminator_learning_rate={rate} received. Expected a number above 0, such as 0.001; null is the "
            "optimizer's own rate."
        )
    chosen = LOSSES[loss]
    slope = _penalty(loss, gradient_penalty, penalty)
    return Settings(chosen, slope, Noise(latent_size, noise), discriminator_updates, rate, samples)


def check_count(name: str, value: Any, least: int) -> int:
    """Return a whole number, or raise a UserError.

    Args:
        name: of the setting.
        value: what the user gave.
        least: the smallest number allowed.
    """
    if not is_whole_number(value) or value < least:
        raise UserError(f"{name}={value} received. Expected a whole number of at least {least}.")
    return int(value)


def _penalty(loss: str, weight: float, kind: str) -> Penalty | None:
    if kind not in (AUTO, *PENALTIES):
        raise unknown_name("penalty", kind, (AUTO, *PENALTIES))
    if not 0.0 <= weight < math.inf:
        raise UserError(f"gradient_penalty={weight} received. Expected a number of 0 or more; 0 is no penalty.")
    if not weight:
        if LOSSES[loss].needs_penalty:
            raise UserError(
                f"gradient_penalty=0 received with loss={loss}, whose discriminator is unbounded without one. Expected "
                "a number above 0, such as 10."
            )
        return None
    if kind == AUTO:
        kind = "two_sided" if LOSSES[loss].needs_penalty else "r1"
    return Penalty(kind, float(weight))
