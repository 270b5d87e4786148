"""The sheet of training examples: what is where on it."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from trainer.input.augment import Augment, Augmentation
from trainer.input.batches import TrainingBatches
from trainer.input.data import Split
from trainer.input.draws import uniform
from trainer.input.source import ArraySource
from trainer.run.training_sheet import DRAWS, GAP, LARGEST, ROWS, SMALLEST, training_sheet


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


def tiles(sheet: np.ndarray, size: int, *, apart: bool) -> np.ndarray:
    """Return the value in the middle of each tile, [rows, columns]."""
    rows = np.arange(GAP + size // 2, sheet.shape[0], size + GAP)
    columns = np.arange(GAP + size // 2, sheet.shape[1], size + GAP)
    if apart:
        columns = np.concatenate([columns[:1], columns[1:] + 3 * GAP])
        columns = columns[columns < sheet.shape[1]]
    return sheet[rows][:, columns, 0]


def test_without_augmentation_it_shows_the_first_batch():
    training = batches(shades(200), batch_size=40)
    sheet = training_sheet(training)
    size = 3 * 16
    assert sheet.dtype == np.float32
    assert sheet.shape == (4 * (size + GAP) + GAP, 9 * (size + GAP) + GAP, 1)
    shown = training.batch(tf.constant(0, tf.int64))["inputs"][:36, 0, 0, 0].numpy()
    np.testing.assert_allclose(tiles(sheet, size, apart=False), (shown.reshape(4, 9) + 1) / 2, atol=1e-6)


def test_with_augmentation_a_row_is_an_example_and_its_draws():
    training = batches(shades(200), batch_size=40, augments=(Lighter(),))
    sheet = training_sheet(training)
    shown = tiles(sheet, 48, apart=True)
    assert shown.shape == (ROWS, DRAWS + 1)
    rows = training.indices(tf.constant(0, tf.int64))[:ROWS]
    np.testing.assert_allclose(shown[:, 0], (training.read(rows)["inputs"][:, 0, 0, 0] + 1) / 2, atol=1e-6)
    for draw in range(DRAWS):
        drawn = training.drawn(rows, tf.constant(draw, tf.int64))["inputs"][:, 0, 0, 0]
        np.testing.assert_allclose(shown[:, draw + 1], (drawn + 1) / 2, atol=1e-6)


def test_the_first_of_them_are_what_the_first_step_trains_on():
    training = batches(shades(200), batch_size=40, augments=(Lighter(),))
    first = training.batch(tf.constant(0, tf.int64))["inputs"][:ROWS, 0, 0, 0]
    np.testing.assert_allclose(tiles(training_sheet(training), 48, apart=True)[:, 1], (first + 1) / 2, atol=1e-6)


@pytest.mark.parametrize(("side", "shown"), [(5, 50), (SMALLEST, SMALLEST), (100, 100), (3 * LARGEST, LARGEST)])
def test_images_are_enlarged_or_thinned_out(side, shown):
    sheet = training_sheet(batches(shades(2, side, 3), batch_size=2))
    assert sheet.shape == (shown + 2 * GAP, 2 * shown + 3 * GAP, 3)


def test_values_beyond_the_range_are_cut_off_or_of_other_data_scaled():
    loud = training_sheet(batches(np.full((2, 4, 4, 1), 0.9), batch_size=2, augments=(Lighter(),)))
    assert loud.max() == 1.0
    wide = training_sheet(batches(shades(2) * 255.0, batch_size=2))
    assert wide.min() == 0.0
    assert wide.max() == 1.0
    np.testing.assert_allclose(sorted(tiles(wide, 48, apart=False)[0]), [0.0, 255 / 256], atol=1e-6)


@pytest.mark.parametrize("shape", [(6, 5), (6, 4, 4, 2)])
@pytest.mark.parametrize("augments", [(), (Lighter(),)])
def test_what_is_no_image_has_no_sheet(shape, augments):
    if augments and len(shape) == 2:
        augments = ()
    assert training_sheet(batches(np.zeros(shape), batch_size=3, augments=augments)) is None
