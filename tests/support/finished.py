"""Finished runs of a small network, made without training and without a directory."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import keras
import numpy as np
import tensorflow as tf

from hookline.trainer.run.run import Run
from hookline.trainer.step.evaluate import Evaluator
from tests.support.masking import masked_loop, small_network
from tests.support.toy import StatelessHook, toy_arrays, toy_batch

BATCHES = 4


class Halve(StatelessHook):
    def transform_weights(self, weights, context):
        return {name: 0.5 * value for name, value in weights.items()}


@dataclass
class Rows:
    def gather(self, rows):
        inputs, targets = toy_arrays()
        return {"inputs": tf.gather(tf.constant(inputs), rows), "targets": tf.gather(tf.constant(targets), rows)}


def finished_run(*hooks):
    """Return a run of the toy network whose training and test split are 64 rows of the toy data."""
    loop = masked_loop(hooks, small_network(keras.optimizers.SGD(0.1)))
    split = SimpleNamespace(indices=np.arange(16 * BATCHES), source=Rows())
    test = Evaluator(loop.trainer, lambda index: {**toy_batch(index), "weights": tf.ones([16])}, BATCHES)
    test.split = split
    run = SimpleNamespace(
        trainer=loop.trainer, training=SimpleNamespace(split=split), held_out={"test": test}, checkpoint="last", step=7
    )
    return cast(Run, run)
