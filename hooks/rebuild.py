"""A functional model called anew, layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from hookline.trainer.graph import as_functional, is_graph


def call_anew(model: keras.Model, touches: Callable[[Any], bool], call: Callable[..., Any]) -> keras.Model:
    """Return the model in which `call(layer, *args, **kwargs)` takes the place of the call of each layer.

    The layers and variables are the same. Inner models that hold layers which it touches are called anew, too; a model
    that holds none is returned as it is.
    """
    if not is_graph(model) or not any(map(touches, model._flatten_layers())):
        return model

    def clone(layer: Any) -> Any:
        return call_anew(layer, touches, call)

    return keras.models.clone_model(as_functional(model), clone_function=clone, call_function=call)
