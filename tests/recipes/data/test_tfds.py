"""TensorFlow Datasets, in a module that stands for it and, where it is installed, in itself; missing in one line."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
import tensorflow as tf

from hookline.recipes.data.tfds import tfds
from tests.support.refusals import assert_refused

SKIP = "skipped"


class Source:
    """A split as `tfds.data_source` gives it; without decoding, images stay bytes."""

    def __init__(self, size, features, shape, decoders):
        self.size, self.shape, self.bare = size, shape, (decoders or {}).get("image") == SKIP
        self.dataset_info = types.SimpleNamespace(features=features)

    def __len__(self):
        return self.size

    def __getitem__(self, row):
        height, width, channels = self.shape(row)
        image = b"png" if self.bare else np.full([height, width, channels], row, np.uint8)
        return {"image": image, "label": np.int64(row % 3), "id": b"x"}


@pytest.fixture
def package(monkeypatch):
    """Put a module in the place of tensorflow_datasets; its attributes say what it holds."""
    label = types.SimpleNamespace(num_classes=3, names=["ant", "bee", "cat"])
    module = types.SimpleNamespace(
        decode=types.SimpleNamespace(SkipDecoding=lambda: SKIP),
        sizes={"train": 60, "test": 9},
        shape=lambda row: (6, 5, 3),
        features={"image": object(), "label": label, "id": object()},
        calls=[],
    )

    def data_source(name, *, data_dir, builder_kwargs, decoders=None):
        module.calls.append((name, data_dir, builder_kwargs))
        if name == "tinny":
            raise LookupError("Dataset tinny not found.\nDid you mean: tinny -> tiny")
        return {part: Source(size, module.features, module.shape, decoders) for part, size in module.sizes.items()}

    module.data_source = data_source
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)
    return module


@pytest.mark.parametrize("cache", ["memory", "none"])
def test_its_splits_are_used_and_what_it_has_not_is_held_out(package, cache):
    data = tfds(name="tiny", data_dir="there", validation=6, cache=cache)
    assert [data.train.size, data.validation.size, data.test.size] == [54, 6, 9]
    assert (data.name, data.input_shape, data.classes) == ("tiny", (6, 5, 3), 3)
    assert data.class_names == ("ant", "bee", "cat")
    batch = data.test.source.gather(tf.constant([7, 2], tf.int64))
    np.testing.assert_allclose(batch["inputs"][:, 5, 4, 2], np.array([7, 2]) / 127.5 - 1, atol=1e-6)
    np.testing.assert_array_equal(batch["targets"], [1, 2])
    package.sizes["unsupervised"] = package.sizes["validation"] = 12
    data = tfds(name="tiny", data_dir="there", parts=["train", "validation"], test=10)
    assert [data.train.size, data.validation.size, data.test.size] == [50, 12, 10]
    assert set(map(str, package.calls)) == {str(("tiny", "there", {"file_format": "array_record"}))}


def test_without_the_package_one_line_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    assert_refused("data=tfds needs TensorFlow Datasets.*pip install tensorflow-datasets array-r", tfds, name="tiny")


def test_what_the_set_has_not_is_refused_in_one_line(package):
    for options, message in (
        ({"name": "tinny"}, "'tinny'"),
        ({"inputs": "img"}, "'image'"),
        ({"parts": ["train", "validation"]}, "'validation'"),
        ({"split": "group"}, "data.split 'group'"),
        ({"image_size": [1, 2, 3]}, "image_size"),
        ({"inputs": "id"}, "tiny, train, row 0: inputs of dtype .S1"),
    ):
        assert_refused(message, tfds, **{"name": "tiny", **options})


def test_a_set_of_the_real_package_is_prepared_once_and_read(tmp_path):
    reason = "data=tfds needs pip install tensorflow-datasets array-record importlib-resources"
    real = pytest.importorskip("tensorflow_datasets", reason=reason)
    pytest.importorskip("array_record", reason=reason)

    class GreyBugs(real.core.GeneratorBasedBuilder):
        """Images whose pixels are their number."""

        VERSION = real.core.Version("1.0.0")

        def _info(self):
            label = real.features.ClassLabel(names=["ant", "bee", "cat"])
            return self.dataset_info_from_configs(
                features=real.features.FeaturesDict({"image": real.features.Image(shape=(6, 5, 1)), "label": label})
            )

        def _split_generators(self, manager):
            return {"train": self._generate_examples(60), "test": self._generate_examples(9)}

        def _generate_examples(self, count):
            for row in range(count):
                yield row, {"image": np.full([6, 5, 1], row, np.uint8), "label": row % 3}

    for cache in ("none", "memory"):
        data = tfds(name="grey_bugs", data_dir=str(tmp_path), validation=6, cache=cache, scale="none")
        assert [data.train.size, data.validation.size, data.test.size] == [54, 6, 9]
        assert (data.input_shape, data.class_names) == ((6, 5, 1), ("ant", "bee", "cat"))
        batch = data.test.source.gather(tf.range(9, dtype=tf.int64))
        rows = batch["inputs"].numpy()[:, 0, 0, 0].astype(np.int64)
        assert sorted(rows) == list(range(9))
        np.testing.assert_array_equal(batch["targets"].numpy(), rows % 3)
    small = tfds(name="grey_bugs", data_dir=str(tmp_path), image_size=4, validation=6)
    assert small.input_shape == (4, 4, 1)
