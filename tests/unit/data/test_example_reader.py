"""A user's own object is read as it is, by several threads, and every row that differs is named."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from hookline.recipes.data.custom import ExampleReader
from hookline.recipes.data.input_form import input_form
from hookline.trainer.errors import UserError

FORM = input_form((2, 2), np.dtype(np.float32), scale="auto", channels="auto", where="mine")


class Rows:
    """Give inputs that hold their row's number."""

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
        rows[:] = 0  # whose array is it?
        return {name: np.stack([np.asarray(each[name]) for each in examples]) for name in examples[0]}


def reader_of(examples, threads=3):
    return ExampleReader(examples, threads=threads, name="mine")


def read(examples, rows, **options):
    reader = reader_of(examples, **options)
    return reader.reading(np.arange(reader.size) % 3, FORM)(np.array(rows, np.int64))


@pytest.mark.parametrize(("kind", "threads"), [(Rows, 3), (Pairs, 1), (Gathered, 3)])
def test_rows_come_in_the_order_asked_for(kind, threads):
    rows = [*range(30, 2, -1), 5, 5, 49]
    found = read(kind(), rows, threads=threads)
    assert found.keys() == {"inputs"} | ({"box"} if kind is not Pairs else set())
    np.testing.assert_array_equal(found["inputs"][:, 1, 1], rows)
    assert found["inputs"].dtype == np.float32


def test_examples_are_read_at_once_but_never_by_more_threads_than_told():
    class Slow(Rows):
        running = most = 0
        lock = threading.Lock()

        def __getitem__(self, row):
            with self.lock:
                Slow.running += 1
                Slow.most = max(Slow.most, Slow.running)
            time.sleep(0.003)
            with self.lock:
                Slow.running -= 1
            return super().__getitem__(row)

    for threads, most in ((4, range(2, 5)), (1, range(1, 2))):
        Slow.most = 0
        reader = reader_of(Slow(), threads=threads)
        reading = reader.reading(np.arange(50) % 3, FORM)
        batches = [threading.Thread(target=reading, args=(np.arange(12),)) for _ in range(3)]
        for batch in batches:
            batch.start()
        for batch in batches:
            batch.join()
        assert Slow.most in most


def test_an_object_may_use_its_arrays_again():
    class Reusing(Rows):
        held = np.zeros([2, 2], np.float32)

        def __getitem__(self, row):
            self.held[:] = row
            return self.held, row % 3

    reader = reader_of(Reusing(), threads=1)
    reading = reader.reading(np.arange(50) % 3, FORM)
    first = reading(np.array([3, 4]))["inputs"]
    reading(np.array([8, 9]))
    np.testing.assert_array_equal(first[:, 0, 0], [3, 4])


def raises(error):
    def change(example):
        raise error

    return change


def test_a_row_that_fails_or_differs_is_named():
    for change, message in (
        (raises(KeyError("photo")), r"KeyError: 'photo' \(test_example_reader.py:\d+\)"),
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
        with pytest.raises(UserError, match=f"^mine, row 17: .*{message}") as caught:
            read(examples, [1, 16, 17, 2])
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="^mine, row 17: OSError: gone"):
        read(Gathered(change=raises(OSError("gone"))), [1, 16, 17, 2])


def test_labels_are_an_attribute_or_one_pass():
    class Labelled(Rows):
        labels = tuple(row % 3 for row in range(50))

        def __getitem__(self, row):
            assert row == 0, "an example was read"
            return super().__getitem__(row)

    for examples in (Labelled(), Rows(), Gathered()):
        labels = reader_of(examples).labels()
        assert labels.dtype == np.int64
        np.testing.assert_array_equal(labels, np.arange(50) % 3)
    for wrong in ([1, 2], [0.5] * 50, [[1]] * 50):
        Labelled.labels = wrong
        with pytest.raises(UserError, match="mine: labels of dtype .*; expected integers .50."):
            reader_of(Labelled()).labels()
