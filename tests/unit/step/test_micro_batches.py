"""A batch cut into micro batches."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from trainer.errors import UserError
from trainer.step.micro_batches import MicroBatches


def batch_of(examples: int, **more) -> dict[str, tf.Tensor]:
    return {"inputs": tf.reshape(tf.range(2.0 * examples), [examples, 2]), "targets": tf.range(examples), **more}


def test_parts_are_consecutive_examples_and_the_rest_goes_into_each() -> None:
    batch = batch_of(6, mixed=tf.constant(0.3), table=tf.ones([4, 6]))
    micro = MicroBatches(batch, 3)
    assert (micro.count, micro.size) == (3, 2)
    parts = [micro.part(tf.constant(index)) for index in range(3)]
    for name in ("inputs", "targets"):
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), batch[name])
        assert parts[0][name].shape[0] == 2
    assert all(part["mixed"].numpy() == np.float32(0.3) and part["table"].shape == (4, 6) for part in parts)


def test_inputs_may_be_several_tensors() -> None:
    batch = {"inputs": {"left": tf.range(4), "right": tf.ones([4, 3])}}
    part = MicroBatches(batch, 2).part(tf.constant(1))
    assert part["inputs"]["left"].numpy().tolist() == [2, 3]
    assert part["inputs"]["right"].shape == (2, 3)


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        (None, [0.5, 0.5]),
        ([1.0, 1.0, 1.0, 0.0], [2 / 3, 1 / 3]),
        ([0.0, 0.0, 2.0, 0.5], [0.0, 1.0]),
        ([0.0, 0.0, 0.0, 0.0], [0.5, 0.5]),
    ],
)
def test_shares_are_those_of_the_example_weights(weights, shares) -> None:
    more = {} if weights is None else {"weights": tf.constant(weights)}
    np.testing.assert_allclose(MicroBatches(batch_of(4, **more), 2).shares, shares, rtol=1e-6)


def test_what_parts_gave_is_joined_in_the_order_of_the_batch() -> None:
    batch = batch_of(6)
    micro = MicroBatches(batch, 3)
    array = tf.TensorArray(tf.float32, 3)
    for index in range(3):
        array = array.write(index, micro.part(tf.constant(index))["inputs"])
    np.testing.assert_array_equal(micro.joined(array), batch["inputs"])


def test_batches_that_do_not_divide_are_refused() -> None:
    with pytest.raises(UserError, match="trainer.accumulation_steps=4 received for batches of 6 examples"):
        MicroBatches(batch_of(6), 4)

    @tf.function(input_signature=[tf.TensorSpec([None, 2])], autograph=False)
    def unknown(inputs):
        MicroBatches({"inputs": inputs}, 2)

    with pytest.raises(UserError, match="for batches of an unknown number of examples"):
        unknown.get_concrete_function()
