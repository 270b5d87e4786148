"""Networks, objectives and hooks of one replica, and the trainer that makes its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import keras
import tensorflow as tf

from hookline.trainer.config.build import TARGET, build
from hookline.trainer.hook import GraphHook, Hook
from hookline.trainer.input.batches import TrainingBatches
from hookline.trainer.input.data import Data
from hookline.trainer.input.sampling import Setting, class_weights
from hookline.trainer.model_checks import check_names, told_in_one_line
from hookline.trainer.network import Network
from hookline.trainer.order import order_hooks
from hookline.trainer.rate_schedules import ScaledRate, SeveralUpdates
from hookline.trainer.recipe import Parts, Recipe
from hookline.trainer.replicas.replica import Replica
from hookline.trainer.run.build import bind_hooks, build_hook, build_part
from hookline.trainer.run.checkpoint import CheckpointStore
from hookline.trainer.run.directory import initial_checkpoints
from hookline.trainer.run.precision import loss_scale_for
from hookline.trainer.run.state import assign_variables
from hookline.trainer.step.context import BuildContext
from hookline.trainer.step.hook_stages import norms_every
from hookline.trainer.step.returned import checked
from hookline.trainer.step.stage import in_stage
from hookline.trainer.step.trainer import Trainer

Config = Mapping[str, Any]


def build_hooks(config: Config) -> list[Hook]:
    """Return the hooks that a config names, in order, not yet bound to networks."""
    keras.utils.set_random_seed(config["seed"])  # a hook may be given layers, which are built with it
    nodes = _hook_nodes(config)
    return order_hooks([build_hook(name, node, plugins=config["plugins"]) for name, node in nodes.items()])


def _hook_nodes(config: Config) -> dict[str, Any]:
    return {name: node for name, node in config["hooks"].items() if node is not None}


def build_trainer(
    config: Config,
    hooks: Sequence[Hook],
    data: Data,
    training: TrainingBatches,
    *,
    total_steps: int,
    precision: str,
    replica: Replica,
) -> tuple[Trainer, list[Hook]]:
    """Return the trainer of a replica, with all hooks of the run bound to its networks."""
    plugins = config["plugins"]
    with nullcontext() if replica.device is None else tf.device(replica.device):
        recipe = _build_recipe(config, data, total_steps)
        nodes = _hook_nodes(config)
        bound = order_hooks(
            bind_hooks(
                hooks, recipe.networks, recipe.objectives, lambda key: build_hook(key, nodes[key], plugins=plugins)
            )
        )
        graph_hooks = [hook for hook in bound if isinstance(hook, GraphHook)]
        _prepare_networks(recipe.networks, graph_hooks, config["init_from"])
        _build_hooks(recipe.networks, graph_hooks, training, total_steps, config["seed"], data.classes)
        settings = config["trainer"]
        trainer = Trainer(
            recipe.networks,
            recipe.objectives,
            graph_hooks,
            seed=config["seed"],
            accumulation_steps=settings["accumulation_steps"],
            class_weights=_class_weights(data, settings.get("class_weights")),
            loss_scale=loss_scale_for(precision),
            replica=replica,
            norms_every=norms_every(settings["report_every_steps"] or training.steps_per_epoch),
        )
    return trainer, bound


def _build_recipe(config: Config, data: Data, total_steps: int) -> Recipe:
    plugins = config["plugins"]

    def build_model(**injected: Any) -> keras.Model:
        with told_in_one_line(f"model._target_={config['model'].get(TARGET)}", data):
            model = build_part("model", config["model"], keras.Model, plugins=plugins, **injected)
        check_names(model)
        return model

    def build_optimizer(learning_rate: float | None = None, updates: int = 1) -> keras.optimizers.Optimizer:
        rate = config["optimizer"]["learning_rate"] if learning_rate is None else learning_rate
        schedule = build(
            config["schedule"], group="schedule", plugins=plugins, learning_rate=rate, total_steps=total_steps
        )
        if updates > 1 and callable(schedule):
            schedule = SeveralUpdates(schedule, updates)
        if callable(schedule):
            schedule = ScaledRate(schedule)
        node = {**config["optimizer"], "learning_rate": schedule}
        return build_part("optimizer", node, keras.optimizers.Optimizer, plugins=plugins)

    parts = Parts(data, build_model, build_optimizer, tuple(plugins))
    return build_part("task", config["task"], Recipe, plugins=plugins, parts=parts)


def _prepare_networks(networks: list[Network], hooks: list[GraphHook], init_from: str | None) -> None:
    """Let hooks rebuild the models and ask for taps, load the initial weights, build the optimizers."""
    for network in networks:
        for hook in hooks:
            if hook.network == network.name:
                with in_stage(hook, "rebuild_model"):
                    network.model = checked(hook, "rebuild_model", hook.rebuild_model(network.model))
        for hook in hooks:
            if hook.network == network.name:
                with in_stage(hook, "request_taps"):
                    network.taps |= checked(hook, "request_taps", hook.request_taps(network.model))
    if init_from is not None:
        _load_initial_weights(networks, init_from)
    for network in networks:
        network.optimizer.build(network.model.trainable_variables)


def _load_initial_weights(networks: list[Network], init_from: str) -> None:
    store = CheckpointStore(initial_checkpoints(init_from))
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
    given = [
        (hook, name, variable) for hook in built for name, variable in checked(hook, "state", hook.state()).items()
    ]
    states = {f"{hook.name}/{name}": variable for hook, name, variable in given}
    beside = [each for each in given if each[0].network == reader.network]
    return states | {f"{hook.key}/{name}": variable for hook, name, variable in beside}


def _class_weights(data: Data, setting: Setting | None) -> tf.Tensor | None:
    if setting is None:
        return None
    return tf.constant(class_weights(setting, data.train.labels, data.classes, data.class_names))
