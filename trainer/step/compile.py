"""Whether XLA compiles the step."""

from __future__ import annotations

from collections.abc import Iterable

import keras
import tensorflow as tf

from trainer.errors import UserError
from trainer.hook import GraphHook
from trainer.network import Network

CONVOLUTIONS = "Conv"


def use_xla(mode: str, networks: Iterable[Network], hooks: Iterable[GraphHook]) -> bool:
    """Return whether to compile the step with XLA.

    "auto" compiles on a GPU; on a CPU it compiles dense models only, since XLA:CPU convolutions were measured up to
    100 times slower than TensorFlow's own. A hook that XLA cannot compile keeps it off.

    Args:
        mode: "auto", "on" or "off".
        networks: that the step runs.
        hooks: that the step traces.

    Raises:
        UserError: "on" beside a hook that XLA cannot compile.
    """
    blocking = [hook.name for hook in hooks if not hook.supports_xla]
    if mode == "on" and blocking:
        raise UserError(
            f"trainer.compile=on received, but XLA cannot compile {', '.join(blocking)}. Use trainer.compile=auto."
        )
    if mode != "auto" or blocking:
        return mode == "on"
    if tf.config.list_physical_devices("GPU"):
        return True
    return all(_is_dense(network.model) for network in networks)


def _is_dense(model: keras.Model) -> bool:
    """Return whether a model multiplies by Dense layers alone."""
    layers = model._flatten_layers(include_self=False)
    return not any(CONVOLUTIONS in type(layer).__name__ or "RNN" in type(layer).__name__ for layer in layers)
