"""A run that is over holds no graph."""

from __future__ import annotations

import gc
import weakref

import tensorflow as tf

from hookline.trainer.run.release import released_graphs
from tests.support.toy import toy_loop


@tf.custom_gradient
def doubled(value: tf.Tensor) -> tuple[tf.Tensor, object]:
    return 2.0 * value, lambda upstream: 5.0 * upstream


def test_the_graphs_of_a_loop_go_with_it() -> None:
    with released_graphs():
        loop = toy_loop()
        loop.run(0, 2)
    graphs = [weakref.ref(loop.graph), weakref.ref(loop.loop_graph)]
    assert all(graph() is not None for graph in graphs)
    del loop
    gc.collect()
    assert [graph() for graph in graphs] == [None, None]


def test_what_was_traced_before_can_still_be_differentiated() -> None:
    traced = tf.function(doubled, autograph=False).get_concrete_function(tf.TensorSpec([], tf.float32))
    with released_graphs():
        tf.function(doubled, autograph=False)(tf.constant(1.0))
    value = tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch(value)
        result = traced(value)
    assert float(tape.gradient(result, value)) == 5.0
