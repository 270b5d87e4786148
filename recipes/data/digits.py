"""Handwritten digits of 8 x 8 pixels, embedded in scikit-learn: no file and no network needed."""

from __future__ import annotations

from recipes.data.digits_file import read_digits
from recipes.data.pixels import centered_pixels, pixel_preparation
from trainer.input.checks import as_pixels, check_examples
from trainer.input.data import Data, Split
from trainer.input.source import ArraySource
from trainer.input.split import split_indices

SHAPE = (8, 8, 1)
CLASSES = 10
PEAK = 16


def digits(*, validation_fraction: float = 0.1, test_fraction: float = 0.2, seed: int = 0) -> Data:
    """Return the 1,797 digits of scikit-learn (Alpaydin & Kaynak, UCI 1998), split by class.

    Args:
        validation_fraction: share held out for validation, in (0, 1), or a whole number of examples.
        test_fraction: likewise for the test.
        seed: of the split, 0 or more. It is not the run's seed, so runs with other seeds compare on one split.

    Returns:
        Data with "inputs" float32 [n, 8, 8, 1] in [-1, 1] and "targets" int64 [n].

    Raises:
        UserError: fractions or seed out of range.
    """
    images, labels = read_digits()
    images = images[..., None]
    check_examples(images, labels, input_shape=SHAPE, classes=CLASSES, where="digits")
    parts = split_indices(len(labels), {"validation": validation_fraction, "test": test_fraction}, seed, labels)
    source = ArraySource({"inputs": as_pixels(images, "digits"), "targets": labels}, centered_pixels(PEAK))
    splits = {name: Split(name, source, indices) for name, indices in parts.items()}
    return Data(
        "digits",
        train=splits["train"],
        validation=splits["validation"],
        test=splits["test"],
        input_shape=SHAPE,
        classes=CLASSES,
        preparation=pixel_preparation(SHAPE, PEAK),
    )
