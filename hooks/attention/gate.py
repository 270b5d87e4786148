"""The layer that multiplies a feature map by a draw from its attention map."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from hooks.attention.options import EVAL_MODES, MODES
from trainer.ops.bernoulli_through import bernoulli_gate, uniform_numbers
from trainer.replicas.replica import Replica
from trainer.replicas.seeds import common_seed


@keras.saving.register_keras_serializable(package="hookline")
class BernoulliGate(keras.layers.Layer):
    """Multiply features x [batch, height, width, channels] by a mask r made from attention A [batch, height, width, 1].

    One mask an example and position, for all channels; nothing is divided by A. In training, "bernoulli" draws
    r ~ Bernoulli(A), with the gradient passed straight through to A, and "product" takes r = A. In evaluation r is A
    ("expectation"), a draw ("sample") or A >= 1/2 ("threshold"); of "product" it is always A.

    The seed of the draws is a variable of the layer, counted up by each draw: runs repeat and resume exactly. An
    evaluation does not count it up for good: all its batches are drawn with the same noise.

    Returns y = r * x and r itself.
    """

    def __init__(
        self, *, mode: str = "bernoulli", eval_mode: str = "expectation", seed: int | None = None, **options: Any
    ) -> None:
        """Set how the mask is made.

        Args:
            mode: "bernoulli" or "product".
            eval_mode: "expectation", "sample" or "threshold".
            seed: of the draws; None takes one from Keras's global seed, `keras.utils.set_random_seed`.
            **options: those of every Keras layer, such as name and dtype.
        """
        super().__init__(**{**options, "autocast": False})  # A stays in float32 beside features of lower precision
        if mode not in MODES or eval_mode not in EVAL_MODES:
            raise ValueError(f"Expected a mode of {MODES} and an eval_mode of {EVAL_MODES}: {mode}, {eval_mode}.")
        self.mode = mode
        self.eval_mode = eval_mode
        self.seed = seed
        self._replica = Replica()
        if mode == "bernoulli":
            self.seed_generator = keras.random.SeedGenerator(seed)

    def call(self, inputs: list[tf.Tensor], training: bool = False) -> list[tf.Tensor]:
        features, attention = inputs
        if self.mode == "bernoulli" and (training or self.eval_mode == "sample"):
            seed = common_seed(self.seed_generator.next(), self._replica)
            return list(bernoulli_gate(features, attention, seed=seed, uniform=self._uniform))
        mask = attention
        if self.mode == "bernoulli" and self.eval_mode == "threshold":
            mask = tf.cast(attention >= 0.5, attention.dtype)
        return [tf.cast(mask, features.dtype) * features, mask]

    @contextmanager
    def drawing_for(self, replica: Replica) -> Iterator[None]:
        """Draw for a replica's part of the batch inside the block: what it would be within a draw for all of it.

        Args:
            replica: whose forward pass is traced.
        """
        before, self._replica = self._replica, replica
        try:
            yield
        finally:
            self._replica = before

    def _uniform(self, like: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        if self._replica.count == 1:
            return uniform_numbers(like, seed)
        return self._replica.part(lambda shape: tf.random.stateless_uniform(shape, seed), like.shape)

    def compute_output_spec(self, inputs: list[Any], training: bool = False) -> list[Any]:
        """Return what `call` returns, without running it: the shapes and dtypes of the two inputs."""
        return [keras.KerasTensor(tensor.shape, dtype=tensor.dtype) for tensor in inputs]

    def get_config(self) -> dict[str, Any]:
        config = {**super().get_config(), "mode": self.mode, "eval_mode": self.eval_mode, "seed": self.seed}
        config.pop("autocast", None)
        return config
