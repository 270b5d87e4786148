"""From a config to everything that a run needs, built and traced."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.config.build import bind, build
from trainer.errors import UserError
from trainer.hook import GraphHook, Hook, HostHook
from trainer.input.augment import Augment, Augmentation
from trainer.input.batch_queue import BatchQueue
from trainer.input.batches import EvaluationBatches, TrainingBatches
from trainer.input.classes import Setting, class_shares, class_weights
from trainer.input.data import Data, Split
from trainer.network import Network
from trainer.order import order_hooks
from trainer.recipe import Parts, Recipe
from trainer.run.augments import build_augments
from trainer.run.binding import bind_hooks
from trainer.run.build_hook import build_hook
from trainer.run.checkpoint import CheckpointStore
from trainer.run.precision import FLOAT32, computing_in, loss_scale_for
from trainer.run.state import assign_variables
from trainer.run.views import Evaluated
from trainer.schedules import ScaledRate, SeveralUpdates
from trainer.step.compile import keep_xla_off, python_ops, use_xla
from trainer.step.context import BuildContext
from trainer.step.evaluate import Evaluator
from trainer.step.loop import ChunkLoop
from trainer.step.observe import Observer
from trainer.step.stage import in_stage
from trainer.step.trainer import Trainer

Config = Mapping[str, Any]


@dataclass
class Assembly:
    """Hold a run, ready to start.

    Attributes:
        trainer: networks, objectives and graph hooks.
        training: the batches of the training split.
        loop: the traced training loop.
        observer: runs what graph hooks observe on the validation split.
        evaluated: the validation and the test split with their evaluations, by name.
        host_hooks: in order.
        total_steps: steps to make.
        steps_per_epoch: steps an epoch, perhaps a fraction.
        trace_seconds: how long it took to trace training and evaluation, and to audit the step.
    """

    trainer: Trainer
    training: TrainingBatches
    loop: ChunkLoop
    observer: Observer
    evaluated: dict[str, Evaluated]
    host_hooks: list[HostHook]
    total_steps: int
    steps_per_epoch: float
    trace_seconds: float = 0.0

    @property
    def validation(self) -> Evaluator:
        """Return the traced evaluation of the validation split."""
        return self.evaluated["validation"].evaluator

    @property
    def test(self) -> Evaluator:
        """Return the traced evaluation of the test split."""
        return self.evaluated["test"].evaluator

    @property
    def hooks(self) -> list[Hook]:
        """Return all hooks: those of the graph, then those of the host; one that is both comes once."""
        return list({id(hook): hook for hook in (*self.trainer.hooks, *self.host_hooks)}.values())

    @property
    def settled_at(self) -> int:
        """Return the step from which evaluations count: the hooks' promises hold from there."""
        return min(self.total_steps, max((hook.settled_at() for hook in self.trainer.hooks), default=0))

    @property
    def measures(self) -> list[str]:
        """Return the names of the training metrics."""
        return self.loop.accumulators.names


def assemble(config: Config) -> Assembly:
    """Build everything that a config describes, then trace and audit the step.

    All names and arguments are checked before the data is opened, the data before a network is built.

    Args:
        config: the resolved config.

    Raises:
        UserError: a mistake that the user can mend.
    """
    with computing_in(_precision(config["trainer"])):
        return _assemble(config)


def _assemble(config: Config) -> Assembly:
    settings, plugins = config["trainer"], config["plugins"]
    hook_nodes = {name: node for name, node in config["hooks"].items() if node is not None}
    for node in (config["data"], config["model"], config["schedule"], config["optimizer"], config["task"]):
        bind(node, plugins=plugins)
    keras.utils.set_random_seed(config["seed"])  # a hook may be given layers, which are built with it
    augments = build_augments(config.get("augment", {}), plugins)
    hooks = order_hooks([build_hook(name, node, plugins=plugins) for name, node in hook_nodes.items()])
    keras.utils.set_random_seed(config["seed"])
    data: Data = build(config["data"], plugins=plugins)
    training = _training_batches(data, settings, config["seed"], augments)
    total_steps = _total_steps(settings, training)
    recipe = _build_recipe(config, data, total_steps)
    hooks = order_hooks(
        bind_hooks(
            hooks, recipe.networks, recipe.objectives, lambda key: build_hook(key, hook_nodes[key], plugins=plugins)
        )
    )
    graph_hooks = [hook for hook in hooks if isinstance(hook, GraphHook)]
    _prepare_networks(recipe.networks, graph_hooks, config["init_from"])
    _build_hooks(recipe.networks, graph_hooks, training, total_steps, config["seed"], data.classes)
    parts = settings["accumulation_steps"]
    trainer = Trainer(
        recipe.networks,
        recipe.objectives,
        graph_hooks,
        seed=config["seed"],
        accumulation_steps=parts,
        class_weights=_class_weights(data, settings.get("class_weights")),
        loss_scale=loss_scale_for(_precision(settings)),
    )
    start = time.monotonic()
    loop = _trace_loop(trainer, training, settings["compile"])
    size, placement = settings["evaluation_batch_size"], settings["placement"]
    evaluated = {
        split.name: Evaluated(split, _evaluator(trainer, split, size, placement))
        for split in (data.validation, data.test)
    }
    trace_seconds = time.monotonic() - start
    observer = Observer(trainer, data.validation, batch_size=size, placement=placement)
    host_hooks = [hook for hook in hooks if isinstance(hook, HostHook)]
    return Assembly(
        trainer,
        training,
        loop,
        observer,
        evaluated,
        host_hooks,
        total_steps,
        training.steps_per_epoch,
        trace_seconds,
    )


def _precision(settings: Config) -> str:
    return str(settings.get("precision", FLOAT32))  # a run of before has no such setting


def _training_batches(data: Data, settings: Config, seed: int, augments: list[Augment]) -> TrainingBatches:
    return TrainingBatches(
        data.train,
        batch_size=settings["batch_size"],
        seed=seed,
        placement=settings["placement"],
        classes_per_batch=settings["classes_per_batch"],
        class_shares=_class_shares(data, settings.get("class_sampling")),
        augmentation=Augmentation(augments, classes=data.classes) if augments else None,
    )


def _class_shares(data: Data, setting: Setting | None) -> np.ndarray | None:
    if setting is None:
        return None
    return class_shares(setting, _training_labels(data), data.classes, data.class_names)


def _class_weights(data: Data, setting: Setting | None) -> tf.Tensor | None:
    if setting is None:
        return None
    return tf.constant(class_weights(setting, _training_labels(data), data.classes, data.class_names))


def _training_labels(data: Data) -> np.ndarray:
    return data.train.source.labels[data.train.indices]


def _trace_loop(trainer: Trainer, training: TrainingBatches, mode: str) -> ChunkLoop:
    """Return the traced loop, compiled by XLA where that is wanted and possible. What blocks it may only show then."""
    xla = use_xla(mode, trainer.hooks)
    batch = training.batch if training.placement == "device" else BatchQueue(training)
    loop = ChunkLoop(trainer, batch, xla=xla)
    if xla and (blocking := python_ops(loop.graph)):
        keep_xla_off(mode, blocking)
        return ChunkLoop(trainer, batch, xla=False)
    return loop


def _evaluator(trainer: Trainer, split: Split, batch_size: int, placement: str) -> Evaluator:
    batches = EvaluationBatches(split, batch_size=batch_size, placement=placement)
    return Evaluator(trainer, batches.batch, batches.count)


def _total_steps(settings: Config, training: TrainingBatches) -> int:
    if settings["steps"] is not None:
        return int(settings["steps"])
    return training.epoch_end(settings["epochs"])


def _build_recipe(config: Config, data: Data, total_steps: int) -> Recipe:
    plugins = config["plugins"]

    def build_model(**injected: Any) -> keras.Model:
        return build(config["model"], plugins=plugins, **injected)

    def build_optimizer(learning_rate: float | None = None, updates: int = 1) -> keras.optimizers.Optimizer:
        rate = config["optimizer"]["learning_rate"] if learning_rate is None else learning_rate
        schedule = build(config["schedule"], plugins=plugins, learning_rate=rate, total_steps=total_steps)
        if updates > 1 and callable(schedule):
            schedule = SeveralUpdates(schedule, updates)
        if callable(schedule):
            schedule = ScaledRate(schedule)
        return build({**config["optimizer"], "learning_rate": schedule}, plugins=plugins)

    return build(config["task"], plugins=plugins, parts=Parts(data, build_model, build_optimizer, tuple(plugins)))


def _prepare_networks(networks: list[Network], hooks: list[GraphHook], init_from: str | None) -> None:
    """Let hooks rebuild the models and ask for taps, load the initial weights, build the optimizers."""
    for network in networks:
        for hook in hooks:
            if hook.network == network.name:
                with in_stage(hook, "rebuild_model"):
                    network.model = hook.rebuild_model(network.model)
        for hook in hooks:
            if hook.network == network.name:
                with in_stage(hook, "request_taps"):
                    network.taps |= hook.request_taps(network.model)
    if init_from is not None:
        _load_initial_weights(networks, init_from)
    for network in networks:
        network.optimizer.build(network.model.trainable_variables)


def _load_initial_weights(networks: list[Network], init_from: str) -> None:
    path = Path(init_from).expanduser()
    if not (path / "checkpoints").is_dir():
        raise UserError(f"init_from={init_from} has no checkpoints. Expected the directory of a run.")
    store = CheckpointStore(path / "checkpoints")
    checkpoint = store.load("best" if "best" in store.tags() else "last")
    for network in networks:
        keys = {f"network/{network.name}/{name}": variable.value for name, variable in network.weights.items()}
        assign_variables(keys, checkpoint.tensors, f"init_from={init_from}")


def _build_hooks(
    networks: list[Network],
    hooks: list[GraphHook],
    training: TrainingBatches,
    total_steps: int,
    seed: int,
    classes: int,
) -> None:
    named = {network.name: network for network in networks}
    for index, hook in enumerate(hooks):
        context = BuildContext(
            named[hook.network],
            total_steps,
            training.steps_per_epoch,
            training.batch_size,
            seed,
            _visible_states(hook, hooks[:index]),
            classes,
        )
        with in_stage(hook, "build"):
            hook.build(context)


def _visible_states(reader: GraphHook, built: list[GraphHook]) -> dict[str, tf.Variable]:
    """Return the state of hooks by "hook/variable"; of several instances, that of the reader's network has the key."""
    states = {f"{hook.name}/{name}": variable for hook in built for name, variable in hook.state().items()}
    beside = [hook for hook in built if hook.network == reader.network]
    return states | {f"{hook.key}/{name}": variable for hook in beside for name, variable in hook.state().items()}
