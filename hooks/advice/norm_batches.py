"""Batch norm over few examples: the statistics that it divides by are mostly noise."""

from __future__ import annotations

import math
from collections.abc import Mapping

import keras

FEW = 8
"""Wu and He 2018, "Group Normalization", table 2: ResNet-50 errs on 23.6 % of ImageNet with 32 images a replica, on
24.8 % with 8, on 27.3 % with 4, on 34.7 % with 2."""


def norm_batch_advice(
    models: Mapping[str, keras.Model], *, batch_size: int, replicas: int, micro_batches: int, synchronized: bool
) -> str | None:
    """Return a line on batch norm layers that see few examples at a time; None where there are none.

    Args:
        models: by name of their network.
        batch_size: examples a step.
        replicas: that share them.
        micro_batches: in which a replica computes its part.
        synchronized: whether batch norm sees the parts of all replicas.
    """
    parts = micro_batches * (1 if synchronized else replicas)
    seen = batch_size // parts
    layers = [
        layer.name
        for model in models.values()
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
    ]
    if not layers or seen >= FEW:
        return None
    wrong = "nothing but that example" if seen < 2 else f"a variance that is off by about {_error(seen)}"
    remedies = ["trainer.accumulation_steps=1"] if micro_batches > 1 else []
    remedies += ["+hooks=synchronized_batch_norm"] if replicas > 1 and not synchronized else []
    divisor = replicas * micro_batches  # of every batch size
    remedies.append(f"trainer.batch_size={math.ceil(2 * FEW * parts / divisor) * divisor}")
    return (
        f"{len(layers)} batch norm layers, such as '{layers[0]}', see {seen} example{'s' * (seen != 1)} at a time and "
        f"normalize by {wrong}. Set {' or '.join(remedies)}."
    )


def _error(examples: int) -> str:
    """Return the relative standard error of the variance of so many normal values."""
    return f"{100 * math.sqrt(2.0 / (examples - 1)):.0f} %"
