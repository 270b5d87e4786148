"""The sheet: one column an example; rows of inputs, heat maps and draws."""

from __future__ import annotations

import numpy as np

from hookline.hooks.attention.options import GAP, attention_sheet, heat_colors

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
