"""A loop over one network with hooks that are named and built as in a run."""

from dataclasses import replace

import numpy as np
import tensorflow as tf

from hookline.hook_list import hook_name
from hookline.trainer.run.build_run import _rounded
from hookline.trainer.run.state import shipped_weights
from hookline.trainer.step.loop import ChunkLoop
from hookline.trainer.step.stage import order_hooks
from hookline.trainer.step.trainer import Trainer
from tests.support.toy import CLASSES, StatelessHook, ToyObjective, build_context, toy_batch


class Given(StatelessHook):
    """Replace the gradients of every step with given ones, [steps, 6, 2]."""

    def __init__(self, gradients):
        super().__init__("given")
        self.given = tf.constant(np.reshape(gradients, [-1, 6, 2]), tf.float32)

    def transform_gradients(self, gradients, context):
        return dict.fromkeys(gradients, self.given[context.step])


def named(hook, name=""):
    hook.name = name or hook.name or hook_name(type(hook))
    return hook


def built(network, *hooks, total_steps=100, accumulation_steps=1, objective=None):
    """Return the trainer of a network with hooks, built as in a run of 4 steps to the epoch; nothing is traced."""
    ordered = order_hooks([named(hook) for hook in hooks])
    for hook in ordered:
        network.model = hook.rebuild_model(network.model)
    for hook in ordered:
        network.taps |= hook.request_taps(network.model)
    if not network.optimizer.built:
        network.optimizer.build(network.model.trainable_variables)
    states = {}
    for index, hook in enumerate(ordered):
        rounded = _rounded(hook, ordered[:index])
        context = replace(build_context(network), states=dict(states), rounded=rounded, classes=CLASSES)
        hook.build(replace(context, total_steps=total_steps))
        states |= {f"{hook.name}/{name}": variable for name, variable in hook.declare().state.items()}
    objectives = [objective or ToyObjective()]
    return Trainer([network], objectives, ordered, seed=0, accumulation_steps=accumulation_steps)


def hooked(network, *hooks, batch=toy_batch, xla=False, **settings):
    """Return a traced and audited loop over a network."""
    return ChunkLoop(built(network, *hooks, **settings), batch, xla=xla)


def used_by(loop, step):
    """Return the values that evaluations use instead of weights and moving statistics."""
    return shipped_weights(loop.trainer, step)["model"]


def binary_targets(step):
    batch = toy_batch(step)
    return {**batch, "targets": batch["targets"] % (CLASSES - 1)}
