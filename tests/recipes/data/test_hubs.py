"""Hugging Face, with the real package where installed, and TensorFlow Datasets, with a stand-in."""

import sys
import types

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from hookline.recipes.data.hubs import hugging_face, tfds
from tests.support.refusals import assert_refused

NAMES = ["ant", "bee", "cat"]


@pytest.fixture(scope="module")
def package():
    """Return the package datasets, in offline mode."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield pytest.importorskip("datasets", reason="data=hugging_face needs pip install datasets")


def images(package, rows, *, mode="L", offset=0):
    """Return a dataset of three classes, whose images have their row number as the value of every pixel."""
    pixels = [np.full((6, 5), row + offset, np.uint8) for row in range(rows)]
    pictures = [Image.fromarray(each).convert(mode) for each in pixels]
    columns = {"picture": pictures, "kind": [row % 3 for row in range(rows)], "note": ["x"] * rows}
    label, text = package.ClassLabel(names=NAMES), package.Value("string")
    return package.Dataset.from_dict(columns, features=package.Features(picture=package.Image(), kind=label, note=text))


COLUMNS = {"inputs": "picture", "targets": "kind"}


def test_hugging_face_splits_classes_and_pixels_match_dataset(package, tmp_path):
    parts = {"train": images(package, 60), "test": images(package, 9, offset=100)}
    package.DatasetDict(parts).with_format("numpy").save_to_disk(tmp_path / "bugs")
    given = {"path": str(tmp_path / "bugs"), **COLUMNS, "cache": "none"}
    data = hugging_face(**given, validation=6)
    assert [data.train.size, data.validation.size, data.test.size] == [54, 6, 9]
    assert (data.name, data.input_shape, data.classes) == ("bugs", (6, 5, 1), 3)
    assert data.class_names == tuple(NAMES)
    batch = data.test.source.gather(tf.constant([7, 2], tf.int64))
    np.testing.assert_allclose(batch["inputs"][:, 5, 4, 0], np.array([107, 102]) / 127.5 - 1, atol=1e-6)
    np.testing.assert_array_equal(batch["targets"], [1, 2])
    assert sorted(np.bincount(data.validation.labels)) == [2, 2, 2]
    few = hugging_face(**given, parts=["train"], examples=30, validation=3, test=3)
    assert [few.train.size, few.validation.size, few.test.size] == [24, 3, 3]
    for options, message in (
        ({"path": str(tmp_path / "nowhere")}, "cannot open '.*nowhere'"),
        ({"inputs": "image"}, "'image'.*picture"),
        ({"inputs": "note"}, "bugs, train, row 0: inputs of dtype .U1"),
        ({"streaming": True}, "data.examples"),
        ({"mode": "CMYK"}, "data.mode"),
    ):
        assert_refused(message, hugging_face, **{**given, **options})


def test_streamed_parquet_files_match_random_access(package, tmp_path):
    images(package, 40, mode="RGB").to_parquet(tmp_path / "files" / "train.parquet")
    options = {"path": str(tmp_path / "files"), "cache_dir": str(tmp_path / "cache"), **COLUMNS, "validation": 3}
    streamed = hugging_face(**options, test=3, streaming=True, examples=30)
    read = hugging_face(**options, test=3, examples=30)
    assert streamed.train.size == read.train.size == 24
    assert streamed.class_names == read.class_names == tuple(NAMES)
    rows = tf.constant([29, 0, 11], tf.int64)
    for name in ("inputs", "targets"):
        one, two = (each.train.source.gather(rows)[name].numpy() for each in (streamed, read))
        np.testing.assert_array_equal(one, two)
    assert one.tolist() == [2, 0, 2]


def test_missing_package_is_reported_with_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert_refused("data=hugging_face needs the package datasets.*pip install", hugging_face, path="ylecun/mnist")
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    assert_refused("data=tfds needs TensorFlow Datasets.*pip install tensorflow-datasets array-r", tfds, name="tiny")


SKIP = "skipped"


class Source:
    """A split as returned by `tfds.data_source`; without decoding, images stay bytes."""

    def __init__(self, size, features, decoders):
        self.size, self.bare = size, (decoders or {}).get("image") == SKIP
        self.dataset_info = types.SimpleNamespace(features=features)

    def __len__(self):
        return self.size

    def __getitem__(self, row):
        image = b"png" if self.bare else np.full([6, 5, 3], row, np.uint8)
        return {"image": image, "label": np.int64(row % 3), "id": b"x"}


@pytest.fixture
def tfds_module(monkeypatch):
    """Replace tensorflow_datasets by a stand-in, whose attributes set what it contains."""
    label = types.SimpleNamespace(num_classes=3, names=["ant", "bee", "cat"])
    module = types.SimpleNamespace(
        decode=types.SimpleNamespace(SkipDecoding=lambda: SKIP),
        sizes={"train": 60, "test": 9},
        features={"image": object(), "label": label, "id": object()},
        calls=[],
    )

    def data_source(name, *, data_dir, builder_kwargs, decoders=None):
        module.calls.append((name, data_dir, builder_kwargs))
        if name == "tinny":
            raise LookupError("Dataset tinny not found.\nDid you mean: tinny -> tiny")
        return {part: Source(size, module.features, decoders) for part, size in module.sizes.items()}

    module.data_source = data_source
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)
    return module


def test_tfds_splits_are_used_and_missing_ones_are_held_out(tfds_module):
    data = tfds(name="tiny", data_dir="there", validation=6, cache="none")
    assert [data.train.size, data.validation.size, data.test.size] == [54, 6, 9]
    assert (data.name, data.input_shape, data.classes) == ("tiny", (6, 5, 3), 3)
    assert data.class_names == ("ant", "bee", "cat")
    batch = data.test.source.gather(tf.constant([7, 2], tf.int64))
    np.testing.assert_allclose(batch["inputs"][:, 5, 4, 2], np.array([7, 2]) / 127.5 - 1, atol=1e-6)
    np.testing.assert_array_equal(batch["targets"], [1, 2])
    tfds_module.sizes["unsupervised"] = tfds_module.sizes["validation"] = 12
    data = tfds(name="tiny", data_dir="there", parts=["train", "validation"], test=10)
    assert [data.train.size, data.validation.size, data.test.size] == [50, 12, 10]
    assert set(map(str, tfds_module.calls)) == {str(("tiny", "there", {"file_format": "array_record"}))}


def test_invalid_tfds_settings_are_refused(tfds_module):
    for options, message in (
        ({"name": "tinny"}, "'tinny'"),
        ({"inputs": "img"}, "'image'"),
        ({"parts": ["train", "validation"]}, "'validation'"),
        ({"split": "group"}, "data.split 'group'"),
        ({"image_size": [1, 2, 3]}, "image_size"),
        ({"inputs": "id"}, "tiny, train, row 0: inputs of dtype .S1"),
    ):
        assert_refused(message, tfds, **{"name": "tiny", **options})
