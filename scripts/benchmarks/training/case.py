"""The work of `what=training`: what is trained, and the pictures that all contenders train on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hookline.scripts.benchmarks.contender import Settings

if TYPE_CHECKING:
    import numpy as np

CLASSES = 10
LEARNING_RATE = 1e-3
TOTAL = 10**6
"""Steps of a run, and epochs without an evaluation: more than are ever made here."""
PRUNED, PRUNED_AT, MASKS_EVERY, POWER = 0.9, TOTAL // 2, 100, 3
"""Of the pruning: final sparsity, the step of it, steps between updates of the masks, power of the polynomial."""
GENERATED = 10_000
"""Images for training, where there is no file of that size of image."""
HELD_OUT = 1_000
DIGITS, COLOURED = (28, 28, 1), (32, 32, 3)
KEYS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class Case:
    """Describe one work.

    Attributes:
        name: `case=` of the command line.
        model: of `configs/model`, or of the folder beside this file.
        batch_size: images per step.
        images: height, width and channels.
        many: `steps_per_execution` of Keras when it runs several steps at once: enough that more gain nothing.
    """

    name: str
    model: str
    batch_size: int = 100
    images: tuple[int, int, int] = DIGITS
    many: int = 20

    @property
    def loss_steps(self) -> int:
        """Return the steps after which the loss is noted: the same for all, and whole executions."""
        return 4 * self.many


LENET_300_100 = Case("lenet_300_100", "lenet_300_100", many=100)
LENET_5 = Case("lenet_5", "lenet_5")
CNN = Case("cnn", "four_convolutions", images=COLOURED, many=5)
BNN = Case("bnn", "larq_tutorial_cnn", batch_size=64)
PRUNING = Case("pruning", "lenet_5")
HOOKS = Case("hooks", "lenet_5")
HOST_HOOKS = Case("host_hooks", "lenet_300_100")


def pixels(settings: Settings, shape: tuple[int, int, int]) -> dict[str, np.ndarray]:
    """Return images [n, height, width, channels] uint8 and labels [n] int64 for training and for the test, by `KEYS`.

    They come from the file that the command line names, if it holds images of this shape. Else they are generated: one
    noisy pattern per class, so that there is something to learn.
    """
    import numpy as np

    from hookline.recipes.data.array_files import read_npz

    if settings.data:
        arrays = read_npz(settings.data, KEYS)
        images = arrays["x_train"]
        if images.shape[1:] in (shape, shape[:2] if shape[2] == 1 else shape):
            reshaped = {key: arrays[key].reshape(-1, *shape) for key in KEYS if key.startswith("x")}
            return reshaped | {key: arrays[key].reshape(-1).astype(np.int64) for key in KEYS if key.startswith("y")}
    generator = np.random.default_rng(0)
    patterns = generator.integers(0, 128, (CLASSES, *shape), np.uint8)
    found = {}
    for part, count in (("train", GENERATED), ("test", HELD_OUT)):
        labels = generator.integers(0, CLASSES, count)
        found[f"x_{part}"] = patterns[labels] + generator.integers(0, 128, (count, *shape), np.uint8)
        found[f"y_{part}"] = labels.astype(np.int64)
    return found


def examples(settings: Settings, shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the images for training, float32 in [-1, 1], and their labels: what other frameworks are given."""
    arrays = pixels(settings, shape)
    return arrays["x_train"].astype("float32") * (2.0 / 255) - 1.0, arrays["y_train"]
