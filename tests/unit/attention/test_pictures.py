"""The sheet: one column an example; rows of inputs, heat maps and draws."""

from __future__ import annotations

import numpy as np
import pytest

from hooks.attention.pictures import GAP, attention_sheet, heat_colors

INPUTS = np.random.default_rng(0).normal(size=(3, 6, 4, 1))
ATTENTION = np.random.default_rng(1).uniform(size=(3, 3, 2))
DRAWS = (ATTENTION > 0.5).astype(np.float32)
SCALE = 24  # of a side of 4 pixels to 96


def cell(sheet: np.ndarray, row: int, column: int) -> np.ndarray:
    height, width = 6 * SCALE, 4 * SCALE
    top, left = row * (height + GAP), column * (width + GAP)
    return sheet[top : top + height, left : left + width]


def test_rows_are_input_heat_map_and_draw_with_a_column_for_each_example():
    sheet = attention_sheet(INPUTS, ATTENTION, DRAWS)
    assert sheet.shape == (3 * 6 * SCALE + 2 * GAP, 3 * 4 * SCALE + 2 * GAP, 3)
    assert sheet.dtype == np.float32
    grey = (INPUTS - INPUTS.min()) / (INPUTS.max() - INPUTS.min())
    for example in range(3):
        image, heat, draw = (cell(sheet, row, example) for row in range(3))
        np.testing.assert_allclose(image[::SCALE, ::SCALE], np.repeat(grey[example], 3, axis=-1), atol=1e-6)
        np.testing.assert_array_equal(draw[:: 2 * SCALE, :: 2 * SCALE, 0], DRAWS[example])
        seen = (2 * heat - image)[:: 2 * SCALE, :: 2 * SCALE]
        np.testing.assert_allclose(seen, heat_colors(ATTENTION[example]), atol=1e-6)


def test_pixels_are_made_large_without_blurring():
    sheet = cell(attention_sheet(INPUTS, ATTENTION, None), 0, 1)
    blocks = sheet.reshape(6, SCALE, 4, SCALE, 3)
    assert np.ptp(blocks, axis=(1, 3)).max() == 0.0


def test_without_draws_there_are_two_rows():
    assert attention_sheet(INPUTS, ATTENTION, None).shape[0] == 2 * 6 * SCALE + GAP


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_any_number_of_channels_and_any_range_gives_colors_in_range(channels: int):
    inputs = np.random.default_rng(2).normal(scale=50.0, size=(2, 5, 7, channels))
    sheet = attention_sheet(inputs, ATTENTION[:2], DRAWS[:2])
    assert sheet.min() >= 0.0
    assert sheet.max() <= 1.0
    colored = np.ptp(cell_of(sheet), axis=-1).max()
    assert (colored > 0.0) == (channels == 3)


def cell_of(sheet: np.ndarray) -> np.ndarray:
    return sheet[:96, :96]


def test_constant_inputs_and_large_images_are_shown_as_they_are():
    sheet = attention_sheet(np.full((1, 200, 100, 3), 7.0), np.ones((1, 10, 5)), None)
    assert sheet.shape == (2 * 200 + GAP, 100, 3)
    assert sheet[:200].max() == 0.0


def test_heat_goes_from_dark_to_bright():
    colors = heat_colors(np.linspace(0.0, 1.0, 20))
    assert (np.diff(colors.sum(axis=-1)) > 0.0).all()
