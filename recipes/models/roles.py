"""What the two networks of a GAN are called when a model is built for one of them."""

from __future__ import annotations

from trainer.errors import UserError
from trainer.input.checks import is_whole_number

GENERATOR, DISCRIMINATOR = "generator", "discriminator"


def check_role(model: str, role: str | None, latent_size: int | None) -> int:
    """Return the size of a generator's inputs, 0 for a discriminator.

    Args:
        model: what the model is called, for messages.
        role: "generator" or "discriminator", as a recipe gives it.
        latent_size: numbers of one input of a generator.

    Raises:
        UserError: the recipe gives no role.
    """
    if role not in (GENERATOR, DISCRIMINATOR):
        raise UserError(
            f"model={model} received, which is a generator and a discriminator. Expected recipe=gan or recipe=sgan "
            "with it, or a model with one output for each class, such as model=mlp."
        )
    if role == DISCRIMINATOR:
        return 0
    if latent_size is None or not is_whole_number(latent_size) or latent_size < 1:
        raise UserError(f"latent_size={latent_size} received. Expected a whole number of at least 1.")
    return latent_size


def is_image(shape: tuple[int, ...]) -> bool:
    """Return whether one input is an image: [height, width, channels], in [-1, 1]."""
    return len(shape) == 3
