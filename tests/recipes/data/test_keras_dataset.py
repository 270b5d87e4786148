"""Sets of Keras from a file or from its cache; every bad file ends in one clear line."""

from __future__ import annotations

import hashlib
import inspect
import os
from functools import partial

import keras
import numpy as np
import pytest

from hookline.recipes.data import keras_dataset as keras_cache
from hookline.recipes.data.keras_dataset import PINS, SETS, keras_dataset, load_pinned
from tests.support.batches import whole
from tests.support.refusals import assert_refused, refusal


def mnist(**settings):
    return keras_dataset(name="mnist", **settings)


def make_arrays(*shape, train=120, classes=10):
    generator, arrays = np.random.default_rng(0), {}
    for part, size in (("train", train), ("test", 40)):
        arrays[f"x_{part}"] = generator.integers(0, 256, (size, *(shape or (28, 28))), np.uint8)
        arrays[f"y_{part}"] = (np.arange(size) % classes).astype(np.uint8)
    return arrays


def write(folder, **changes):
    """Write an npz, with arrays replaced, or left out where the replacement is None."""
    arrays = {key: value for key, value in {**make_arrays(), **changes}.items() if value is not None}
    path = folder / "mnist.npz"
    np.savez(path, **arrays)
    return str(path)


message_of = partial(refusal, mnist, validation_size=20)


def test_splits_come_from_their_own_arrays(tmp_path, monkeypatch):
    path = write(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    data = mnist(path="~/mnist.npz", validation_size=20)
    assert (data.train.size, data.validation.size, data.test.size) == (100, 20, 40)
    assert data.train.source is data.validation.source
    assert data.test.source is not data.train.source
    assert data.train.source.bytes == 120 * 28 * 28 + 120 * 8  # a byte a pixel
    rows = np.concatenate([data.train.indices, data.validation.indices])
    np.testing.assert_array_equal(np.sort(rows), np.arange(120))
    np.testing.assert_array_equal(np.bincount(whole(data.validation)["targets"]), [2] * 10)
    again, other = (mnist(path=path, validation_size=20, seed=seed).validation.indices for seed in (0, 1))
    np.testing.assert_array_equal(data.validation.indices, again)
    assert not np.array_equal(again, other)


PIN = hashlib.sha256(b"whole").hexdigest()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Let Keras keep its files in an empty folder, and pin two small ones for each set."""
    monkeypatch.setattr(keras_cache, "_folder", lambda: tmp_path)
    monkeypatch.setattr(keras_cache, "PINS", {name: {"first": PIN, "inner/second": PIN} for name in SETS})
    (tmp_path / "inner").mkdir()
    return tmp_path


def leave(folder, first=b"whole", second=b"whole", arrays="arrays"):
    """Return a function that leaves files, as a download does, and returns arrays; it has its calls."""

    def load(**options):
        load.calls.append(options)
        for name, content in (("first", first), ("inner/second", second)):
            if content is not None:
                (folder / name).write_bytes(content)
        return arrays

    load.calls = []
    return load


@pytest.mark.parametrize(
    ("name", "module", "options", "classes", "named"),
    [
        ("mnist", "mnist", {}, 10, None),
        ("fashion_mnist", "fashion_mnist", {}, 10, "Ankle boot"),
        ("cifar10", "cifar10", {}, 10, "truck"),
        ("cifar100", "cifar100", {"label_mode": "fine"}, 100, None),
        ("cifar100_coarse", "cifar100", {"label_mode": "coarse"}, 20, None),
    ],
)
def test_every_set_has_its_shape_and_its_classes(monkeypatch, folder, name, module, options, classes, named):
    arrays = make_arrays() if name.endswith("mnist") else make_arrays(32, 32, 3, train=240, classes=classes)
    label_shape = (-1,) if name.endswith("mnist") else (-1, 1)  # as Keras gives CIFAR's
    pairs = tuple((arrays[f"x_{part}"], arrays[f"y_{part}"].reshape(label_shape)) for part in ("train", "test"))
    load = leave(folder, arrays=pairs)
    monkeypatch.setattr(getattr(keras.datasets, module), "load_data", load)
    data = keras_dataset(name=name, validation_size=20)
    assert load.calls == [options]
    assert (data.name, data.classes, data.input_shape) == (name, classes, SETS[name].shape)
    if named:
        assert data.class_names[-1] == named
    np.testing.assert_array_equal(whole(data.test)["targets"], arrays["y_test"])
    expected = arrays["x_test"].reshape(-1, *SETS[name].shape) / 127.5 - 1
    np.testing.assert_allclose(whole(data.test)["inputs"], expected, atol=1e-6)


def test_pickled_objects_are_never_loaded(tmp_path):
    class Planted:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "planted"),))

    labels = np.array([Planted()] * 120, dtype=object)
    assert "not a readable npz of plain arrays" in message_of(path=write(tmp_path, y_train=labels))
    assert not (tmp_path / "planted").exists()


def test_bad_arrays_and_settings_are_refused(tmp_path):
    nan = make_arrays()["x_train"].astype(np.float32)
    nan[17, 3, 3] = np.nan
    for changes, message in (
        ({"x_train": np.zeros((120, 32, 32), np.uint8)}, "x_train and y_train: inputs of shape [32, 32]"),
        ({"x_train": nan}, "1 values are NaN or infinite, the first in row 17"),
        ({"x_train": make_arrays()["x_train"] / 255}, "whole grey values"),
        ({"y_train": np.full(120, 10)}, "120 labels lie outside 0..9"),
        ({"y_test": np.zeros(39, np.uint8)}, "40 inputs but 39 labels"),
        ({"y_train": None, "y_test": None}, "Add y_train, y_test."),
    ):
        found = message_of(path=write(tmp_path, **changes))
        assert "mnist.npz" in found
        assert message in found
    for size in (0, 120, 2.5):
        assert "1..119" in message_of(path=write(tmp_path), validation_size=size)
    assert_refused("'cifar10'", keras_dataset, name="cifar")


def test_a_truncated_or_altered_file_is_named_before_keras_would_replace_it(folder):
    for _ in range(2):  # downloaded, and then there
        assert load_pinned("mnist", leave(folder)) == "arrays"
    (folder / "inner/second").write_bytes(b"who")
    unused = leave(folder)
    assert_refused(r"inner/second' \(3 bytes\) is truncated or altered.*Delete it", load_pinned, "mnist", unused)
    assert not unused.calls
    assert (folder / "inner/second").read_bytes() == b"who"
    for name in ("first", "inner/second"):
        (folder / name).unlink()
    assert_refused(r"first' .* is truncated or altered", load_pinned, "mnist", leave(folder, first=b"other"))
    for name in ("first", "inner/second"):
        (folder / name).unlink()
    assert_refused("inner/second. cannot be read", load_pinned, "mnist", leave(folder, second=None))

    def fail():
        raise Exception("URL fetch failure:\n no route")  # what Keras raises

    assert_refused(r"URL .*data.path=<mnist.npz>", load_pinned, "mnist", fail)


def test_the_pins_are_those_that_keras_declares():
    assert PINS.keys() == {each.module for each in SETS.values()}
    for name in PINS:
        source = inspect.getsource(getattr(keras.datasets, name).load_data)
        for file, pin in PINS[name].items():
            assert len(pin) == 64
            assert file.removesuffix("_archive").rpartition("/")[2] in source
            if name != "fashion_mnist":  # for which Keras has no sums
                assert pin in source
