"""Data from a user's own class: splits, cache, and what is refused."""

import importlib
import threading

import numpy as np
import pytest
import tensorflow as tf

from hookline.recipes.data import input_form as machine_memory
from hookline.recipes.data.custom import ExampleReader, custom
from hookline.recipes.data.input_form import HostRows, input_form
from hookline.trainer.input.batches import TrainingBatches
from hookline.trainer.input.data import ArraySource
from tests.support.batches import assert_same_bits, eager_batches
from tests.support.refusals import assert_refused


class Photos:
    def __init__(self, size=60, shape=(4, 4), dtype=np.uint8, classes=3):
        self.size, self.shape, self.dtype, self.classes = size, shape, dtype, classes

    def __len__(self):
        return self.size

    def __getitem__(self, row):
        image = np.random.default_rng(row).integers(0, 256, self.shape).astype(self.dtype)
        return image, row % self.classes


@pytest.mark.parametrize("cache", ["memory", "none"])
def test_one_source_is_split_by_class_and_separate_sources_are_kept(cache):
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


class Domains(Photos):
    """Give images of two domains: those of the target domain are negatives."""

    def __init__(self, white, **options):
        super().__init__(**options)
        self.white = white

    def __getitem__(self, row):
        image, label = super().__getitem__(row)
        return {"inputs": image, "targets": label, "target_domain": self.white - image, "mask": image}


class Weighted(Photos):
    def __init__(self, **weights):
        super().__init__()
        self.weights = weights

    def __getitem__(self, row):
        return {**dict(zip(("inputs", "targets"), super().__getitem__(row), strict=True)), **self.weights}


@pytest.mark.parametrize("cache", ["memory", "none"])
def test_target_domain_is_prepared_like_inputs_and_other_entries_are_kept(cache):
    batch = custom(source=Domains(np.uint8(255)), cache=cache).train.source.gather(tf.constant([3, 4]))
    np.testing.assert_allclose(batch["target_domain"], -batch["inputs"], atol=1e-6)
    np.testing.assert_array_equal(batch["mask"][0], Photos()[3][0])


def test_cache_changes_placement_of_rows_but_no_bits(monkeypatch):
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
    assert_refused("data.cache=none", custom, source=Photos(), cache="memory")


def test_invalid_sources_and_options_are_refused():
    for options, message in (
        ({"source": None}, r"\+data.source._target_=.*plugins="),
        ({"source": 3}, "int.*__len__"),
        ({"test_source": Photos(shape=(5, 4))}, r"data.test_source \(Photos\) gives inputs uint8 \[5, 4\]"),
        ({"test_source": Photos(dtype=np.float32)}, "float32"),
        ({"split": "group"}, "needs groups"),
        ({"classes": 2}, r"data.source \(Photos\): 20 labels lie outside 0..1"),
        ({"threads": 0}, "data.threads=0"),
        ({"source": Weighted(sample_weight=1.0)}, "Expected 'sample_weights'"),
        ({"source": Weighted(sample_weights=-1.0)}, "row 0: a sample weight that is negative"),
        ({"source": Domains(np.float32(255))}, "uint8.*float32.*expected inputs and target_domain of one dtype and"),
        (
            {"source": Domains(np.float32(300), dtype=np.float32), "scale": "pixels"},
            "target_domain, row 0: values",
        ),
    ):
        assert_refused(message, custom, **{"source": Photos(), **options})


FORM = input_form((2, 2), np.dtype(np.float32), {"scale": "auto", "channels": "auto"}, "mine")


class Rows:
    """Give inputs that contain their row's number."""

    def __init__(self, size=50, change=None, row=17):
        self.size, self.change, self.row = size, change, row

    def __len__(self):
        return self.size

    def __getitem__(self, row):
        example = {"inputs": np.full([2, 2], row, np.float32), "targets": row % 3, "box": [row, row]}
        if row == self.row and self.change is not None:
            return self.change(example)
        return example


class Pairs(Rows):
    def __getitem__(self, row):
        example = super().__getitem__(row)
        return (example["inputs"], example["targets"]) if isinstance(example, dict) else example


class Gathered(Rows):
    __getitem__ = None

    def gather(self, rows):
        assert rows.dtype == np.int64
        examples = [Rows.__getitem__(self, row) for row in rows.tolist()]
        rows[:] = 0  # must not change the caller's array
        return {name: np.stack([np.asarray(each[name]) for each in examples]) for name in examples[0]}


def reader_of(examples, threads=3):
    return ExampleReader(examples, threads=threads, name="mine")


def read(examples, rows, **options):
    reader = reader_of(examples, **options)
    return reader.checked(np.array(rows, np.int64), np.arange(reader.size) % 3, FORM)


@pytest.mark.parametrize(("kind", "threads"), [(Rows, 3), (Pairs, 1), (Gathered, 3)])
def test_rows_are_read_in_requested_order(kind, threads):
    rows = [*range(30, 2, -1), 5, 5, 49]
    found = read(kind(), rows, threads=threads)
    assert found.keys() == {"inputs", "targets"} | ({"box"} if kind is not Pairs else set())
    np.testing.assert_array_equal(found["inputs"][:, 1, 1], rows)
    assert found["inputs"].dtype == np.float32


def raises(error):
    def change(example):
        raise error

    return change


def test_row_that_fails_or_differs_is_named():
    for change, message in (
        (raises(KeyError("photo")), r"KeyError: 'photo' \(test_custom.py:\d+\)"),
        (raises(StopIteration()), "StopIteration"),
        (lambda e: {**e, "inputs": np.zeros([2, 3], np.float32)}, "float32 of shape .2, 3.; expected .* .2, 2."),
        (lambda e: {**e, "inputs": np.zeros([2, 2])}, "inputs float64"),
        (lambda e: {**e, "inputs": np.full([2, 2], np.nan, np.float32)}, "NaN or infinite"),
        (lambda e: {**e, "targets": 0}, "target 0, but its label was 2"),
        (lambda e: {**e, "more": 1}, "more"),
        (lambda e: None, "received NoneType"),
        (lambda e: {**e, "inputs": [[1], [1, 2]]}, "ValueError"),
    ):
        examples = Rows(change=change)
        assert len(read(examples, [1, 16, 18, 2])["inputs"]) == 4
        assert_refused(f"^mine, row 17: .*{message}", read, examples, [1, 16, 17, 2])
    assert_refused(
        "^mine, row 1 and 3 more: OSError: gone", read, Gathered(change=raises(OSError("gone"))), [1, 16, 17, 2]
    )


def test_labels_come_from_attribute_or_one_pass_over_rows():
    class Labelled(Rows):
        labels = tuple(row % 3 for row in range(50))

        def __getitem__(self, row):
            assert row == 0, "an example was read"
            return super().__getitem__(row)

    for examples in (Labelled(), Rows(), Gathered()):
        labels = reader_of(examples).labels()
        assert labels.dtype == np.int64
        np.testing.assert_array_equal(labels, np.arange(50) % 3)
    for wrong, message in (([1, 2], "50 examples and 2 labels"), ([0.5] * 50, "float64 .*; expected integers")):
        Labelled.labels = wrong
        assert_refused(f"^mine.* {message}", reader_of(Labelled()).labels)


SLOW = """
import numpy as np

class Slow:
    labels = np.arange(60) % 3

    def __init__(self, fails=None):
        self.fails = fails

    def __len__(self):
        return 60

    def __getitem__(self, row):
        if row == self.fails:
            raise ValueError("broken")
        return np.random.default_rng(row).integers(0, 256, (4, 4)).astype(np.uint8), row % 3
"""


def test_worker_processes_read_same_bits_and_name_failing_row(tmp_path, monkeypatch):
    (tmp_path / "slow_examples.py").write_text(SLOW)  # for processes to import; this module would import TensorFlow
    monkeypatch.syspath_prepend(tmp_path)
    slow = importlib.import_module("slow_examples").Slow
    threads, processes = (custom(source=slow(), cache="none", workers=workers) for workers in (0, 2))
    batches = [TrainingBatches(each.train, batch_size=8, seed=1) for each in (threads, processes)]
    assert_same_bits(*(eager_batches(each, 3, 9) for each in batches))  # whichever step a run resumes from
    held = custom(source=slow(), workers=2).train.source.gather(tf.range(60, dtype=tf.int64))
    np.testing.assert_array_equal(held["targets"], np.arange(60) % 3)
    assert_refused(r"row 17: ValueError: broken \(slow_examples.py:1", custom, source=slow(17), workers=2)
    locked = Photos()
    locked.lock = threading.Lock()
    assert_refused("cannot be copied.*data.workers=0", custom, source=locked, workers=2)
    assert_refused("data.workers=-1", custom, source=slow(), workers=-1)
