"""Runs without a config: of given parts, as host hooks see them, and of the toy network, ready to train."""

from functools import cache
from types import SimpleNamespace

import keras
import numpy as np
import tensorflow as tf

from hookline.trainer.input.batches import TrainingBatches
from hookline.trainer.input.data import ArraySource, Split
from hookline.trainer.objective import Shown
from hookline.trainer.replicas.replica import Replica
from hookline.trainer.run.checkpoint import CheckpointStore, MemoryStore
from hookline.trainer.run.control import Best, Report
from hookline.trainer.run.run import Run
from hookline.trainer.step.evaluate import Evaluator
from tests.support.toy import BATCH, SIZE, toy_batch, toy_loop, toy_network

SHOWN = ("pictures", "embeddings")


def batches_of(inputs, batch_size):
    arrays = {"inputs": inputs, "targets": np.zeros(len(inputs), np.int64)}
    split = Split("train", ArraySource(arrays, lambda batch: batch), np.arange(len(inputs)))
    return TrainingBatches(split, batch_size=batch_size, seed=0)


def seen_run(
    directory, networks=None, *, training=None, batch_size=16, steps_per_epoch=10.0, held_out=None, views=None, **fields
):
    """Return a run as host hooks see it; nothing is built or traced; other `fields` go to the run."""
    networks = dict(networks or {})
    if training is None:
        shapes = [getattr(each.model, "input_shape", None) for each in networks.values()]
        shape = [size or 3 for size in shapes[0][1:]] if shapes and isinstance(shapes[0], tuple) else [4]
        drawn = np.random.default_rng(0).normal(size=[round(batch_size * steps_per_epoch), *shape])
        training = batches_of(drawn.astype(np.float32), batch_size)
    trainer = SimpleNamespace(networks=networks, replica=Replica(), objectives=[], hooks=[], loss_scale=None)
    trainer.layer_losses = False
    given = {
        "recipe": "toy",
        "config": {},
        "data": None,
        "training": training,
        "loop": SimpleNamespace(trainer=trainer, trainers=[trainer]),
        "held_out": {name: SimpleNamespace(split=split) for name, split in (held_out or {}).items()},
        "hooks": [],
        "total_steps": 100,
        "best": Best("metric/accuracy", "max"),
        "_store": MemoryStore(),
    }
    run = Run(directory, **{**given, **fields})
    views = {**dict.fromkeys(("pictures", "embeddings", "distributions"), lambda *_: {}), **(views or {})}
    run.views = SimpleNamespace(**{"first_pictures": {}, **views})
    run.views.shown = lambda report: Shown(*(views[kind](report.step, report.split) for kind in SHOWN))
    run.graph = tf.Graph().as_graph_def
    return run


def evaluate(hook, run, step, value, split="validation"):
    """Report the monitored value of an evaluation to a hook; return why the run should stop, if it should."""
    run.step = step
    hook.on_evaluation_end(run, Report(step, split, {run.best.monitor: value, "loss/other": 0.0}))
    return run.control.stop_reason


@cache
def evaluator_of(loop):
    return Evaluator(loop.trainer, toy_batch, SIZE // BATCH)


def toy_run(directory, hooks=(), graph_hooks=(), *, loop=None, epochs=2, report_every=None, **fields):
    """Return a run of the toy network that is ready to train; both held-out splits are its training examples."""
    loop = loop or toy_loop(graph_hooks, network=toy_network(optimizer=keras.optimizers.Adam(0.05)))
    pace = SimpleNamespace(batch_size=BATCH, steps_per_epoch=SIZE / BATCH, first_step=0, placement="device")
    held_out = dict.fromkeys(("validation", "test"), evaluator_of(loop))
    settings = {"evaluate_every_epochs": 1, "report_every_steps": report_every}
    given = {"_store": CheckpointStore(directory / "checkpoints"), **fields}
    best = Best("metric/accuracy", "max")
    total = round(epochs * SIZE / BATCH)
    return Run(directory, "toy", {"trainer": settings}, None, pace, loop, held_out, list(hooks), total, best, **given)
