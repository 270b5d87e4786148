"""Whether a finished run evaluates with the averages that the hook ema kept, or with the weights themselves."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

EMA = "hookline.hooks.ema.Ema"


def keeps_averages(config: Mapping[str, Any], network: str) -> bool:
    """Return whether a run has the hook ema for a network."""
    return any(_is_ema(node, network) for node in config["hooks"].values())


def evaluate_averages(config: Mapping[str, Any], network: str, *, evaluate: bool) -> dict[str, Any]:
    """Return the config of a run with or without averaged weights in evaluations; the same one without averages."""
    hooks = {
        name: {**node, "evaluate": evaluate} if _is_ema(node, network) else node
        for name, node in config["hooks"].items()
    }
    return {**config, "hooks": hooks}


def _is_ema(node: Any, network: str) -> bool:
    return (
        isinstance(node, Mapping) and node.get("_target_") == EMA and fnmatchcase(network, node.get("network", "model"))
    )
