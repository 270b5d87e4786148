"""A lack of memory is one line with the shape that was asked for; other lacks stay what they are."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.support.command import run_small
from trainer.errors import UserError
from trainer.run.out_of_memory import memory_errors

REMEDY = "Expected a smaller trainer.batch_size, more trainer.accumulation_steps, smaller inputs or a smaller model."


def told_of(error: BaseException) -> str:
    with pytest.raises(UserError) as caught, memory_errors():
        raise error
    assert caught.value.__cause__ is error
    return str(caught.value)


def test_numpy_is_asked_for_more_than_there_is() -> None:
    with pytest.raises(UserError, match=r"for a tensor of shape \[100000000, 1000000\], int64\. Exp"), memory_errors():
        np.ones((10**8, 10**6), np.int64)


@pytest.mark.long  # TensorFlow waits for ten seconds for somebody to free some
def test_tensorflow_is_asked_for_more_than_there_is() -> None:
    with pytest.raises(UserError, match=r"for a tensor of shape \[100000000, 1000000\], float\. Exp"), memory_errors():
        tf.random.uniform([10**8, 10**6])


def test_the_shape_is_read_from_what_tensorflow_says() -> None:
    text = "OOM when allocating tensor with shape[64,128] and type bfloat16 on /job:localhost/device:CPU:0 by allocator"
    told = told_of(tf.errors.ResourceExhaustedError(None, None, text))
    assert told == f"There is not enough memory for a tensor of shape [64, 128], bfloat16. {REMEDY}"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        tf.errors.ResourceExhaustedError(None, None, "Out of memory while trying to allocate 536870912 bytes."),
        tf.errors.ResourceExhaustedError(None, None, "{{node a}} OOM when allocating"),
    ],
)
def test_without_a_shape_the_remedy_is_told(error: Exception) -> None:
    assert told_of(error) == f"There is not enough memory. {REMEDY}"


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.ResourceExhaustedError(None, None, "/runs/events; No space left on device"),
        tf.errors.ResourceExhaustedError(None, None, "Too many open files in the room"),
        tf.errors.InvalidArgumentError(None, None, "OOM is no word of this error"),
        UserError("another one"),
    ],
)
def test_other_errors_stay(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, memory_errors():
        raise error
    assert caught.value is error


@pytest.mark.long
def test_a_run_that_finds_no_room_for_its_model_leaves_nothing(tmp_path) -> None:
    with pytest.raises(UserError, match="not enough memory for a tensor of shape"):
        run_small("baseline", "model.units=[10000000000]", run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
