"""Layers that a hook put into a network beside the user's own."""

from __future__ import annotations

import keras

MARK = "_added_by_hook"


def mark_added(layer: keras.layers.Layer, hook: str) -> None:
    """Mark a layer and all layers inside it as a hook's own.

    Hooks that choose among kernel layers (`is_kernel_layer`) leave marked ones alone: a pattern such as "*" means the
    layers of the network that the user gave. The mark is of this process; it is not saved with a model.

    Args:
        layer: built.
        hook: name of the hook that adds it.
    """
    for each in layer._flatten_layers():
        setattr(each, MARK, hook)


def is_added(layer: keras.layers.Layer) -> bool:
    """Return whether a hook put this layer into the network.

    Args:
        layer: any Keras layer.
    """
    return hasattr(layer, MARK)
