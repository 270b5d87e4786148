"""Layers on values of our own, as an evaluation calls them: with the hooks' contexts, in batches of its size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hookline.deploy.fold_signs import EvaluatedLayers

SHAPE, BATCH = (2, 3, 4), 5
ROWS = BATCH * 2 * 3


class Hook:
    """Note when it is entered and left, and with what."""

    def __init__(self, name: str, notes: list[Any]) -> None:
        self.name, self.notes = name, notes

    @contextmanager
    def around_forward(self, context: Any) -> Iterator[None]:
        self.notes.append((f"enter {self.name}", context))
        yield
        self.notes.append((f"leave {self.name}", context))


def evaluated(notes: list[Any], asked: list[Any]) -> EvaluatedLayers:
    def forward(step: tf.Tensor, batch: Any, **options: Any) -> Any:
        asked.append((tf.get_static_value(step), step.dtype, batch, options))
        first = SimpleNamespace(hooks=[Hook("a", notes), Hook("b", notes)], context="net")
        return SimpleNamespace(passes={"net": first, "other": SimpleNamespace(hooks=[Hook("c", notes)], context="no")})

    trainer = SimpleNamespace(forward=forward)
    return EvaluatedLayers(trainer, "net", batch_size=BATCH, step=7)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, ROWS, 3 * ROWS - 2])
def test_each_row_gets_what_the_calls_make_of_it_in_order(count: int):
    values = np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32)
    compute = evaluated([], [])([lambda x: x * [1.0, 2.0, 3.0, 4.0], lambda x: x + 1.0], SHAPE)
    found = compute(values)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, values * np.float32([1, 2, 3, 4]) + np.float32(1))
    np.testing.assert_array_equal(compute(values[:1]), found[:1])


def test_the_calls_see_filled_batches_of_the_evaluations_size_inside_the_contexts_of_their_network():
    notes: list[Any] = []
    asked: list[Any] = []
    seen: list[np.ndarray] = []

    def note(values: np.ndarray) -> np.ndarray:
        seen.append(values.reshape(ROWS, 4).copy())
        return values

    def call(tensor: tf.Tensor) -> tf.Tensor:
        notes.append(("call", tuple(tensor.shape)))
        return tf.ensure_shape(tf.numpy_function(note, [tensor], tf.float32), tensor.shape)

    values = np.arange(4 * (ROWS + 2), dtype=np.float32).reshape(-1, 4)
    np.testing.assert_array_equal(evaluated(notes, asked)([call], SHAPE)(values), values)
    entered = [("enter a", "net"), ("enter b", "net")]
    assert notes == [*entered, ("call", (BATCH, *SHAPE)), ("leave b", "net"), ("leave a", "net")]
    assert asked == [(7, tf.int64, {}, {"objective": "", "training": False})]
    np.testing.assert_array_equal(seen[1][:2], values[ROWS:])
    assert (seen[1][2:] == values[-1]).all()  # the last row again, no other numbers
