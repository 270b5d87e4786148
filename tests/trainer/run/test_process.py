"""A lack of memory is one line with the shape that was asked for; a run that is over holds no graph."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.run.process import estimated, memory_errors, released_graphs
from tests.support.command import run_small


def test_what_cannot_be_told_is_left_out_with_a_warning() -> None:
    assert estimated("The plan", lambda: 3, 0) == 3
    with pytest.warns(UserWarning, match=r"The plan cannot be estimated.*KeyError: 'a'"):
        assert estimated("The plan", lambda: {}["a"], 0) == 0


SHAPE = "for a tensor of shape"


def exhausted(text: str) -> Exception:
    return tf.errors.ResourceExhaustedError(None, None, text)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (exhausted("OOM when allocating tensor with shape[64,128] and type bfloat16 on"), rf"{SHAPE} \[64, 128\], bfl"),
        (MemoryError(), r"not enough memory\. Expected a smaller trainer.batch_size"),
        (exhausted("Out of memory while trying to allocate 536870912 bytes."), "not enough memory"),
        (exhausted("/runs/events; No space left on device"), None),
        (exhausted("Too many open files in the room"), None),
        (tf.errors.InvalidArgumentError(None, None, "OOM is not a word of this error"), None),
    ],
)
def test_a_lack_of_memory_is_told_and_other_errors_stay(error: Exception, told: str | None) -> None:
    with pytest.raises(UserError if told else type(error), match=told) as caught, memory_errors():
        raise error
    assert (caught.value.__cause__ if told else caught.value) is error


def test_numpy_is_asked_for_more_than_there_is() -> None:
    with pytest.raises(UserError, match=rf"{SHAPE} \[100000000, 1000000\], int64"), memory_errors():
        np.ones((10**8, 10**6), np.int64)


@pytest.mark.long  # TensorFlow waits for ten seconds for somebody to free some
def test_a_run_that_finds_no_room_for_its_model_leaves_nothing(tmp_path) -> None:
    with pytest.raises(UserError, match=rf"{SHAPE} \[100000000, 1000000\], float"), memory_errors():
        tf.random.uniform([10**8, 10**6])
    with pytest.raises(UserError, match=SHAPE):
        run_small("baseline", "model.units=[10000000000]", run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@tf.custom_gradient
def doubled(value: tf.Tensor) -> tuple[tf.Tensor, object]:
    return 2.0 * value, lambda upstream: 5.0 * upstream


def test_what_was_traced_before_can_still_be_differentiated() -> None:
    traced = tf.function(doubled, autograph=False).get_concrete_function(tf.TensorSpec([], tf.float32))
    with released_graphs():
        tf.function(doubled, autograph=False)(tf.constant(1.0))
    value = tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch(value)
        result = traced(value)
    assert float(tape.gradient(result, value)) == 5.0
