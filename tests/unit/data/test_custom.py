"""Data of a user's own class: splits, cache, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hookline.recipes.data import input_form as machine_memory
from hookline.recipes.data.custom import custom
from hookline.recipes.data.input_form import HostRows
from hookline.trainer.errors import UserError
from hookline.trainer.input.batches import TrainingBatches
from hookline.trainer.input.source import ArraySource
from tests.support.batches import assert_same_bits, eager_batches


class Photos:
    def __init__(self, size=60, shape=(4, 4), dtype=np.uint8, classes=3):
        self.size, self.shape, self.dtype, self.classes = size, shape, dtype, classes

    def __len__(self):
        return self.size

    def __getitem__(self, row):
        image = np.random.default_rng(row).integers(0, 256, self.shape).astype(self.dtype)
        return image, row % self.classes


@pytest.mark.parametrize("cache", ["memory", "none"])
def test_one_object_is_split_with_a_share_of_every_class(cache):
    data = custom(source=Photos(), validation=6, test=0.25, class_names=["ant", "bee", "cat"], cache=cache)
    assert [data.train.size, data.validation.size, data.test.size] == [39, 6, 15]
    assert (data.name, data.input_shape, data.classes, data.class_names[0]) == ("custom", (4, 4, 1), 3, "ant")
    batch = data.test.source.gather(tf.constant(data.test.indices))
    np.testing.assert_array_equal(np.bincount(batch["targets"]), [5, 5, 5])
    np.testing.assert_array_equal(batch["targets"], data.test.indices % 3)
    expected = np.stack([Photos()[row][0] for row in data.test.indices.tolist()]) / 127.5 - 1
    np.testing.assert_allclose(batch["inputs"][..., 0], expected, atol=1e-6)
    data = custom(source=Photos(), validation_source=Photos(20), test_source=Photos(10), cache=cache)
    assert [data.train.size, data.validation.size, data.test.size] == [60, 20, 10]


def test_the_cache_changes_where_rows_lie_but_no_bit(monkeypatch):
    held, read = (custom(source=Photos(), cache=cache) for cache in ("memory", "none"))
    assert isinstance(held.train.source, ArraySource)
    assert isinstance(read.train.source, HostRows)
    batches = [TrainingBatches(each.train, batch_size=8, seed=1) for each in (held, read)]
    assert [each.placement for each in batches] == ["device", "host"]
    assert_same_bits(*(eager_batches(each, 0, 12) for each in batches))
    assert isinstance(custom(source=Photos()).train.source, ArraySource)
    monkeypatch.setattr(machine_memory, "AUTO_BYTES", 60 * 16 - 1)
    assert isinstance(custom(source=Photos()).train.source, HostRows)
    monkeypatch.setattr(machine_memory, "SHARE", 1e-12)
    with pytest.raises(UserError, match="data.cache=none"):
        custom(source=Photos(), cache="memory")


def test_what_cannot_be_is_refused_in_one_line():
    for options, message in (
        ({"source": None}, r"\+data.source._target_=.*plugins="),
        ({"source": 3}, "int.*__len__"),
        ({"test_source": Photos(shape=(5, 4))}, r"data.test_source \(Photos\) gives inputs uint8 \[5, 4\]"),
        ({"test_source": Photos(dtype=np.float32)}, "float32"),
        ({"split": "group"}, "needs groups"),
        ({"classes": 2}, r"data.source \(Photos\): 20 labels lie outside 0..1"),
        ({"threads": 0}, "data.threads=0"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            custom(**{"source": Photos(), **options})
        assert "\n" not in str(caught.value)
