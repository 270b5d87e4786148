"""Kernels of a network that a hook leaves as they are although it was given layers="*": how many, and which."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from hooks.added_layers import is_added
from hooks.masking.targets import Target, variable_layers
from trainer.network import Network
from trainer.select import layer_paths

MOST_NAMED = 3


def left_out_weights(network: Network, covered: Collection[str]) -> list[Target]:
    """Return the trainable weights of two axes or more that are not covered. Biases are none of them.

    Args:
        network: built.
        covered: names of variables.
    """
    layers, owners = {"": network.model, **layer_paths(network.model)}, variable_layers(network)
    targets = [Target(name, owners.get(name, ""), each) for name, each in network.trainable_variables.items()]
    return [
        each
        for each in targets
        if each.name not in covered
        and len(each.variable.shape) > 1
        and "bias" not in each.variable.name
        and not is_added(layers[each.layer])
    ]


def left_out_advice(
    network: Network, patterns: str | Sequence[str], covered: Collection[str], *, state: str, reason: str
) -> list[str]:
    """Return one line with the share of entries that "*" leaves out, where it does.

    Args:
        network: built.
        patterns: as the user gave them; layers that are not asked for are not missed.
        covered: names of the variables that the hook would cover.
        state: in which the others stay, such as "dense".
        reason: why, and what helps.
    """
    missed = left_out_weights(network, covered)
    if "*" not in ([patterns] if isinstance(patterns, str) else patterns) or not missed:
        return []
    layers = {"": network.model, **layer_paths(network.model)}
    named = ", ".join(f"{each.name} ({type(layers[each.layer]).__name__})" for each in missed[:MOST_NAMED])
    more = f" and {len(missed) - MOST_NAMED} more" if len(missed) > MOST_NAMED else ""
    entries = sum(each.size for each in missed)
    total = entries + sum(math.prod(network.trainable_variables[name].shape) for name in covered)
    return [f"layers='*' leaves {entries:,} of {total:,} kernel entries {state}: {named}{more}. {reason}"]
