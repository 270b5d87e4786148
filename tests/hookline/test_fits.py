"""Repeated fits leave nothing behind."""

from __future__ import annotations

import gc
from collections.abc import Callable

import keras
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.framework.func_graph import FuncGraph

from tests.support.door import by_python, held_out, images

pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.full]
KINDS = (FuncGraph, tf.Variable, keras.Model, keras.optimizers.Optimizer)
HOOKS = ("bnn_rounding", "ema")


def alive() -> list[int]:
    """Count what a fit builds: graphs, variables, models, optimizers, and gradients that TensorFlow has registered."""
    for _ in range(3):
        gc.collect()
    objects = gc.get_objects()
    return [*(sum(isinstance(each, kind) for each in objects) for kind in KINDS), len(ops.gradient_registry._registry)]


def after_two_and_four(cycle: Callable[[], None]) -> list[list[int]]:
    found = []
    for _ in range(4):
        cycle()
        found.append(alive())
    return [found[1], found[3]]


def use(trainer) -> None:
    trainer.evaluate(*held_out())
    trainer.predict(held_out()[0])
    assert trainer.model.count_params()


def test_new_trainers_leave_nothing_behind() -> None:
    after_two, after_four = after_two_and_four(lambda: use(by_python(*HOOKS, epochs=1)[0]))
    assert after_two == after_four


def test_fits_of_one_trainer_leave_nothing_behind() -> None:
    trainer, _ = by_python(*HOOKS, epochs=1)
    data = images()

    def cycle() -> None:
        trainer.fit(data["x_train"], data["y_train"], validation_data=held_out(), batch_size=16, verbose=0)
        use(trainer)

    after_two, after_four = after_two_and_four(cycle)
    assert after_two == after_four
