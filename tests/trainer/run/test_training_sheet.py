"""The sheet of training examples: what is where on it."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from hookline.trainer.input.augment import Augment, Augmentation
from hookline.trainer.input.batches import TrainingBatches
from hookline.trainer.input.data import Split
from hookline.trainer.input.order import uniform
from hookline.trainer.input.source import ArraySource
from hookline.trainer.run.views import DRAWS, ROWS, training_sheet
from hookline.trainer.run.views import PANEL_GAP as GAP


class Lighter(Augment):
    """Add a draw of (0, 0.5) to the whole image."""

    name = "lighter"

    def __call__(self, batch, seeds):
        return {**batch, "inputs": batch["inputs"] + uniform(seeds, "light", [1, 1, 1], high=0.5)}


def batches(inputs: np.ndarray, *, batch_size: int, augments: tuple[Augment, ...] = ()) -> TrainingBatches:
    arrays = {"inputs": inputs.astype(np.float32), "targets": np.zeros(len(inputs), np.int64)}
    split = Split("train", ArraySource(arrays, lambda batch: batch), np.arange(len(inputs), dtype=np.int64))
    augmentation = Augmentation(augments, classes=2) if augments else None
    return TrainingBatches(split, batch_size=batch_size, seed=0, augmentation=augmentation)


def shades(count: int, side: int = 16, channels: int = 1) -> np.ndarray:
    """Return images of one value each, from -1 up to 0."""
    values = np.linspace(-1.0, 0.0, count)
    return np.broadcast_to(values[:, None, None, None], (count, side, side, channels))


def tiles(sheet: np.ndarray, gap: int) -> np.ndarray:
    """Return the value in the middle of each tile, [rows, columns]; there is a gap after the first column."""
    rows = np.arange(GAP + 24, sheet.shape[0], 48 + GAP)
    columns = np.arange(GAP + 24, sheet.shape[1], 48 + GAP)
    columns = np.concatenate([columns[:1], columns[1:] + gap])
    return sheet[rows][:, columns[columns < sheet.shape[1]], 0]


def test_with_augmentation_a_row_is_an_example_and_its_first_draws():
    training = batches(shades(200), batch_size=40, augments=(Lighter(),))
    shown = tiles(training_sheet(training), 3 * GAP)
    assert shown.shape == (ROWS, DRAWS + 1)
    rows = training.indices(tf.constant(0, tf.int64))[:ROWS]
    drawn = [training.drawn(rows, tf.constant(draw, tf.int64)) for draw in range(DRAWS)]
    expected = np.stack([each["inputs"][:, 0, 0, 0] for each in (training.read(rows), *drawn)], axis=1)
    np.testing.assert_allclose(shown, (expected + 1) / 2, atol=1e-6)
    first = training.batch(tf.constant(0, tf.int64))["inputs"][:ROWS, 0, 0, 0]
    np.testing.assert_allclose(shown[:, 1], (first + 1) / 2, atol=1e-6)


def test_values_beyond_the_range_are_cut_off_or_of_other_data_scaled():
    loud = training_sheet(batches(np.full((2, 4, 4, 1), 0.9), batch_size=2, augments=(Lighter(),)))
    wide = training_sheet(batches(shades(2) * 255.0, batch_size=2))
    assert (loud.max(), wide.min(), wide.max()) == (1.0, 0.0, 1.0)
    np.testing.assert_allclose(sorted(tiles(wide, 0)[0]), [0.0, 255 / 256], atol=1e-6)
    for shape in ((6, 5), (6, 4, 4, 2)):  # no images
        assert training_sheet(batches(np.zeros(shape), batch_size=3)) is None
