"""Building a run from a blueprint: everything is built, the step is traced and audited."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hookline.trainer.config.schema import check_class_parts
from hookline.trainer.errors import UserError, user_path
from hookline.trainer.hook import GraphHook, Hook, HostHook
from hookline.trainer.input.augment import Augmentation
from hookline.trainer.input.batches import BatchQueue, TrainingBatches
from hookline.trainer.input.data import Data
from hookline.trainer.input.order import Setting, class_shares, class_weights
from hookline.trainer.network import Network
from hookline.trainer.objective import Batch
from hookline.trainer.recipe import Recipe
from hookline.trainer.replicas.replica import Replica
from hookline.trainer.run.blueprint import Blueprint, bind_hooks
from hookline.trainer.run.checkpoint import CheckpointStore, MemoryStore
from hookline.trainer.run.control import Best, choose_monitor
from hookline.trainer.run.directory import initial_checkpoints
from hookline.trainer.run.machine import FLOAT16, FLOAT32, computing_in
from hookline.trainer.run.run import Run
from hookline.trainer.run.state import data_fingerprint, refuse_unsaved_state, share_variables
from hookline.trainer.run.times import TRACE, Times
from hookline.trainer.run.views import HeldOut
from hookline.trainer.run.workers import Workers
from hookline.trainer.step.context import BuildContext
from hookline.trainer.step.loop import ChunkLoop, keep_xla_off, python_ops, use_xla
from hookline.trainer.step.metrics import SAMPLED_EVERY, LossScale
from hookline.trainer.step.stage import ask, declared_followers, in_stage, order_hooks
from hookline.trainer.step.trainer import Trainer

NOWHERE = Path("(no run directory)")


def build_run(
    blueprint: Blueprint,
    replicas: Sequence[Replica] = (Replica(),),
    *,
    directory: Path = NOWHERE,
    store: CheckpointStore | None = None,
    workers: Workers | None = None,
    times: Times | None = None,
) -> Run:
    """Build a run from a blueprint for the replicas of this process, then trace and audit the step; write nothing."""
    times = times or Times()
    with computing_in(_precision(blueprint.settings)):
        data, training, total_steps, trainers, hooks = _build_parts(blueprint, replicas)
        times.started("build")
        settings = blueprint.settings
        loop = _trace_loop(trainers, training, settings["compile"])
        size, placement = settings["evaluation_batch_size"], settings["placement"]
        held_out = {
            split.name: HeldOut(trainers[0], split, batch_size=size, placement=placement) for split in data.splits[1:]
        }
    times.started(TRACE)
    names = held_out["validation"].names if "validation" in held_out else []
    monitor, mode = choose_monitor(settings["monitor"], settings["monitor_mode"], names)
    since = min(total_steps, max((hook.declare().best_from_step for hook in trainers[0].hooks), default=0))
    return Run(
        directory,
        blueprint.recipe,
        dict(blueprint.config),
        data,
        training,
        loop,
        held_out,
        list({id(hook): hook for hook in (*trainers[0].hooks, *hooks)}.values()),
        total_steps,
        Best(monitor, mode, since=since),
        MemoryStore() if store is None else store,
        times=times,
        _workers=workers or Workers(),
        _fingerprint=data_fingerprint(data.splits),
    )


def _build_parts(
    blueprint: Blueprint, replicas: Sequence[Replica]
) -> tuple[Data, TrainingBatches, int, list[Trainer], list[HostHook]]:
    """Return data, training batches, the number of steps, a trainer for each replica, and the host hooks."""
    settings, count = blueprint.settings, replicas[0].count
    check_class_parts(settings["classes_per_batch"], count, f"{count} replicas", "replicas")
    blueprint.check()
    augments, hooks = blueprint.build_augments(), blueprint.build_hooks()
    keras.utils.set_random_seed(blueprint.seed)
    data = blueprint.open_data()
    _check_class_settings(data, settings)
    training = TrainingBatches(
        data.train,
        batch_size=settings["batch_size"],
        seed=blueprint.seed,
        placement=settings["placement"],
        classes_per_batch=settings["classes_per_batch"],
        class_shares=_by_class(class_shares, data, settings.get("class_sampling")),
        augmentation=Augmentation(augments, classes=data.classes, preparation=data.preparation) if augments else None,
        first_step=blueprint.first_step,
    )
    total_steps = int(settings["steps"] or training.epoch_end(settings["epochs"]))
    trainer, hooks = build_trainer(blueprint, hooks, data, training, total_steps, replicas[0])
    trainers = [trainer]
    for replica in replicas[1:]:
        policy = keras.config.dtype_policy()
        keras.utils.clear_session()  # resets Keras's layer numbers: names as in the first replica
        keras.config.set_dtype_policy(policy)
        again = blueprint.build_hooks()
        keras.utils.set_random_seed(blueprint.seed)
        trainers.append(build_trainer(blueprint, again, data, training, total_steps, replica)[0])
        share_variables([trainer, trainers[-1]])
    return data, training, total_steps, trainers, [hook for hook in hooks if isinstance(hook, HostHook)]


def _precision(settings: Mapping[str, Any]) -> str:
    return str(settings.get("precision", FLOAT32))  # older runs have no such setting


def _loss_scale(networks: Sequence[Network], settings: Mapping[str, Any]) -> LossScale | None:
    """Return the loss scale for float16; for other precisions return None and refuse layers that compute in float16."""
    if _precision(settings) == FLOAT16:
        return LossScale()
    for layer in (layer for network in networks for layer in network.model._flatten_layers()):
        if layer.compute_dtype == FLOAT16:
            raise UserError(
                f"The layer '{layer.name}' computes in float16 without loss scaling, so small gradients would "
                "underflow to 0. Expected mixed_bfloat16 or float32, or on the command line trainer.precision=float16."
            )
    return None


def _check_class_settings(data: Data, settings: Mapping[str, Any]) -> None:
    for name in ("classes_per_batch", "class_sampling", "class_weights"):
        if settings.get(name) is not None and not data.classes:
            raise UserError(
                f"trainer.{name}={settings[name]} needs classes; '{data.name}' has none. Expected trainer.{name}=null."
            )


def _by_class(compute: Callable[..., np.ndarray], data: Data, setting: Setting | None) -> np.ndarray | None:
    """Return the class shares or weights that a setting describes for the training examples; None without a setting."""
    return None if setting is None else compute(setting, data.train.labels, data.classes, data.class_names)


def _trace_loop(trainers: list[Trainer], training: TrainingBatches, mode: str) -> ChunkLoop:
    """Return the traced loop, compiled by XLA if requested and possible; tracing may reveal that it is not."""
    xla = use_xla(mode, trainers[0].hooks, replicas=trainers[0].replica.count)
    batches = [_batches_of(each.replica, training) for each in trainers]
    loop = ChunkLoop(trainers, batches, xla=xla)
    if xla and (blocking := python_ops(loop.graph)):
        keep_xla_off(mode, blocking)
        loop = ChunkLoop(trainers, batches, xla=False)
    refuse_unsaved_state(loop)
    return loop


def _batches_of(replica: Replica, training: TrainingBatches) -> Callable[[tf.Tensor], Batch]:
    part = {"replica": replica.index, "replicas": replica.count}
    return partial(training.batch, **part) if training.placement == "device" else BatchQueue(training, **part)


def build_trainer(
    blueprint: Blueprint,
    hooks: Sequence[Hook],
    data: Data,
    training: Any,  # has batch_size and steps_per_epoch, such as `TrainingBatches`
    total_steps: int,
    replica: Replica | None = None,
) -> tuple[Trainer, list[Hook]]:
    """Return the trainer of a replica, with all hooks of the run bound to its networks."""
    replica = replica or Replica()
    with nullcontext() if replica.device is None else tf.device(replica.device):
        recipe, settings = blueprint.build_recipe(data, total_steps), blueprint.settings
        loss_scale = _loss_scale(recipe.networks, settings)
        bound = order_hooks(bind_hooks(hooks, recipe.networks, recipe.objectives, blueprint.build_hook))
        graph_hooks = [hook for hook in bound if isinstance(hook, GraphHook)]
        # The seed for what hooks insert into models does not depend on how many numbers the models have drawn.
        keras.utils.set_random_seed(zlib.crc32(f"{blueprint.seed}/hooks".encode()) & 0x7FFFFFFF)
        _prepare_networks(recipe.networks, graph_hooks, blueprint.init_from)
        _check_trainable(recipe)
        planned = blueprint.planned_steps or total_steps
        _build_hooks(recipe.networks, graph_hooks, training, planned, blueprint.seed, data.classes)
        weights = _by_class(class_weights, data, settings.get("class_weights"))
        trainer = Trainer(
            recipe.networks,
            recipe.objectives,
            graph_hooks,
            seed=blueprint.seed,
            accumulation_steps=settings["accumulation_steps"],
            class_weights=None if weights is None else tf.constant(weights),
            loss_scale=loss_scale,
            replica=replica,
            sample_every=SAMPLED_EVERY,
        )
    return trainer, bound


def _prepare_networks(networks: list[Network], hooks: list[GraphHook], init_from: str | None) -> None:
    """Let hooks rebuild the models and request taps, load the initial weights, build the optimizers."""
    of_file = init_from is not None and user_path(init_from, "init_from").is_file()
    if init_from is not None:
        from hookline.trainer.run import initial_weights  # few runs need it
    if init_from is not None and of_file:  # a file lacks the layers that hooks add; a run has them
        initial_weights.load_file(networks, init_from)
    for network in networks:
        own = [hook for hook in hooks if hook.network == network.name]
        for hook in own:
            network.model = ask(hook, "rebuild_model", network.model)
        for hook in own:
            network.taps |= ask(hook, "request_taps", network.model)
    if init_from is not None and not of_file:
        initial_weights.load_run(networks, initial_checkpoints(init_from), init_from)
    for network in networks:
        if not network.optimizer.built:  # a LossScaleOptimizer would add its variables again
            network.optimizer.build(network.model.trainable_variables)


def _check_trainable(recipe: Recipe) -> None:
    """Refuse an objective without a trainable variable in any of its networks; some of them may have none."""
    models = {network.name: network.model for network in recipe.networks}
    for objective in recipe.objectives:
        if not any(models[name].trainable_variables for name in objective.trains):
            names = ", ".join(f"'{name}'" for name in objective.trains)
            raise UserError(
                f"The networks of the objective '{objective.name}' have no trainable variable ({names}): training "
                "would change nothing. Expected trainable=True of a model, or of some of its layers."
            )


def _build_hooks(
    networks: list[Network], hooks: list[GraphHook], training: Any, total_steps: int, seed: int, classes: int
) -> None:
    named, followers = {network.name: network for network in networks}, declared_followers(hooks)
    for index, hook in enumerate(hooks):
        context = BuildContext(
            named[hook.network],
            total_steps,
            training.steps_per_epoch,
            training.batch_size,
            seed,
            _visible_states(hook, hooks[:index]),
            classes or None,
            _rounded(hook, hooks[:index]),
        )
        with in_stage(hook, "build"):
            hook.build(context)
            _refuse_rounded_twice(hook, hooks[:index], followers)


def _visible_states(reader: GraphHook, built: list[GraphHook]) -> dict[str, tf.Variable]:
    """Return the state of hooks by "<name>/<variable>", and by "<key>/<variable>" for those on the reader's network."""
    given = [(hook, name, variable) for hook in built for name, variable in ask(hook, "declare").state.items()]
    states = {f"{hook.name}/{name}": variable for hook, name, variable in given}
    beside = [each for each in given if each[0].network == reader.network]
    return states | {f"{hook.key}/{name}": variable for hook, name, variable in beside}


def _rounded(reader: GraphHook, built: list[GraphHook]) -> dict[str, str]:
    """Return the variables of the reader's network that hooks round, by name, with the key of the hook."""
    beside = [hook for hook in built if hook.network == reader.network]
    return {name: hook.key for hook in beside for name in ask(hook, "declare").rounded}


def _refuse_rounded_twice(hook: GraphHook, built: list[GraphHook], followers: Mapping[str, set[str]]) -> None:
    """Refuse variables that an earlier hook already rounds, unless declarations order the two for this purpose."""
    for other in built:
        shared = sorted({*ask(other, "declare").rounded} & {*ask(hook, "declare").rounded})
        if shared and other.network == hook.network and hook.name not in followers[other.name]:
            raise UserError(
                f"Two hooks round '{shared[0]}': {other.key} and {hook.key}. Expected one hook for each variable: "
                "change the `layers` patterns of one of the two."
            )
