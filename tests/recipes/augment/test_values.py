"""Augmentations that change values in place: noise, color, cutout."""

import colorsys

import numpy as np
import pytest

from hookline.recipes.augment.color import GRAY, Color, Noise
from hookline.recipes.augment.geometric import Rotate
from hookline.recipes.augment.mixing import Cutout
from hookline.recipes.augment.translation import Shift
from hookline.trainer.input.preparation import Preparation

OFF = {"brightness": 0.0, "contrast": 0.0}


def pictures(count, channels=3, low=-1.0, high=1.0):
    return np.random.default_rng(0).uniform(low, high, (count, 6, 5, channels)).astype(np.float32)


def in_unit(images):
    return (images.astype(np.float64) + 1.0) / 2.0


@pytest.mark.parametrize("shape", [(6, 5, 3), (7,)])
def test_noise_is_normal_and_independent(shape, change):
    inputs = np.full([2_000, *shape], 0.25, np.float32)
    added = (change(Noise(stddev=0.3), inputs=inputs)["inputs"] - inputs).reshape(2_000, -1)
    assert added.mean() == pytest.approx(0.0, abs=0.01)
    assert added.std() == pytest.approx(0.3, rel=0.03)
    assert np.abs(np.corrcoef(added.T) - np.eye(added.shape[1])).max() < 0.12


def test_brightness_is_one_factor_per_image(change):
    images = pictures(500, high=0.2)
    changed = in_unit(change(Color(**OFF | {"brightness": 0.3}), inputs=images)["inputs"])
    factors = changed / in_unit(images)
    per_image = factors.reshape(500, -1)
    np.testing.assert_allclose(per_image, np.broadcast_to(per_image[:, :1], per_image.shape), rtol=1e-3)
    assert 0.7 - 1e-3 <= per_image.min() < 0.72
    assert 1.28 < per_image.max() <= 1.3 + 1e-3
    assert per_image[:, 0].mean() == pytest.approx(1.0, abs=0.03)


def test_contrast_keeps_the_mean_gray(change):
    images = pictures(200, low=-0.3, high=0.3)
    changed = in_unit(change(Color(**OFF | {"contrast": 0.4}), inputs=images)["inputs"])
    before, after = ((each @ np.array(GRAY)).mean((1, 2)) for each in (in_unit(images), changed))
    np.testing.assert_allclose(after, before, rtol=1e-4)
    stretched = changed.reshape(200, -1).std(1) / in_unit(images).reshape(200, -1).std(1)
    assert 0.6 - 1e-3 <= stretched.min() < 0.63
    assert 1.37 < stretched.max() <= 1.4 + 1e-3


def test_saturation_keeps_the_gray_of_every_pixel(change):
    images = pictures(100, low=-0.3, high=0.3)
    changed = in_unit(change(Color(**OFF | {"saturation": 0.5}), inputs=images)["inputs"])
    np.testing.assert_allclose(changed @ np.array(GRAY), in_unit(images) @ np.array(GRAY), rtol=1e-3)
    spread = np.ptp(changed, axis=-1) / np.ptp(in_unit(images), axis=-1)
    assert 0.49 < spread.min() < 0.55
    assert 1.45 < spread.max() < 1.51


def test_hue_change_keeps_saturation_and_value(change):
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


def test_cutout_is_centered_on_every_pixel_equally_often(change):
    changed = change(Cutout(share=0.2, probability=0.25), inputs=-np.ones([20_000, 5, 5, 1], np.float32))["inputs"]
    assert (changed == 0.0).any((1, 2, 3)).mean() == pytest.approx(0.25, abs=0.01)
    counts = (changed == 0.0).sum(0)[..., 0]  # a fifth of five: a single pixel
    assert np.abs(counts - 200).max() < 5.5 * np.sqrt(200)


@pytest.mark.parametrize("form", [Preparation((6, 5, 3), 1.0 / 255.0, peak=255), None], ids=["known", "unknown"])
def test_pixels_from_0_to_1_change_like_pixels_from_minus_1_to_1(form, change):
    images = pictures(50)
    for make in (lambda: Color(saturation=0.2, hue=0.1), Rotate, lambda: Shift(share=0.5), Cutout):
        expected = in_unit(change(make(), inputs=images)["inputs"])
        inputs = in_unit(images).astype(np.float32)
        found = change(make(), preparation=form, inputs=inputs)["inputs"]
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert not np.array_equal(found, inputs)
