"""Datasets of Keras from a file or from its cache; every bad file is refused in one clear line."""

import inspect
from functools import partial

import keras
import numpy as np
import pytest

from hookline.recipes.data.keras_dataset import FASHION_MNIST, ORIGIN, SETS, keras_dataset
from tests.support.batches import whole
from tests.support.refusals import assert_refused, refusal


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


message_of = partial(refusal, mnist, validation_size=20)


def test_splits_come_from_their_own_arrays(tmp_path, monkeypatch):
    path = write(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    data = mnist(path="~/mnist.npz", validation_size=20)
    assert (data.train.size, data.validation.size, data.test.size) == (100, 20, 40)
    assert data.train.source is data.validation.source
    assert data.test.source is not data.train.source
    assert data.train.source.bytes == 120 * 28 * 28 + 120 * 8  # one byte per pixel
    rows = np.concatenate([data.train.indices, data.validation.indices])
    np.testing.assert_array_equal(np.sort(rows), np.arange(120))
    np.testing.assert_array_equal(np.bincount(whole(data.validation)["targets"]), [2] * 10)
    again, other = (mnist(path=path, validation_size=20, seed=seed).validation.indices for seed in (0, 1))
    np.testing.assert_array_equal(data.validation.indices, again)
    assert not np.array_equal(again, other)


def color_arrays(train=240, test=40, classes=10):
    generator = np.random.default_rng(0)
    arrays = {}
    for part, size in (("train", train), ("test", test)):
        arrays[f"x_{part}"] = generator.integers(0, 256, (size, 32, 32, 3), np.uint8)
        arrays[f"y_{part}"] = (np.arange(size) % classes).astype(np.uint8)[:, None]  # as Keras returns CIFAR's
    return arrays


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
def test_every_set_has_its_shape_and_its_classes(monkeypatch, name, module, options, classes, named):
    arrays = make_arrays() if name.endswith("mnist") else color_arrays(classes=classes)
    pairs = tuple((arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test"))
    calls, checked = [], {}
    monkeypatch.setattr(getattr(keras.datasets, module), "load_data", lambda **given: calls.append(given) or pairs)
    monkeypatch.setattr(keras.utils, "get_file", lambda file, origin, **given: checked.update({file: given}))
    data = keras_dataset(name=name, validation_size=20)
    assert calls == [options]
    assert [each["file_hash"] for each in checked.values()] == (
        list(FASHION_MNIST.values()) if name == "fashion_mnist" else []
    )
    assert (data.name, data.classes, data.input_shape) == (name, classes, SETS[name].shape)
    if named:
        assert data.class_names[-1] == named
    np.testing.assert_array_equal(whole(data.test)["targets"], arrays["y_test"].reshape(-1))
    expected = arrays["x_test"].reshape(-1, *SETS[name].shape) / 127.5 - 1
    np.testing.assert_allclose(whole(data.test)["inputs"], expected, atol=1e-6)


def test_bad_arrays_and_settings_are_refused(tmp_path):
    for changes, message in (
        ({"x_train": np.zeros((120, 32, 32), np.uint8)}, "x_train and y_train: inputs of shape [32, 32]"),
        ({"x_train": make_arrays()["x_train"] / 255}, "whole gray values"),
        ({"y_train": np.full(120, 10)}, "120 labels lie outside 0..9"),
        ({"y_test": np.zeros(39, np.uint8)}, "40 inputs but 39 labels"),
        ({"y_train": None, "y_test": None}, "Add y_train, y_test."),
        ({"y_train": np.array([None] * 120)}, "not a readable npz of numbers"),  # a pickle
    ):
        found = message_of(path=write(tmp_path, **changes))
        assert "mnist.npz" in found
        assert message in found
    for size in (0, 120, 2.5):
        assert "validation" in message_of(path=write(tmp_path), validation_size=size)
    assert_refused("'cifar10'", keras_dataset, name="cifar")


def test_failed_download_is_refused_with_how_to_use_a_file(monkeypatch):
    def fail(*arguments, **options):
        raise Exception("URL fetch failure:\n no route")  # what Keras raises

    monkeypatch.setattr(keras.utils, "get_file", fail)
    assert_refused(r"URL .*data.path=<fashion_mnist.npz>", keras_dataset, name="fashion_mnist")
    monkeypatch.setattr(keras.datasets.mnist, "load_data", fail)
    assert_refused(r"URL .*data.path=<mnist.npz>", keras_dataset, name="mnist")


def test_fashion_mnist_files_match_keras_and_keras_hashes_other_files():
    for module in {each.module for each in SETS.values()}:
        source = inspect.getsource(getattr(keras.datasets, module).load_data)
        if module == "fashion_mnist":
            assert all(file in source for file in (*FASHION_MNIST, ORIGIN))
        else:
            assert "file_hash=" in source
