"""Networks, objectives and hooks of one replica, and the trainer that makes its steps."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Protocol

import keras
import tensorflow as tf

from hookline.trainer.hook import GraphHook, Hook
from hookline.trainer.input.data import Data
from hookline.trainer.input.sampling import Setting, class_weights
from hookline.trainer.network import Network
from hookline.trainer.order import order_hooks
from hookline.trainer.replicas.replica import Replica
from hookline.trainer.run.blueprint import Blueprint
from hookline.trainer.run.build import bind_hooks
from hookline.trainer.run.checkpoint import CheckpointStore
from hookline.trainer.run.directory import initial_checkpoints
from hookline.trainer.run.precision import loss_scale_for
from hookline.trainer.run.state import assign_variables
from hookline.trainer.step.context import BuildContext
from hookline.trainer.step.metrics import norms_every
from hookline.trainer.step.returned import ask
from hookline.trainer.step.stage import in_stage
from hookline.trainer.step.trainer import Trainer


class Pace(Protocol):
    """Say how a run proceeds through its data; `TrainingBatches` do."""

    batch_size: int

    @property
    def steps_per_epoch(self) -> float:
        """Return the steps of an epoch."""
        ...


def build_trainer(
    blueprint: Blueprint,
    hooks: Sequence[Hook],
    data: Data,
    training: Pace,
    *,
    total_steps: int,
    precision: str,
    replica: Replica,
) -> tuple[Trainer, list[Hook]]:
    """Return the trainer of a replica, with all hooks of the run bound to its networks."""
    with nullcontext() if replica.device is None else tf.device(replica.device):
        recipe = blueprint.build_recipe(data, total_steps)
        bound = order_hooks(bind_hooks(hooks, recipe.networks, recipe.objectives, blueprint.build_hook))
        graph_hooks = [hook for hook in bound if isinstance(hook, GraphHook)]
        keras.utils.set_random_seed(_seed_of_hooks(blueprint.seed))
        _prepare_networks(recipe.networks, graph_hooks, blueprint.init_from)
        planned = blueprint.planned_steps or total_steps
        _build_hooks(recipe.networks, graph_hooks, training, planned, blueprint.seed, data.classes)
        settings = blueprint.settings
        trainer = Trainer(
            recipe.networks,
            recipe.objectives,
            graph_hooks,
            seed=blueprint.seed,
            accumulation_steps=settings["accumulation_steps"],
            class_weights=_class_weights(data, settings.get("class_weights")),
            loss_scale=loss_scale_for(precision),
            replica=replica,
            norms_every=norms_every(settings["report_every_steps"] or training.steps_per_epoch),
        )
    return trainer, bound


def _seed_of_hooks(seed: int) -> int:
    """Return the seed of what hooks put into models: the same however many numbers the models themselves have drawn."""
    return zlib.crc32(f"{seed}/hooks".encode()) & 0x7FFFFFFF


def _prepare_networks(networks: list[Network], hooks: list[GraphHook], init_from: str | None) -> None:
    """Let hooks rebuild the models and ask for taps, load the initial weights, build the optimizers."""
    for network in networks:
        for hook in hooks:
            if hook.network == network.name:
                network.model = ask(hook, "rebuild_model", network.model)
        for hook in hooks:
            if hook.network == network.name:
                network.taps |= ask(hook, "request_taps", network.model)
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
    training: Pace,
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
            classes or None,
        )
        with in_stage(hook, "build"):
            hook.build(context)


def _visible_states(reader: GraphHook, built: list[GraphHook]) -> dict[str, tf.Variable]:
    """Return the state of hooks by "hook/variable"; of several instances, that of the reader's network has the key."""
    given = [(hook, name, variable) for hook in built for name, variable in ask(hook, "declare").state.items()]
    states = {f"{hook.name}/{name}": variable for hook, name, variable in given}
    beside = [each for each in given if each[0].network == reader.network]
    return states | {f"{hook.key}/{name}": variable for hook, name, variable in beside}


def _class_weights(data: Data, setting: Setting | None) -> tf.Tensor | None:
    if setting is None:
        return None
    return tf.constant(class_weights(setting, data.train.labels, data.classes, data.class_names))
