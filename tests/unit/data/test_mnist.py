"""MNIST from a file or from Keras; every bad file ends in one clear line."""

from __future__ import annotations

import inspect
import os
import re
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import yaml

from recipes.data.mnist import mnist
from trainer.errors import UserError
from trainer.input.batches import EvaluationBatches

CONFIG = Path(__file__).parents[3] / "configs" / "data" / "mnist.yaml"


def make_arrays(train=120, test=40):
    generator = np.random.default_rng(0)
    return {
        "x_train": generator.integers(0, 256, (train, 28, 28), np.uint8),
        "y_train": (np.arange(train) % 10).astype(np.uint8),
        "x_test": generator.integers(0, 256, (test, 28, 28), np.uint8),
        "y_test": (np.arange(test) % 10).astype(np.uint8),
    }


def write(folder, **changes):
    """Write an npz, with arrays replaced, or left out where the replacement is None."""
    arrays = {key: value for key, value in {**make_arrays(), **changes}.items() if value is not None}
    path = folder / "mnist.npz"
    np.savez(path, **arrays)
    return str(path)


def message_of(**settings):
    with pytest.raises(UserError) as caught:
        mnist(**{"validation_size": 20, **settings})
    assert "\n" not in str(caught.value)
    return str(caught.value)


def first_batch(split):
    return EvaluationBatches(split, batch_size=split.size).batch(tf.constant(0, tf.int64))


def test_splits_come_from_their_own_arrays(tmp_path):
    data = mnist(path=write(tmp_path), validation_size=20)
    assert (data.train.size, data.validation.size, data.test.size) == (100, 20, 40)
    assert data.train.source is data.validation.source
    assert data.test.source is not data.train.source
    rows = np.concatenate([data.train.indices, data.validation.indices])
    np.testing.assert_array_equal(np.sort(rows), np.arange(120))
    np.testing.assert_array_equal(np.bincount(first_batch(data.validation)["targets"]), [2] * 10)


def test_images_are_scaled_and_labels_kept(tmp_path):
    data = mnist(path=write(tmp_path), validation_size=20)
    arrays = make_arrays()
    batch = first_batch(data.test)
    assert batch["inputs"].shape == (40, *data.input_shape)
    assert batch["inputs"].dtype == tf.float32
    assert batch["targets"].dtype == tf.int64
    np.testing.assert_allclose(batch["inputs"][..., 0], arrays["x_test"] / 127.5 - 1, atol=1e-6)
    np.testing.assert_array_equal(batch["targets"], arrays["y_test"])
    black, white = np.zeros((40, 28, 28), np.uint8), np.full((40, 28, 28), 255, np.uint8)
    for image, value in ((black, -1), (white, 1)):
        image[0, 0, 0] = 255
        scaled = first_batch(mnist(path=write(tmp_path, x_test=image), validation_size=20).test)["inputs"][1]
        np.testing.assert_array_equal(scaled, value)


def test_images_stay_one_byte_a_pixel_in_memory(tmp_path):
    data = mnist(path=write(tmp_path), validation_size=20)
    assert data.train.source.bytes == 120 * 28 * 28 + 120 * 8


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_whole_grey_values_of_another_dtype_and_shape_give_the_same_data(tmp_path, dtype):
    images = make_arrays()["x_test"]
    expected = first_batch(mnist(path=write(tmp_path), validation_size=20).test)["inputs"]
    path = write(tmp_path, x_test=images.astype(dtype)[..., None])
    np.testing.assert_array_equal(first_batch(mnist(path=path, validation_size=20).test)["inputs"], expected)


def test_the_split_follows_its_own_seed(tmp_path):
    path = write(tmp_path)
    first, again, other = (mnist(path=path, validation_size=20, seed=seed).validation.indices for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_the_path_may_be_relative_or_start_at_home(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert mnist(path="mnist.npz", validation_size=20).train.size == 100
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir("/")
    assert mnist(path="~/mnist.npz", validation_size=20).train.size == 100


def test_without_a_path_keras_gives_the_arrays(monkeypatch):
    arrays = make_arrays()
    loaded = (arrays["x_train"], arrays["y_train"]), (arrays["x_test"], arrays["y_test"])
    monkeypatch.setattr(keras.datasets.mnist, "load_data", lambda: loaded)
    data = mnist(validation_size=20)
    np.testing.assert_array_equal(first_batch(data.test)["targets"], arrays["y_test"])
    assert data.train.size == 100


def test_a_failed_download_says_how_to_give_a_file(monkeypatch):
    def fail():
        raise Exception("URL fetch failure on mnist.npz:\n no route")  # what Keras raises

    monkeypatch.setattr(keras.datasets.mnist, "load_data", fail)
    assert re.search(r"could not be downloaded .*no route.*data\.path=", message_of())


def test_a_missing_file_is_named(tmp_path):
    assert "nowhere.npz' does not exist" in message_of(path=str(tmp_path / "nowhere.npz"))
    assert "is a directory" in message_of(path=str(tmp_path))
    assert "data.path is empty" in message_of(path=" ")
    assert "does not exist" in message_of(path=5)


def broken_files(folder):
    good = Path(write(folder)).read_bytes()
    np.save(folder / "array.npy", np.zeros(3))
    (folder / "text").write_text("hello")
    (folder / "empty").write_bytes(b"")
    (folder / "cut").write_bytes(good[: len(good) // 2])
    with zipfile.ZipFile(folder / "other.zip", "w") as archive:
        archive.writestr("x_train.npy", b"no array")
    damaged = bytearray(good)
    damaged[3000:3100] = b"\0" * 100
    (folder / "damaged").write_bytes(damaged)
    return ["array.npy", "text", "empty", "cut", "other.zip", "damaged"]


def test_a_file_that_is_no_npz_or_is_damaged_is_refused(tmp_path):
    for name in broken_files(tmp_path):
        message = message_of(path=str(tmp_path / name))
        assert name in message
        assert "npz" in message or "no array" in message, message


def test_pickled_objects_are_never_loaded(tmp_path):
    class Planted:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "planted"),))

    labels = np.array([Planted()] * 120, dtype=object)
    assert "not a readable npz of plain arrays" in message_of(path=write(tmp_path, y_train=labels))
    assert not (tmp_path / "planted").exists()


def test_missing_keys_are_listed(tmp_path):
    message = message_of(path=write(tmp_path, y_train=None, y_test=None, labels=np.zeros(3)))
    assert "holds x_train, x_test, labels; expected x_train, y_train, x_test, y_test. Add y_train, y_test." in message


def with_nan():
    images = make_arrays()["x_train"].astype(np.float32)
    images[17, 3, 3] = np.nan
    return images


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": np.zeros((120, 32, 32), np.uint8)}, "x_train and y_train: inputs of shape [32, 32]; expected [28"),
        ({"x_test": np.zeros((40, 28, 28, 3), np.uint8)}, "x_test and y_test: inputs of shape [28, 28, 3]"),
        ({"x_train": np.zeros((120, 784), np.uint8)}, "inputs of shape [784]"),
        ({"x_train": with_nan()}, "1 values are NaN or infinite, the first in row 17"),
        ({"x_train": make_arrays()["x_train"] / 255}, "expected whole grey values within 0..255"),
        ({"x_train": np.full((120, 28, 28), "a")}, "inputs of dtype <U1"),
        ({"y_train": np.full(120, 10)}, "120 labels lie outside 0..9, the first is 10 in row 0"),
        ({"y_test": np.zeros(40, np.float32)}, "labels of dtype float32"),
        ({"y_test": np.zeros((40, 10), np.uint8)}, "labels of dtype uint8 and shape [40, 10]"),
        ({"y_test": np.zeros(39, np.uint8)}, "40 inputs but 39 labels"),
        ({"x_test": np.zeros((0, 28, 28), np.uint8), "y_test": np.zeros(0, np.uint8)}, "no examples"),
    ],
)
def test_bad_arrays_are_refused(tmp_path, changes, message):
    found = message_of(path=write(tmp_path, **changes))
    assert found.startswith("mnist.npz, ")
    assert message in found


@pytest.mark.parametrize("size", [0, -1, 120, 500, 2.5, "20", True])
def test_a_validation_size_out_of_range_is_refused(tmp_path, size):
    assert "expected an integer in 1..119" in message_of(path=write(tmp_path), validation_size=size)


def test_the_config_lists_every_argument_with_its_default():
    config = yaml.safe_load(CONFIG.read_text())
    assert config.pop("_target_") == "recipes.data.mnist.mnist"
    assert config == {name: p.default for name, p in inspect.signature(mnist).parameters.items()}
    assert CONFIG.read_text().startswith("# ")


@pytest.mark.skipif("HOOKLINE_MNIST" not in os.environ, reason="set HOOKLINE_MNIST to the path of MNIST as an npz")
def test_the_real_file_opens():
    data = mnist(path=os.environ["HOOKLINE_MNIST"])
    assert (data.train.size, data.validation.size, data.test.size) == (55_000, 5_000, 10_000)
    np.testing.assert_array_equal(first_batch(data.test)["targets"][:5], [7, 2, 1, 0, 4])
    # The mean grey value of MNIST's training images is 0.1307 of white.
    whole = EvaluationBatches(data.train, batch_size=5000)
    mean = np.mean([float(tf.reduce_mean(whole.batch(tf.constant(i, tf.int64))["inputs"])) for i in range(11)])
    assert mean == pytest.approx(2 * 0.1307 - 1, abs=2e-3)
