from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.input.augment import Augment, Augmentation
from hookline.trainer.input.order import example_seeds
from hookline.trainer.objective import Batch


@pytest.fixture
def change() -> Callable[..., Batch]:
    """Return a function that applies one augmentation to named arrays and returns named arrays."""

    def apply(augment: Augment, *, step: int = 0, preparation=None, **entries: np.ndarray) -> dict[str, np.ndarray]:
        augment.name = "mine"
        count = len(entries["inputs"])
        batch = {"targets": np.arange(count) % 3, "index": np.arange(count), **entries}
        batch = {name: tf.constant(array) for name, array in batch.items()}
        augmentation = Augmentation([augment], classes=3, preparation=preparation)
        augmentation.check(batch)
        seeds = example_seeds(0, tf.constant(step, tf.int64), tf.range(count, dtype=tf.int64))
        return {name: tensor.numpy() for name, tensor in augmentation(batch, seeds).items()}

    return apply


@pytest.fixture
def numbered() -> Callable[..., np.ndarray]:
    """Return a function that makes equal images in which every pixel has a different value, counted from 1."""

    def make(count: int, height: int, width: int, channels: int = 1) -> np.ndarray:
        image = np.arange(1, height * width * channels + 1, dtype=np.float32).reshape(height, width, channels)
        return np.repeat(image[None], count, axis=0)

    return make
