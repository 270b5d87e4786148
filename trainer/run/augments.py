"""From the config's augmentations by name to what the training batches take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainer.config.build import build
from trainer.errors import UserError
from trainer.input.augment import Augment


def build_augments(nodes: Mapping[str, Any], plugins: Sequence[str]) -> list[Augment]:
    """Return the augmentations of a config, without those that were removed.

    Args:
        nodes: `augment` of the config: a `_target_` and its arguments by name.
        plugins: packages that the user allows beside this project and Keras.

    Raises:
        UserError: a target or an argument that does not exist or does not fit; it begins with the name.
    """
    augments = []
    for name, node in nodes.items():
        if node is not None:
            try:
                augment = build(node, group="augment", kind=Augment, plugins=plugins)
            except UserError as error:
                raise UserError(f"augment.{name}: {error}") from error
            if not isinstance(augment, Augment):
                raise UserError(f"augment.{name} builds a {type(augment).__name__}. Expected an Augment.")
            augment.name = name
            augments.append(augment)
    return augments
