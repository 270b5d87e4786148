"""From the config's augmentations by name to what the training batches take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hookline.trainer.config.build import build
from hookline.trainer.errors import UserError
from hookline.trainer.input.augment import Augment


def build_augments(nodes: Mapping[str, Any], plugins: Sequence[str]) -> list[Augment]:
    """Return the augmentations of a config, without those that were removed."""
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
