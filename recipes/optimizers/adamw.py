"""Adam with decoupled weight decay, by a fused kernel."""

from __future__ import annotations

import keras

from recipes.optimizers.adam import Adam


@keras.saving.register_keras_serializable(package="hookline")
class AdamW(Adam, keras.optimizers.AdamW):
    """Do what `keras.optimizers.AdamW` does: its arguments, its variables, its formulas, with the kernel of `Adam`."""
