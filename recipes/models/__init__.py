"""Networks that recipes train: plain Keras models. `configs/model/` explains their arguments."""

from __future__ import annotations

from collections.abc import Sequence

from hookline.trainer.errors import UserError

GENERATOR, DISCRIMINATOR = "generator", "discriminator"


def check_role(model: str, role: str | None, latent_size: int | None) -> int:
    """Return the latent size of a generator, 0 for a discriminator; refuse any other role."""
    if role not in (GENERATOR, DISCRIMINATOR):
        raise UserError(
            f"model={model} builds a generator and a discriminator. Expected recipe=gan or recipe=sgan, "
            "or a model with one output for each class, such as model=mlp."
        )
    return 0 if role == DISCRIMINATOR else latent_size or 0


def is_image(shape: tuple[int, ...]) -> bool:
    """Return whether inputs of a shape are images: [height, width, channels], taken to lie in [-1, 1]."""
    return len(shape) == 3


def check_images(model: str, input_shape: Sequence[int], smallest: int, instead: str = "model=mlp") -> tuple[int, ...]:
    """Return the shape of one image; refuse images of fewer than `smallest` pixels a side."""
    shape = tuple(input_shape)
    if not is_image(shape) or min(shape[:2]) < smallest:
        raise UserError(
            f"{model} got inputs of shape {shape}. Expected images [height, width, channels] of at least {smallest} "
            f"pixels a side. Use {instead}, or larger images."
        )
    return shape
