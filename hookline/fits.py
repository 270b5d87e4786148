"""A fit from Python: its directory, its length and the state that it continues from; and custom steps."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import tensorflow as tf
import yaml

from hookline.checks import class_weights_of
from hookline.hook_list import HISTORY, Watch
from hookline.hooks.monitors.console import open_console
from hookline.hooks.monitors.early_stopping import EarlyStopping
from hookline.inputs import INPUTS
from hookline.recipes.classification import Classification
from hookline.spec import Spec, read_record, restore_paths, write_record
from hookline.trainer.config.stored import FILE_NAME, MISSING, Settings, config_digest, read_stored, spread_settings
from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.hook import Hook, HostHook
from hookline.trainer.input.data import Data, Split
from hookline.trainer.objective import SAMPLE_WEIGHTS, SOFT_TARGETS, Batch
from hookline.trainer.run.build_run import NOWHERE, build_run
from hookline.trainer.run.checkpoint import CheckpointStore, MemoryStore
from hookline.trainer.run.checkpoint_files import LAST, Checkpoint
from hookline.trainer.run.control import Interruption, Journal
from hookline.trainer.run.directory import choose_directory, config_text, locked, make_directory
from hookline.trainer.run.run import Run
from hookline.trainer.run.session import Outcome, complete, open_existing, open_store
from hookline.trainer.run.state import assign_variables, data_fingerprint, restore_run, run_state
from hookline.trainer.run.times import Times
from hookline.trainer.step.trainer import HalfStep
from hookline.trainer.step.trainer import Trainer as StepTrainer
from hookline.trainer.step.writes import label

KEY, NAME, SUMS, HELD_BACK = "run_dir", "python", "accumulators", "held_back"
RETRACE = "This step was traced before the latest fit or prepare. Expected a tf.function made after it."
RESUMABLE = "resumable"  # the epochs of the first fit, if called with resume=True: a script may repeat that call
LATER = ("model.layers", "task.loss_settings", "class_weight")
"""Settings that the config of an older run lacks."""


@dataclass
class State:
    """Hold the state of training."""

    trainer: StepTrainer
    hooks: list[Hook]
    watch: Watch
    variables: dict[str, tf.Variable]  # that training depends on, by key
    run: Run | None = None  # of the latest fit, or from the command line; None for a loaded Python run
    loaded_step: int = 0  # of the checkpoint of a loaded Python run
    loaded_tag: str = LAST  # of the loaded checkpoint
    loaded: Mapping[str, Any] = field(default_factory=dict)  # the result of `run_state` in that checkpoint
    best_step: int | None = None  # of the weights that `restore_best` restored
    counter: tf.Variable = field(default_factory=lambda: tf.Variable(0, trainable=False, dtype=tf.int64))
    """The number of custom steps, an int64 scalar."""
    current: tf.Variable = field(default_factory=lambda: tf.Variable(True, trainable=False))
    """False once a later fit or `prepare` has replaced this state."""

    @property
    def begun(self) -> int:
        """Return the number of steps, except custom ones."""
        return self.loaded_step if self.run is None else self.run.step

    @property
    def step(self) -> int:
        return self.begun + int(self.counter.numpy())

    @property
    def weights_step(self) -> int:
        """Return the step of the weights: that of restored best ones, until a custom step changes them."""
        return self.step if self.best_step is None or self.step > self.begun else self.best_step

    @property
    def checkpoint(self) -> str:
        """Return the tag of the checkpoint that the weights came from; LAST if a custom step has changed them since."""
        return self.loaded_tag if self.step == self.begun else LAST


def begin(
    stack: ExitStack,
    spec: Spec,
    state: State | None,
    data: Data,
    *,
    epochs: int,
    batch_size: int,
    class_weight: Any = None,
    resume: bool = False,
    run_dir: Path | None = None,
) -> State:
    """Build a fit and restore the state that it continues from; the stack holds the lock on its directory."""
    times, config = Times(), spec.config()
    config["trainer"]["batch_size"] = batch_size
    continues = resume or state is not None
    old = continues and run_dir is not None and (run_dir / FILE_NAME).is_file()
    directory, store, checkpoint = _place(stack, config, run_dir, old=old, resume=resume)
    if checkpoint is not None and state is None:
        restore_paths(read_record(directory), spec.models)
    before = None if resume else state
    if resume and checkpoint is None and state is not None:
        _refuse_steps(directory, state)
    class_weights = class_weights_of(class_weight, data)
    facts = _facts(data, batch_size)
    own = json.loads(json.dumps({"batch_size": batch_size, "class_weight": class_weights}))
    if checkpoint is not None:
        _check_fit(directory, checkpoint.state["hooks"][HISTORY]["fit"], own, epochs, first_call=state is None)
    fit = planned_fit(data, epochs, batch_size, before, checkpoint)
    spec.renew_optimizers(None if state is None else state.trainer)
    blueprint = spec.blueprint(data, fit, {**config, KEY: str(directory)}, class_weights)
    if checkpoint is None and before is None:
        blueprint = replace(blueprint, init_from=spec.init_from)
    run = build_run(blueprint, directory=directory, store=store, times=times)
    run.config["trainer"] |= {"monitor": run.best.monitor, "monitor_mode": run.best.mode}
    if run_dir is not None and not old:
        make_directory(directory, config, [])
        stack.enter_context(locked(directory))
        write_record(directory, spec)
    if checkpoint is not None:
        restore_run(run, checkpoint)
    elif resume and old:
        run.journal.resumed_at = [0]
    elif before is not None:
        same_data = fit["epochs_before"] > 0 and before.watch.fits.get("validation") == facts["validation"]
        _carry_on(before, run, same_data=same_data, has_best="best" in store.tags())
    watch = next(each for each in run.host_hooks if isinstance(each, Watch))
    watch.fits = {
        **fit,
        **own,
        **facts,
        "epochs": epochs,
        RESUMABLE: watch.fits.get(RESUMABLE) if fit["epochs_before"] else epochs * resume,
    }
    if state is not None:
        state.current.assign(False)
    return State(run.trainer, run.hooks, watch, run.variables, run)


def train(run: Run, interruption: Interruption, *, writes: bool, quiet: bool) -> dict[str, Any]:
    """Train and return the summary; Ctrl-C stops training cleanly."""
    try:
        return complete(run, interruption, writes=writes).summary
    except KeyboardInterrupt as error:
        if getattr(error, "signal_number", signal.SIGINT) == signal.SIGTERM:
            raise
        line = f"Stopped after step {run.step:,} of {run.total_steps:,}: what was trained is kept."
        if not quiet:
            open_console().print(line, soft_wrap=True)
        known = getattr(error, "outcome", Outcome({})).summary
        own = {"status": "interrupted", "steps": run.step, "final": dict(run.journal.final)}
        return {**own, **known, "stop_reason": line}


def _place(
    stack: ExitStack, config: dict[str, Any], directory: Path | None, *, old: bool, resume: bool
) -> tuple[Path, CheckpointStore, Checkpoint | None]:
    """Return the directory of a fit (a new one is not created), its store, and the checkpoint to resume from."""
    if directory is None:
        return NOWHERE, MemoryStore(), None
    own: dict[str, Any] = yaml.safe_load(config_text(config))  # as read back from its file
    if not old:
        path = choose_directory(str(directory), NAME, datetime.now())
        return path, open_store(path, config_digest(own)), None
    stack.enter_context(locked(directory))
    stored = read_stored(str(directory), KEY)
    settings = spread_settings([stored, own], (KEY, "trainer.batch_size"))  # the stored size is the first fit's
    check_same(directory, settings)
    digest = config_digest(stored)
    if not resume:
        return directory, open_store(directory, digest), None
    return directory, *open_existing(directory, digest)


def _refuse_steps(directory: Path, state: State) -> None:
    """Refuse to resume without a checkpoint if the trainer has already made steps."""
    if state.step:
        raise UserError(
            f"{directory} has no checkpoint yet, and this trainer has made {state.step:,} steps. Expected a new "
            "Trainer, with the model in its initial state."
        )


def _check_fit(directory: Path, known: dict[str, Any], own: dict[str, Any], epochs: int, *, first_call: bool) -> None:
    """Refuse to resume a fit by a call that differs from its own, or that may repeat the call of the first fit."""
    check_same(directory, {key: [known.get(key, MISSING), each] for key, each in own.items()})
    is_later = known["epochs_before"] or known["first_step"]
    if is_later and (known["epochs"] != epochs or (first_call and known.get(RESUMABLE) == epochs)):
        raise UserError(
            f"{directory} holds a later fit, of {known['epochs']} epochs after {known['epochs_before']}, and "
            f"fit(epochs={epochs}, resume=True) would resume that one. Expected hookline.load('{directory}') and its "
            "fit to train on, or another run_dir with all epochs in one fit."
        )


def check_same(directory: Path, settings: Settings) -> None:
    """Refuse settings that differ from those that the run began with."""
    for key, (was, now) in settings.items():
        if was != now and (was is not MISSING or not key.startswith(LATER)):
            was, now = ("nothing" if each is MISSING else f"{each!r:.99}" for each in (was, now))
            raise UserError(
                f"{directory} is the run of another trainer: {key} was {was} and is {now}. Expected the same "
                "arguments, or another run_dir."
            )


def _facts(data: Data, batch_size: int) -> dict[str, Any]:
    """Return the facts about the data that later fits and `load` need."""
    return {
        "data": data_fingerprint([data.train]),
        "validation": None if data.validation is None else data_fingerprint([data.validation]),
        "steps_per_epoch": data.train.size / batch_size,
        "classes": data.classes,
        "input_shape": list(data.input_shape),
        INPUTS: None if data.input_shape else _kinds(data.train),
    }


def _kinds(split: Split) -> Any:
    """Return [dtype, *shape] of each input, in the structure of the inputs."""
    inputs = split.source.gather(tf.constant(split.indices[:1]))[INPUTS]
    return tf.nest.map_structure(lambda each: [each.dtype.name, *each.shape[1:]], inputs)


def planned_fit(
    data: Data, epochs: int, batch_size: int, before: State | None, checkpoint: Checkpoint | None
) -> dict[str, int]:
    """Return the extent of a fit: further epochs of the same data, or the first epochs of other data.

    `first_step` is the step at which the first epoch on this data began; `epochs_before` such epochs precede this fit.
    Hooks lay out their schedules over `planned_steps`, those of the first fit. The fit ends at `total_steps`.
    """
    size, first, epochs_before, planned = data.train.size, 0, 0, None
    if before is not None:
        known = before.watch.fits
        planned, first = known.get("planned_steps"), before.step
        if known and known["batch_size"] == batch_size and known["data"] == data_fingerprint([data.train]):
            first = known["first_step"]
            epochs_before = math.floor((before.step - first) * batch_size / size + 1e-9)
    elif checkpoint is not None:
        known = checkpoint.state["hooks"][HISTORY]["fit"]
        first, epochs_before, planned = (known[key] for key in ("first_step", "epochs_before", "planned_steps"))
    total = first - (-(epochs_before + epochs) * size // batch_size)
    return {
        "first_step": first,
        "total_steps": total,
        "planned_steps": planned or total,
        "batch_size": batch_size,
        "epochs_before": epochs_before,
    }


def _carry_on(before: State, run: Run, *, same_data: bool, has_best: bool) -> None:
    """Give a fit the final state of the previous one, and the best evaluation if its weights are stored.

    Evaluations on other data are not comparable: the best value and the patience counter are reset.
    """
    values = {key: variable for key, variable in before.variables.items() if key != SUMS}
    own = {key: variable for key, variable in run.variables.items() if key != SUMS}
    if values.keys() != own.keys():  # layers of hooks were renumbered: match by order
        if [each.shape for each in values.values()] != [each.shape for each in own.values()]:
            raise UserError("The networks or hooks differ from those of the last fit. Expected a new Trainer.")
        values = dict(zip(own, values.values(), strict=True))
    assign_variables(own, {key: each.numpy() for key, each in values.items()}, "the fit before")
    run.step, was = before.step, before.loaded if before.run is None else run_state(before.run)
    known = {hook.name: hook for hook in before.hooks if isinstance(hook, HostHook)}
    for hook in run.host_hooks:
        if (old := known.get(hook.name)) is not None and old is not hook:
            hook.load_state_dict(old.state_dict())
        if isinstance(hook, EarlyStopping) and not same_data:
            hook.begin_anew()
        elif isinstance(hook, EarlyStopping) and was.get("stop_reason") is not None:
            hook.load_state_dict({**hook.state_dict(), "waited": 0})  # reset its counter, as Keras does
    journal = Journal.of(was)
    run.journal.warnings, run.journal.warned = journal.warnings, journal.warned
    run.journal.resumed_at, run.journal.started_from = [*journal.resumed_at, before.step], journal.started_from
    run.times.before = was["seconds"]
    if same_data and has_best and was["best"]["monitor"] == run.best.monitor:
        run.best.put_back(was["best"])


class OwnStep:
    """Hold a custom step between computing and applying its gradients.

    Attributes:
        gradients: gradients for the optimizer by variable name, or by "<network>/<variable>" if several networks are
            trained; None if the loss does not depend on a variable. They may be replaced by other tensors.
        losses: scalars by name, including "total".
        metrics: scalars by name.
    """

    def __init__(self, half: HalfStep) -> None:
        self.half = half
        self.gradients = {
            label(network, name, half.contexts): each
            for network, context in half.contexts.items()
            for name, each in context.gradients.items()
        }
        self.losses, self.metrics = half.computed.losses, half.computed.metrics


def first_half(state: State, classes: int, x: Any, y: Any, sample_weight: Any) -> OwnStep:
    """Trace the first half of a step; see `Trainer.compute_gradients`. `classes` is 0 unless it classifies."""
    if tf.executing_eagerly():
        raise UserError("compute_gradients was called outside a graph. Expected a function under @tf.function.")
    trainer = state.trainer
    if len(trainer.objectives) != 1:
        raise UserError("compute_gradients is for one objective. Expected a hook, for a step of several.")
    if (updates := trainer.objectives[0].updates) > 1:
        raise UserError(f"compute_gradients received an objective with updates={updates}. Expected updates=1, or fit.")
    targets = {"targets": y}
    if classes and isinstance(trainer.objectives[0], Classification):
        targets = _labels(tf.convert_to_tensor(y))
    batch = {"inputs": x, **targets, "index": tf.zeros([tf.shape(tf.nest.flatten(x)[0])[0]], tf.int64)}
    if sample_weight is not None:
        batch[SAMPLE_WEIGHTS] = sample_weight
    with tf.control_dependencies([tf.debugging.assert_equal(state.current, True, RETRACE)]):
        step = state.counter.read_value() + state.begun
    return OwnStep(trainer.first_half(trainer.objectives[0], step, batch, sampled=tf.constant(True)))


def _labels(y: tf.Tensor) -> Batch:
    """Return the batch entry for labels [batch] or [batch, 1], or class probabilities [batch, classes]."""
    if y.shape.rank == 2 and y.shape[1] != 1:
        if y.dtype.is_floating:
            return {SOFT_TARGETS: tf.cast(y, tf.float32)}
        y = tf.argmax(y, axis=1)
    return {"targets": tf.cast(y[:, 0] if y.shape.rank == 2 else y, tf.int64)}


def second_half(state: State, own: OwnStep) -> dict[str, tf.Tensor]:
    """Trace the second half of a step; see `Trainer.apply_gradients`."""
    trainer, half = state.trainer, own.half
    known = [label(network, name, half.contexts) for network, each in half.contexts.items() for name in each.latent]
    if foreign := [name for name in own.gradients if name not in known]:
        raise unknown_name("gradient", foreign[0], known)
    for network, context in half.contexts.items():
        context.gradients = {name: own.gradients.get(label(network, name, half.contexts)) for name in context.latent}
    with tf.control_dependencies([tf.debugging.assert_equal(state.current, True, RETRACE)]):
        result = trainer.second_half(half)
    held_back = tf.constant(False) if result.held_back is None else result.held_back
    with tf.control_dependencies([total for total, _ in result.sums.values()]):
        state.counter.assign_add(tf.cast(tf.logical_not(held_back), tf.int64))
    values = {name: total / count for name, (total, count) in result.sums.items()}  # NaN where nothing was counted
    return {**values, HELD_BACK: tf.cast(held_back, tf.float32)}
