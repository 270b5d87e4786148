"""From a config, or the objects that it stands for, to everything that a run needs, built and traced."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hookline.trainer.hook import Hook, HostHook
from hookline.trainer.input.augment import Augment, Augmentation
from hookline.trainer.input.batches import BatchQueue, EvaluationBatches, TrainingBatches
from hookline.trainer.input.data import Data, Split
from hookline.trainer.input.sampling import Setting, class_shares
from hookline.trainer.input.shares import check_class_parts
from hookline.trainer.objective import Batch
from hookline.trainer.replicas.replica import Replica
from hookline.trainer.run.blueprint import Blueprint, from_config
from hookline.trainer.run.build_trainer import build_trainer
from hookline.trainer.run.precision import FLOAT32, computing_in
from hookline.trainer.run.state import ShippedWeights, share_variables
from hookline.trainer.run.views import Evaluated
from hookline.trainer.step.compile import keep_xla_off, python_ops, use_xla
from hookline.trainer.step.evaluate import Evaluator, Observer
from hookline.trainer.step.loop import ChunkLoop
from hookline.trainer.step.trainer import Trainer

Config = Mapping[str, Any]


@dataclass
class Assembly:
    """Hold a run, ready to start.

    Attributes:
        data: the opened data.
        trainer: networks, objectives and graph hooks; of several replicas, those of the first.
        training: the batches of the training split.
        loop: the traced training loop of all replicas of this process.
        observer: runs what graph hooks observe on the validation split.
        evaluated: the held-out splits with their evaluations, by name: validation and test where there are such.
        host_hooks: in order.
        total_steps: steps to make.
        steps_per_epoch: steps an epoch, perhaps a fraction.
        trace_seconds: how long it took to trace training and evaluation, and to audit the step.
        shipped: reads what evaluation uses in place of the weights.
    """

    data: Data
    trainer: Trainer
    training: TrainingBatches
    loop: ChunkLoop
    observer: Observer
    evaluated: dict[str, Evaluated]
    host_hooks: list[HostHook]
    total_steps: int
    steps_per_epoch: float
    trace_seconds: float = 0.0
    shipped: ShippedWeights | None = None

    @property
    def validation(self) -> Evaluator:
        """Return the traced evaluation of the validation split."""
        return self.evaluated["validation"].evaluator

    @property
    def test(self) -> Evaluator:
        """Return the traced evaluation of the test split."""
        return self.evaluated["test"].evaluator

    @property
    def evaluators(self) -> dict[str, Evaluator]:
        """Return the traced evaluations, by the name of their split."""
        return {name: each.evaluator for name, each in self.evaluated.items()}

    @property
    def hooks(self) -> list[Hook]:
        """Return all hooks: those of the graph, then those of the host; one that is both comes once."""
        return list({id(hook): hook for hook in (*self.trainer.hooks, *self.host_hooks)}.values())

    @property
    def best_from_step(self) -> int:
        """Return the step from which evaluations count: the hooks' promises hold from there."""
        return min(self.total_steps, max((hook.declare().best_from_step for hook in self.trainer.hooks), default=0))

    @property
    def measures(self) -> list[str]:
        """Return the names of the training metrics."""
        return self.loop.accumulators.names


def assemble(config: Config, replicas: Sequence[Replica] = (Replica(),)) -> Assembly:
    """Build everything that a config describes, then trace and audit the step.

    All names and arguments are checked before the data is opened, the data before a network is built.
    """
    return assemble_blueprint(from_config(config), replicas)


def assemble_blueprint(blueprint: Blueprint, replicas: Sequence[Replica] = (Replica(),)) -> Assembly:
    """Build everything that a blueprint says, then trace and audit the step."""
    with computing_in(_precision(blueprint.settings)):
        return _assemble(blueprint, replicas)


def _assemble(blueprint: Blueprint, replicas: Sequence[Replica]) -> Assembly:
    settings = blueprint.settings
    count = replicas[0].count
    check_class_parts(
        settings["classes_per_batch"], count, received=f"{count} replicas", where="for each", fewer="replicas"
    )
    blueprint.check()
    augments = blueprint.build_augments()
    hooks = blueprint.build_hooks()
    keras.utils.set_random_seed(blueprint.seed)
    data = blueprint.open_data()
    training = _training_batches(data, blueprint, augments)
    total_steps = _total_steps(settings, training)
    parts = partial(
        build_trainer, blueprint, data=data, training=training, total_steps=total_steps, precision=_precision(settings)
    )
    trainer, hooks = parts(hooks, replica=replicas[0])
    others = [_build_again(blueprint, parts, trainer, replica) for replica in replicas[1:]]
    start = time.monotonic()
    loop = _trace_loop([trainer, *others], training, settings["compile"])
    size, placement = settings["evaluation_batch_size"], settings["placement"]
    evaluated = {split.name: Evaluated(split, _evaluator(trainer, split, size, placement)) for split in data.splits[1:]}
    trace_seconds = time.monotonic() - start
    observer = Observer(trainer, data.validation, batch_size=size, placement=placement)
    host_hooks = [hook for hook in hooks if isinstance(hook, HostHook)]
    return Assembly(
        data,
        trainer,
        training,
        loop,
        observer,
        evaluated,
        host_hooks,
        total_steps,
        training.steps_per_epoch,
        trace_seconds,
        ShippedWeights(trainer),
    )


def _build_again(blueprint: Blueprint, parts: Callable[..., Any], first: Trainer, replica: Replica) -> Trainer:
    """Return the trainer of one more replica of this process: the same names, the same values."""
    policy = keras.config.dtype_policy()
    keras.utils.clear_session()  # Keras numbers layers by what was built before
    keras.config.set_dtype_policy(policy)
    hooks = blueprint.build_hooks()
    keras.utils.set_random_seed(blueprint.seed)
    trainer, _ = parts(hooks, replica=replica)
    share_variables([first, trainer])
    return trainer


def _precision(settings: Config) -> str:
    return str(settings.get("precision", FLOAT32))  # a run of before has no such setting


def _training_batches(data: Data, blueprint: Blueprint, augments: list[Augment]) -> TrainingBatches:
    settings = blueprint.settings
    return TrainingBatches(
        data.train,
        batch_size=settings["batch_size"],
        seed=blueprint.seed,
        placement=settings["placement"],
        classes_per_batch=settings["classes_per_batch"],
        class_shares=_class_shares(data, settings.get("class_sampling")),
        augmentation=Augmentation(augments, classes=data.classes) if augments else None,
        first_step=blueprint.first_step,
    )


def _class_shares(data: Data, setting: Setting | None) -> np.ndarray | None:
    if setting is None:
        return None
    return class_shares(setting, data.train.labels, data.classes, data.class_names)


def _trace_loop(trainers: list[Trainer], training: TrainingBatches, mode: str) -> ChunkLoop:
    """Return the traced loop, compiled by XLA where that is wanted and possible. What blocks it may only show then."""
    xla = use_xla(mode, trainers[0].hooks, replicas=trainers[0].replica.count)
    batches = [_batches_of(each.replica, training) for each in trainers]
    loop = ChunkLoop(trainers, batches, xla=xla)
    if xla and (blocking := python_ops(loop.graph)):
        keep_xla_off(mode, blocking)
        return ChunkLoop(trainers, batches, xla=False)
    return loop


def _batches_of(replica: Replica, training: TrainingBatches) -> Callable[[tf.Tensor], Batch]:
    part = {"replica": replica.index, "replicas": replica.count}
    return partial(training.batch, **part) if training.placement == "device" else BatchQueue(training, **part)


def _evaluator(trainer: Trainer, split: Split, batch_size: int, placement: str) -> Evaluator:
    batches = EvaluationBatches(split, batch_size=batch_size, placement=placement)
    return Evaluator(trainer, batches.batch, batches.count)


def _total_steps(settings: Config, training: TrainingBatches) -> int:
    if settings["steps"] is not None:
        return int(settings["steps"])
    return training.epoch_end(settings["epochs"])
