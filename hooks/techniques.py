"""Which hooks of a run are its technique: all except those that only watch and those that every run has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf

from hookline.hooks import CONFIG_DIRECTORY

MONITORS = "hookline.hooks.monitors."


def technique_hooks(hooks: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the technique hooks of a config, by name."""
    everywhere = OmegaConf.load(CONFIG_DIRECTORY / "default.yaml").defaults
    return {
        name: node
        for name, node in hooks.items()
        if isinstance(node, Mapping)
        and name not in everywhere
        and not str(node.get("_target_", "")).startswith(MONITORS)
    }
