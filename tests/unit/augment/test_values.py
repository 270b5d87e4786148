"""What changes values in their places: noise, color, cutout."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recipes.augment.color import GREY, Color
from recipes.augment.cutout import Cutout
from recipes.augment.noise import Noise
from trainer.errors import UserError

PROPERTY = settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
OFF = {"brightness": 0.0, "contrast": 0.0}


def pictures(count, channels=3, low=-1.0, high=1.0):
    drawn = np.random.default_rng(0).uniform(low, high, (count, 6, 5, channels))
    return drawn.astype(np.float32)


def in_unit(images):
    return (images.astype(np.float64) + 1.0) / 2.0


@pytest.mark.parametrize("shape", [(6, 5, 3), (7,)])
def test_noise_is_normal_and_independent(shape, change):
    inputs = np.full([2_000, *shape], 0.25, np.float32)
    added = (change(Noise(stddev=0.3), inputs=inputs)["inputs"] - inputs).reshape(2_000, -1)
    assert added.mean() == pytest.approx(0.0, abs=0.01)
    assert added.std() == pytest.approx(0.3, rel=0.03)
    assert np.abs(np.corrcoef(added.T) - np.eye(added.shape[1])).max() < 0.12


def test_brightness_is_one_factor_an_image(change):
    images = pictures(500, high=0.2)
    changed = in_unit(change(Color(**OFF | {"brightness": 0.3}), inputs=images)["inputs"])
    factors = changed / in_unit(images)
    per_image = factors.reshape(500, -1)
    np.testing.assert_allclose(per_image, np.broadcast_to(per_image[:, :1], per_image.shape), rtol=1e-3)
    assert 0.7 - 1e-3 <= per_image.min() < 0.72
    assert 1.28 < per_image.max() <= 1.3 + 1e-3
    assert per_image[:, 0].mean() == pytest.approx(1.0, abs=0.03)


def test_contrast_keeps_the_mean_grey(change):
    images = pictures(200, low=-0.3, high=0.3)
    changed = in_unit(change(Color(**OFF | {"contrast": 0.4}), inputs=images)["inputs"])
    before, after = ((each @ np.array(GREY)).mean((1, 2)) for each in (in_unit(images), changed))
    np.testing.assert_allclose(after, before, rtol=1e-4)
    stretched = changed.reshape(200, -1).std(1) / in_unit(images).reshape(200, -1).std(1)
    assert 0.6 - 1e-3 <= stretched.min() < 0.63
    assert 1.37 < stretched.max() <= 1.4 + 1e-3


def test_saturation_keeps_the_grey_of_every_pixel(change):
    images = pictures(100, low=-0.3, high=0.3)
    changed = in_unit(change(Color(**OFF | {"saturation": 0.5}), inputs=images)["inputs"])
    np.testing.assert_allclose(changed @ np.array(GREY), in_unit(images) @ np.array(GREY), rtol=1e-3)
    spread = np.ptp(changed, axis=-1) / np.ptp(in_unit(images), axis=-1)
    assert 0.49 < spread.min() < 0.55
    assert 1.45 < spread.max() < 1.51


def test_hue_turns_alone(change):
    images = pictures(40, low=-0.8, high=0.8)
    changed = in_unit(change(Color(**OFF | {"hue": 0.1}), inputs=images)["inputs"])
    turns = []
    for before, after in zip(in_unit(images), changed, strict=True):
        old = np.array([colorsys.rgb_to_hsv(*pixel) for pixel in before.reshape(-1, 3)])
        new = np.array([colorsys.rgb_to_hsv(*pixel) for pixel in np.clip(after, 0, 1).reshape(-1, 3)])
        np.testing.assert_allclose(new[:, 1:], old[:, 1:], atol=2e-3)
        clear = old[:, 1] > 0.3
        turn = (new[clear, 0] - old[clear, 0] + 0.5) % 1.0 - 0.5
        np.testing.assert_allclose(turn, turn[0], atol=3e-3)
        turns.append(turn[0])
    assert 0.06 < max(turns) <= 0.103
    assert -0.103 <= min(turns) < -0.06


@PROPERTY
@given(
    options=st.fixed_dictionaries(
        {name: st.floats(0.01, 1.0) for name in ("brightness", "contrast", "saturation")} | {"hue": st.floats(0.0, 0.5)}
    )
)
def test_colors_stay_in_their_range(options, change):
    changed = change(Color(**options), inputs=pictures(16))["inputs"]
    assert changed.min() >= -1.0
    assert changed.max() <= 1.0
    assert np.isfinite(changed).all()


def test_grey_images_have_brightness_and_contrast(change):
    images = pictures(4, channels=1)
    assert not np.allclose(change(Color(), inputs=images)["inputs"], images, atol=1e-3)


@PROPERTY
@given(height=st.integers(2, 9), width=st.integers(2, 9), share=st.floats(0.3, 1.0), step=st.integers(0, 99))
def test_cutout_covers_one_rectangle_and_leaves_the_rest(height, width, share, step, change, numbered):
    images = numbered(10, height, width, 2)
    changed = change(Cutout(share=share, fill=-5.0), inputs=images, step=step)["inputs"]
    for before, after in zip(images, changed, strict=True):
        covered = (after == -5.0).all(-1)
        rows, columns = covered.any(1), covered.any(0)
        np.testing.assert_array_equal(covered, rows[:, None] & columns[None, :])
        assert 1 <= rows.sum() <= round(share * height)
        assert 1 <= columns.sum() <= round(share * width)
        np.testing.assert_array_equal(after[~covered], before[~covered])


def test_cutout_is_centered_on_every_pixel_equally_often(change):
    changed = change(Cutout(share=0.2), inputs=np.ones([5_000, 5, 5, 1], np.float32))["inputs"]
    counts = (changed == 0.0).sum(0)[..., 0]  # a fifth of five: the pixel alone
    assert counts.sum() == 5_000
    assert np.abs(counts - 200).max() < 5 * np.sqrt(200)


def test_cutout_covers_as_many_as_its_probability_says(change):
    changed = change(Cutout(probability=0.25), inputs=np.ones([4_000, 6, 6, 1], np.float32))["inputs"]
    assert (changed == 0.0).any((1, 2, 3)).mean() == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Noise(stddev=0), "stddev=0 received. Expected a number above 0."),
        (lambda: Noise(stddev=float("inf")), "stddev=inf received"),
        (lambda: Color(brightness=1.5), "brightness=1.5 received. Expected a number in [0, 1]."),
        (lambda: Color(contrast="a"), "contrast=a received"),
        (lambda: Color(hue=0.6), "hue=0.6 received. Expected a number in [0, 0.5]."),
        (lambda: Color(**OFF), "are all 0. Expected at least one above 0."),
        (lambda: Cutout(share=0), "share=0 received"),
        (lambda: Cutout(fill=None), "fill=None received"),
        (lambda: Cutout(probability=0.0), "probability=0.0 received"),
    ],
)
def test_options_out_of_range_are_one_line(make, message):
    with pytest.raises(UserError) as caught:
        make()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("augment", "inputs", "message"),
    [
        (Color(hue=0.1), pictures(2, channels=1), "saturation and hue need 3 channels, and the images have 1"),
        (Color(saturation=0.1), pictures(2, channels=2), "and the images have 2. Set both to 0."),
        (Color(), 2.0 * pictures(2), r"the images go from -1\.9\d+ to 1\.9\d+. Expected values in \[-1, 1\]"),
        (Cutout(share=0.05), pictures(2), "less than half a pixel of 5, and covers nothing. Expected at least 0.2."),
        (Noise(), np.zeros([2, 3], np.int32), "the inputs are int32. Expected floating point."),
    ],
)
def test_data_that_does_not_suit_is_one_line(augment, inputs, message, change):
    with pytest.raises(UserError, match=f"augment.mine: .*{message}"):
        change(augment, inputs=inputs)
