"""Noise: a normal draw on every input."""

from __future__ import annotations

import tensorflow as tf

from recipes.augment.options import check_number
from trainer.errors import UserError
from trainer.input.augment import Augment
from trainer.input.draws import normal
from trainer.objective import Batch


class Noise(Augment):
    """Add independent normal draws to all numbers of the inputs; the result may leave the range of the data."""

    priority = 60

    def __init__(self, *, stddev: float = 0.1) -> None:
        """Check the option.

        Args:
            stddev: standard deviation, above 0, in the unit of the inputs; images go from -1 to 1.

        Raises:
            UserError: the option is out of range.
        """
        self.stddev = check_number("stddev", stddev, above_zero=True)

    def check(self, batch: Batch) -> None:
        if not batch["inputs"].dtype.is_floating:
            raise UserError(f"the inputs are {batch['inputs'].dtype.name}. Expected floating point.")

    def __call__(self, batch: Batch, seeds: tf.Tensor) -> Batch:
        inputs = batch["inputs"]
        drawn = tf.cast(normal(seeds, "noise", inputs.shape[1:].as_list()), inputs.dtype)
        return {**batch, "inputs": inputs + self.stddev * drawn}
