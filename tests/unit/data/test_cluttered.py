"""Cluttered digits: where each lies is known, fragments come from others of its split, and nothing ever changes."""

from __future__ import annotations

import inspect
import os
import zlib
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import yaml

from recipes.data import cluttered as module
from recipes.data.clutter import Clutter, place_on_canvases
from recipes.data.cluttered import cluttered
from recipes.data.digits import digits
from trainer.errors import UserError
from trainer.input.batches import EvaluationBatches

CONFIG = Path(__file__).parents[3] / "configs" / "data" / "cluttered.yaml"


def whole(split):
    batch = EvaluationBatches(split, batch_size=split.size).batch(tf.constant(0, tf.int64))
    return {name: tensor.numpy() for name, tensor in batch.items()}


def in_the_box(batch):
    """What each canvas shows in its box."""
    pairs = zip(batch["inputs"], batch["box"], strict=True)
    return np.stack([canvas[top : top + height, left : left + width] for canvas, (top, left, height, width) in pairs])


def flat_images(count, side=6):
    """Images of one grey value each: 1, 2, 3, ..."""
    return np.broadcast_to(np.arange(1, count + 1, dtype=np.uint8)[:, None, None], (count, side, side))


@pytest.fixture(scope="module")
def mnist_file(tmp_path_factory):
    """5,100 images to train on, of which 5,000 validate, and 30 to test."""
    generator = np.random.default_rng(0)
    arrays = {
        "x_train": generator.integers(0, 256, (5100, 28, 28), np.uint8),
        "y_train": np.arange(5100) % 10,
        "x_test": generator.integers(0, 256, (30, 28, 28), np.uint8),
        "y_test": np.arange(30) % 10,
    }
    path = tmp_path_factory.mktemp("mnist") / "mnist.npz"
    np.savez(path, **arrays)
    return str(path), arrays


@pytest.fixture(scope="module")
def plain():
    return cluttered()


def test_the_batch_has_inputs_targets_map_and_box(plain):
    assert (plain.train.size, plain.validation.size, plain.test.size) == (1258, 180, 359)
    assert (plain.input_shape, plain.classes) == ((20, 20, 1), 10)
    batch = whole(plain.test)
    found = {name: (batch[name].shape, batch[name].dtype) for name in ("inputs", "targets", "map", "box")}
    assert found == {
        "inputs": ((359, 20, 20, 1), np.float32),
        "targets": ((359,), np.int64),
        "map": ((359, 20, 20), np.float32),
        "box": ((359, 4), np.int64),
    }
    assert (batch["inputs"].min(), batch["inputs"].max()) == (-1, 1)
    assert plain.test.source.bytes == 359 * (20 * 20 + 8 + 4 * 8), "canvases are held as bytes"


def test_without_fragments_the_box_shows_the_image_and_the_rest_is_black():
    batch, source = whole(cluttered(fragments=0).test), whole(digits().test)
    np.testing.assert_array_equal(in_the_box(batch), source["inputs"])
    np.testing.assert_array_equal(batch["targets"], source["targets"])
    assert (batch["inputs"][..., 0][batch["map"] == 0] == -1).all()


def test_the_map_is_one_in_the_box_alone(plain):
    batch = whole(plain.test)
    for inside, (top, left, height, width) in zip(batch["map"], batch["box"], strict=True):
        expected = np.zeros((20, 20))
        expected[top : top + height, left : left + width] = 1
        np.testing.assert_array_equal(inside, expected)
        assert expected.sum() == height * width == 64


def test_fragments_add_to_the_image_by_maximum_and_leave_it_in_its_place(plain):
    batch, bare = whole(plain.test), whole(cluttered(fragments=0).test)
    np.testing.assert_array_equal(batch["box"], bare["box"])
    assert (batch["inputs"] >= bare["inputs"]).all()
    covered = (batch["inputs"] > bare["inputs"]).mean(axis=(1, 2, 3))
    assert (covered > 0).mean() > 0.99
    assert 0.05 < covered.mean() < 8 * 9 / 400


def test_a_traced_function_gives_the_same_bits(plain):
    rows = tf.constant([5, 0, 358], tf.int64)
    traced = tf.function(plain.test.source.gather, autograph=False)(rows)
    for name, tensor in plain.test.source.gather(rows).items():
        np.testing.assert_array_equal(traced[name], tensor)


def test_images_and_fragments_reach_every_place_and_stay_on_the_canvas():
    rows = np.zeros(20_000, np.int64)
    images = flat_images(2, side=6)
    canvases, boxes = place_on_canvases(images, rows, Clutter(9, 1, 2), seed=0, stream=0)
    for axis in (0, 1):
        np.testing.assert_allclose(np.bincount(boxes[:, axis]) / len(rows), 1 / 4, atol=0.02)
    fragment = canvases == 2
    assert fragment.sum(axis=(1, 2)).max() == 4
    expected = np.convolve([1 / 8] * 8, [1, 1])
    np.testing.assert_allclose(fragment.mean(axis=0).sum(axis=0) / 2, expected, atol=0.02)
    np.testing.assert_allclose(fragment.mean(axis=0).sum(axis=1) / 2, expected, atol=0.02)


def test_a_fragment_is_any_square_of_its_image():
    images = np.stack([np.zeros((3, 3)), np.arange(1, 10).reshape(3, 3)]).astype(np.uint8)
    canvases, _ = place_on_canvases(images, np.zeros(4000, np.int64), Clutter(7, 1, 2), seed=0, stream=0)
    squares = {tuple(canvas[canvas > 0]) for canvas in canvases}
    assert squares == {(1, 2, 4, 5), (2, 3, 5, 6), (4, 5, 7, 8), (5, 6, 8, 9)}


@pytest.mark.parametrize("count", [2, 5])
def test_a_fragment_comes_from_every_other_image_and_never_from_the_image_itself(count):
    rows = np.repeat(np.arange(count), 3000)
    canvases, boxes = place_on_canvases(flat_images(count), rows, Clutter(20, 1, 3), seed=0, stream=0)
    for canvas, (top, left, height, width) in zip(canvases, boxes, strict=True):
        canvas[top : top + height, left : left + width] = 0
    donors = canvases.max(axis=(1, 2)).astype(int)  # 0 where the fragment lies under the image
    for own in range(count):
        seen = np.bincount(donors[rows == own], minlength=count + 1)[1:]
        others = np.delete(seen, own)
        assert seen[own] == 0
        np.testing.assert_allclose(others / others.sum(), 1 / (count - 1), atol=0.05)


def test_fragments_come_from_the_chosen_images_of_the_same_split(monkeypatch, mnist_file):
    path, arrays = mnist_file
    pools = []

    def spy(images, rows, *rest):
        pools.append(images)
        return place_on_canvases(images, rows, *rest)

    monkeypatch.setattr(module, "place_on_canvases", spy)
    cluttered(source="mnist", path=path, train_examples=60, validation_examples=50, fragments=1)
    assert [len(pool) for pool in pools] == [60, 50, 30]
    train, validation, test = ({image.tobytes() for image in pool} for pool in pools)
    assert test == {image.tobytes() for image in arrays["x_test"]}
    assert not train & validation
    assert (train | validation) <= {image.tobytes() for image in arrays["x_train"]}


def test_mnist_keeps_its_grey_values_on_canvases_of_60(mnist_file):
    path, arrays = mnist_file
    data = cluttered(source="mnist", path=path, fragments=0)
    assert (data.train.size, data.validation.size, data.test.size) == (100, 5000, 30)
    assert (data.name, data.input_shape) == ("cluttered_mnist", (60, 60, 1))
    batch = whole(data.test)
    np.testing.assert_array_equal(np.rint((in_the_box(batch)[..., 0] + 1) * 127.5), arrays["x_test"])
    np.testing.assert_array_equal(batch["targets"], arrays["y_test"])


def test_sizes_of_canvas_and_fragments_can_be_set():
    batch = whole(cluttered(canvas=9, fragments=1, fragment_size=1).test)
    assert batch["inputs"].shape == (359, 9, 9, 1)
    assert set(batch["box"][:, :2].ravel()) == {0, 1}
    bare = whole(cluttered(canvas=9, fragments=0).test)
    assert (batch["inputs"] > bare["inputs"]).sum(axis=(1, 2, 3)).max() == 1


def test_fewer_examples_hold_every_class_in_proportion(plain):
    data = cluttered(train_examples=300, validation_examples=20, test_examples=100)
    assert (data.train.size, data.validation.size, data.test.size) == (300, 20, 100)
    share = np.bincount(plain.train.source.labels) / plain.train.size
    np.testing.assert_allclose(np.bincount(data.train.source.labels), share * 300, atol=2)


def test_more_examples_show_every_image_again_elsewhere():
    data = cluttered(train_examples=1258 * 2 + 10, fragments=0)
    batch = whole(data.train)
    images = in_the_box(batch).reshape(len(batch["box"]), -1)
    np.testing.assert_array_equal(images[:1258], images[1258:2516])
    np.testing.assert_array_equal(images[:1258], whole(digits().train)["inputs"].reshape(1258, -1))
    np.testing.assert_array_equal(batch["targets"][:1258], batch["targets"][1258:2516])
    moved = (batch["box"][:1258] != batch["box"][1258:2516]).any(axis=1)
    assert moved.mean() > 0.97


def test_a_seed_gives_one_set_whatever_else_is_asked_for(plain):
    again, fewer, other = (
        whole(cluttered().test),
        whole(cluttered(train_examples=50).test),
        whole(cluttered(seed=1).test),
    )
    first = whole(plain.test)
    for batch in (again, fewer):
        np.testing.assert_array_equal(batch["inputs"], first["inputs"])
    assert (first["box"] != other["box"]).any(axis=1).mean() > 0.97
    np.testing.assert_array_equal(first["targets"], other["targets"])
    assert (first["box"][:180] != whole(plain.validation)["box"]).any(axis=1).mean() > 0.97, "one draw for two splits"


def test_canvases_never_change_between_versions():
    rows = np.arange(50) % 7
    canvases, boxes = place_on_canvases(flat_images(7), rows, Clutter(16, 4, 3), seed=3, stream=1)
    assert boxes[:4].tolist() == [[2, 8, 6, 6], [4, 1, 6, 6], [3, 5, 6, 6], [4, 6, 6, 6]]
    assert zlib.crc32(canvases.tobytes()) == 1047076830


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": "mnits"}, "Unknown data.source 'mnits'. Did you mean 'mnist'.? Expected one of: digits, mnist."),
        ({"path": "a.npz"}, "data.path=a.npz for data.source=digits, which is embedded.*Set data.source=mnist"),
        ({"source": "mnist", "path": "/no/such.npz"}, "does not exist"),
        ({"canvas": 8}, "data.canvas=8; expected 'auto' or a number of pixels of 9 or more"),
        ({"canvas": 20.0}, "data.canvas=20.0"),
        ({"canvas": "big"}, "data.canvas='big'"),
        ({"canvas": True}, "data.canvas=True"),
        ({"fragment_size": 9}, "data.fragment_size=9; expected 'auto' or a number of pixels in 1..8"),
        ({"fragment_size": 0}, "data.fragment_size=0"),
        ({"fragments": -1}, "data.fragments=-1; expected an integer of 0 or more"),
        ({"fragments": 1.5}, "data.fragments=1.5"),
        ({"seed": -1}, "data.seed=-1"),
        ({"train_examples": 0}, "data.train_examples=0; expected an integer of 1 or more, or null"),
        ({"test_examples": "all"}, "data.test_examples='all'"),
        ({"validation_examples": 1}, "1 validation image for canvases with fragments.*data.fragments=0"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        cluttered(**settings)


def test_one_image_without_fragments_is_enough():
    assert cluttered(validation_examples=1, fragments=0).validation.size == 1


def test_the_config_lists_every_argument_with_its_default():
    config = yaml.safe_load(CONFIG.read_text())
    assert config.pop("_target_") == "recipes.data.cluttered.cluttered"
    assert config == {name: p.default for name, p in inspect.signature(cluttered).parameters.items()}
    assert CONFIG.read_text().startswith("# ")


@pytest.mark.skipif("HOOKLINE_MNIST" not in os.environ, reason="set HOOKLINE_MNIST to the path of MNIST as an npz")
def test_the_real_mnist_on_canvases():
    data = cluttered(source="mnist", path=os.environ["HOOKLINE_MNIST"], train_examples=6000)
    assert (data.train.size, data.validation.size, data.test.size) == (6000, 5000, 10_000)
    batch = data.test.source.gather(tf.range(500, dtype=tf.int64))
    np.testing.assert_array_equal(batch["targets"][:5], [7, 2, 1, 0, 4])
    assert float(tf.reduce_mean(batch["map"])) == pytest.approx(28 * 28 / 3600)
    # The digit has 0.1325 of white in its box (MNIST's test images); 8 fragments of 64 pixels add less than as much.
    ink = (batch["inputs"][..., 0] + 1) / 2
    inside = float(tf.reduce_sum(ink * batch["map"]) / tf.reduce_sum(batch["map"]))
    assert 0.1325 < inside < 0.1325 * 1.4
    assert 0.005 < float(tf.reduce_mean(ink * (1 - batch["map"]))) < 0.03
