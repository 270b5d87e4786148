"""Sets of Keras from a file or from its cache; every bad file ends in one clear line."""

from __future__ import annotations

import hashlib
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

from recipes.data import keras_cache
from recipes.data.keras_dataset import SETS, keras_dataset
from trainer.errors import UserError
from trainer.input.batches import EvaluationBatches

CONFIGS = Path(__file__).parents[3] / "configs" / "data"


def mnist(**settings):
    return keras_dataset(name="mnist", **settings)


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


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Let Keras keep its files in an empty folder, and pin nothing but one small file for each set."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    folder = tmp_path / "datasets"
    folder.mkdir()
    monkeypatch.setattr(keras_cache, "_folders", lambda: [folder])
    pin = hashlib.sha256(b"archive").hexdigest()
    monkeypatch.setattr(keras_cache, "PINS", {name: {f"{name}.archive": pin} for name in SETS})
    return folder


def loads(monkeypatch, name, arrays, file):
    """Let `load_data` of a set leave a file and return arrays, as after a download; return its calls."""
    calls = []

    def load_data(**options):
        calls.append(options)
        file.write_bytes(b"archive")
        return (arrays["x_train"], arrays["y_train"]), (arrays["x_test"], arrays["y_test"])

    monkeypatch.setattr(getattr(keras.datasets, name), "load_data", load_data)
    return calls


def colour_arrays(train=240, test=40, classes=10):
    generator = np.random.default_rng(0)
    arrays = {}
    for part, size in (("train", train), ("test", test)):
        arrays[f"x_{part}"] = generator.integers(0, 256, (size, 32, 32, 3), np.uint8)
        arrays[f"y_{part}"] = (np.arange(size) % classes).astype(np.uint8)[:, None]  # as Keras gives CIFAR's
    return arrays


def test_without_a_path_keras_gives_the_arrays(monkeypatch, cache):
    arrays = make_arrays()
    loads(monkeypatch, "mnist", arrays, cache / "mnist.archive")
    data = mnist(validation_size=20)
    np.testing.assert_array_equal(first_batch(data.test)["targets"], arrays["y_test"])
    assert data.train.size == 100


@pytest.mark.parametrize(
    ("name", "module", "options", "classes", "named"),
    [
        ("fashion_mnist", "fashion_mnist", {}, 10, "Ankle boot"),
        ("cifar10", "cifar10", {}, 10, "truck"),
        ("cifar100", "cifar100", {"label_mode": "fine"}, 100, None),
        ("cifar100_coarse", "cifar100", {"label_mode": "coarse"}, 20, None),
    ],
)
def test_every_set_has_its_shape_and_its_classes(monkeypatch, cache, name, module, options, classes, named):
    arrays = make_arrays() if name == "fashion_mnist" else colour_arrays(classes=classes)
    calls = loads(monkeypatch, module, arrays, cache / f"{module}.archive")
    data = keras_dataset(name=name, validation_size=20)
    assert calls == [options]
    assert (data.name, data.classes, data.input_shape) == (name, classes, SETS[name].shape)
    assert (data.class_names[-1] if data.class_names else None) == named
    np.testing.assert_array_equal(first_batch(data.test)["targets"], arrays["y_test"].reshape(-1))
    expected = arrays["x_test"].reshape(-1, *SETS[name].shape) / 127.5 - 1
    np.testing.assert_allclose(first_batch(data.test)["inputs"], expected, atol=1e-6)


def test_another_set_than_mnist_may_come_from_a_file_too(tmp_path):
    np.savez(tmp_path / "cifar.npz", **colour_arrays())
    data = keras_dataset(name="cifar10", path=str(tmp_path / "cifar.npz"), validation_size=20)
    assert (data.train.size, data.input_shape) == (220, (32, 32, 3))


def test_an_unknown_set_is_refused():
    with pytest.raises(UserError, match="Unknown data.name 'cifar'. Did you mean 'cifar10'"):
        keras_dataset(name="cifar")


def test_a_failed_download_says_how_to_give_a_file(monkeypatch, cache):
    def fail():
        raise Exception("URL fetch failure on mnist.npz:\n no route")  # what Keras raises

    monkeypatch.setattr(keras.datasets.mnist, "load_data", fail)
    assert re.search(r"could not be loaded .*no route.*check the connection.*data\.path=<mnist.npz>", message_of())


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


@pytest.mark.parametrize(("file", "name"), [("mnist", "mnist"), ("keras_dataset", "???")])
def test_the_configs_list_arguments_with_their_defaults(file, name):
    text = (CONFIGS / f"{file}.yaml").read_text()
    config = yaml.safe_load(text)
    assert config.pop("_target_") == "recipes.data.keras_dataset.keras_dataset"
    assert config.pop("name") == name
    defaults = {key: each.default for key, each in inspect.signature(keras_dataset).parameters.items()}
    del defaults["name"]
    assert config == defaults
    assert text.startswith("# ")


@pytest.mark.skipif("HOOKLINE_MNIST" not in os.environ, reason="set HOOKLINE_MNIST to the path of MNIST as an npz")
def test_the_real_file_opens():
    data = mnist(path=os.environ["HOOKLINE_MNIST"])
    assert (data.train.size, data.validation.size, data.test.size) == (55_000, 5_000, 10_000)
    np.testing.assert_array_equal(first_batch(data.test)["targets"][:5], [7, 2, 1, 0, 4])
    # The mean grey value of MNIST's training images is 0.1307 of white.
    whole = EvaluationBatches(data.train, batch_size=5000)
    mean = np.mean([float(tf.reduce_mean(whole.batch(tf.constant(i, tf.int64))["inputs"])) for i in range(11)])
    assert mean == pytest.approx(2 * 0.1307 - 1, abs=2e-3)
