"""Points of the plane in two classes, divided by a line."""

from __future__ import annotations

import numpy as np

from trainer.errors import UserError
from trainer.inference.preparation import Preparation
from trainer.input.checks import is_whole_number
from trainer.input.data import Data, Split
from trainer.input.source import ArraySource
from trainer.input.split import split_indices

CENTER = (1.0, 2.0)
FEWEST = 20


def toy_points(
    *, examples: int = 1000, validation_fraction: float = 0.2, test_fraction: float = 0.2, seed: int = 0
) -> Data:
    """Return normal points around (1, 2) with variance 1; class 1 where the second number exceeds the first by 1/2.

    Args:
        examples: at least 20.
        validation_fraction: share held out for validation, in (0, 1), or a whole number of examples.
        test_fraction: likewise for the test.
        seed: of the points and of the split, 0 or more. It is not the run's seed.

    Returns:
        Data with "inputs" float32 [n, 2] and "targets" int64 [n].

    Raises:
        UserError: a number of examples, fractions or a seed out of range.
    """
    if not is_whole_number(examples) or examples < FEWEST:
        raise UserError(f"Received examples {examples!r}; expected a whole number of at least {FEWEST}.")
    if not is_whole_number(seed) or seed < 0:
        raise UserError(f"Received seed {seed!r}; expected a whole number of at least 0.")
    points = np.random.default_rng(seed).normal(CENTER, size=(examples, 2)).astype(np.float32)
    labels = (points[:, 1] - points[:, 0] > 0.5).astype(np.int64)
    parts = split_indices(examples, {"validation": validation_fraction, "test": test_fraction}, seed, labels)
    source = ArraySource({"inputs": points, "targets": labels}, lambda batch: batch)
    splits = {name: Split(name, source, indices) for name, indices in parts.items()}
    form = Preparation((2,))
    train, validation, test = splits["train"], splits["validation"], splits["test"]
    return Data(
        "toy_points", train=train, validation=validation, test=test, input_shape=(2,), classes=2, preparation=form
    )
