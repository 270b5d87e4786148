"""Input quantizers put before layers of a functional model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from hookline.hooks.quantization.quantizers import Quantizer
from hookline.hooks.rebuild import call_anew


def insert_input_quantizers(model: keras.Model, layers: Mapping[str, keras.Layer], quantizer: Quantizer) -> keras.Model:
    """Return the model with an `InputQuantizer` before each of the layers: the same layers, the same variables.

    Nested models that hold such layers are rebuilt too. A layer that is called several times has one quantizer, which
    is called as often.
    """
    from hookline.hooks.quantization.input_quantizer import InputQuantizer  # a class of Keras: not for options

    before = {
        id(layer): InputQuantizer(quantizer.config, name=f"{layer.name}_input_quantizer", dtype=layer.dtype_policy)
        for layer in layers.values()
    }

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if id(layer) in before:
            quantizer = before[id(layer)]
            if args:
                args = (quantizer(args[0]), *args[1:])
            else:
                kwargs["inputs"] = quantizer(kwargs["inputs"])
        return layer(*args, **kwargs)

    return call_anew(model, lambda layer: id(layer) in before, call)
