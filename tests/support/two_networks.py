"""Two networks called generator and discriminator, each with an objective of its own: a recipe to run hooks on."""

from __future__ import annotations

from types import SimpleNamespace

import keras
import tensorflow as tf

from hookline.trainer.hook import GraphHook
from hookline.trainer.network import Network
from hookline.trainer.recipe import Recipe
from hookline.trainer.run.blueprint import bind_hooks
from hookline.trainer.run.build_run import _build_hooks, _prepare_networks
from hookline.trainer.step.loop import ChunkLoop
from hookline.trainer.step.trainer import Trainer
from tests.support.toy import ToyObjective, toy_batch

NAMES = ("generator", "discriminator")


class Watching(ToyObjective):
    """Train one network on the classes, and run another one beside it."""

    def __init__(self, network, other):
        super().__init__(network, f"train_{network}")
        self.other = other

    def compute(self, forward, batch):
        output = super().compute(forward, batch)
        logits = tf.stop_gradient(forward(self.other, batch["inputs"]))
        right = tf.equal(tf.argmax(logits, -1), tf.cast(batch["targets"], tf.int64))
        output.metrics["other_accuracy"] = tf.cast(right, tf.float32)
        return output

    def sample(self, forward):
        shape = forward.passes[self.network].context.network.model.input_shape[1:]
        return {"sampled": forward(self.network, tf.ones([2, *shape]))}

    def split_metrics(self, collected):
        return {"sampled_logit": tf.reduce_max(collected["sampled"])}


def watching_pair():
    generator, discriminator = NAMES
    return [Watching(discriminator, generator), Watching(generator, discriminator)]


def two_networks(*, parts, label_smoothing=0.0):
    assert label_smoothing == 0.0
    shape, classes = parts.data.input_shape, parts.data.classes
    networks = [
        Network(name, parts.build_model(input_shape=shape, classes=classes), parts.build_optimizer()) for name in NAMES
    ]
    return Recipe(networks, watching_pair())


def traced_loop(networks, objectives, build_hook=None, *, batch=toy_batch, classes=3, total_steps=4, **settings):
    """Return a traced and audited loop with a hook bound to networks as an assembled run binds it."""
    hooks = bind_hooks([build_hook("")] if build_hook else [], networks, objectives, build_hook or _none)
    bound = [hook for hook in hooks if isinstance(hook, GraphHook)]
    _prepare_networks(list(networks), bound, None)
    batches = SimpleNamespace(steps_per_epoch=1.0, batch_size=16)
    _build_hooks(list(networks), bound, batches, total_steps, 0, classes)
    return ChunkLoop(Trainer(networks, objectives, bound, seed=0, **settings), batch, xla=False)


def _none(key):
    raise AssertionError(key)


def fresh(build, names=NAMES):
    networks = []
    for name in names:
        keras.utils.set_random_seed(len(name))
        networks.append(Network(name, build(), keras.optimizers.Adam(0.01)))
    return networks
