"""A fit of Python: where it writes, how far it goes, what it continues from."""

from __future__ import annotations

import math
import signal
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import tensorflow as tf
import yaml

from hookline.callbacks import NAME as HISTORY
from hookline.callbacks import Watch
from hookline.hooks.monitors.console import open_console
from hookline.measures import ACCURACY_METRIC
from hookline.record import read_record, restore_paths, write_record
from hookline.spec import Plan, Spec
from hookline.trainer.config.resume import config_digest
from hookline.trainer.config.settings import MISSING, differing, spread_settings
from hookline.trainer.config.stored import FILE_NAME, read_stored
from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.hook import Hook, HostHook
from hookline.trainer.input.data import Data
from hookline.trainer.run.assembly import Assembly, assemble_blueprint
from hookline.trainer.run.checkpoint import Checkpoint, MemoryStore, Store
from hookline.trainer.run.directory import choose_directory, config_text, make_directory
from hookline.trainer.run.fingerprint import data_fingerprint
from hookline.trainer.run.fit import Fit
from hookline.trainer.run.lock import locked
from hookline.trainer.run.resume import changed_environment, check_config, restore_fit
from hookline.trainer.run.session import build_fit, open_store, run_fit
from hookline.trainer.run.start_time import StartTime
from hookline.trainer.run.state import assign_variables, evaluation_keys
from hookline.trainer.step.trainer import Trainer as StepTrainer

KEY, NAME, SUMS = "run_dir", "python", "accumulators"
NOWHERE = Path("(no run directory)")


@dataclass(frozen=True)
class Asked:
    """Say what a fit was asked for.

    Attributes:
        data: to train on.
        epochs: of this fit.
        batch_size: examples a step.
        class_weight: by label; None for all alike.
        resume: whether to continue from a checkpoint on disk.
        run_dir: where to write; None for nowhere.
    """

    data: Data
    epochs: int
    batch_size: int
    class_weight: Mapping[int, float] | None = None
    resume: bool = False
    run_dir: Path | None = None


@dataclass
class State:
    """Hold what was trained.

    Attributes:
        trainer: of the step.
        hooks: at work, in order.
        watch: keeps the history.
        variables: that training depends on, by key.
        parts: of the latest fit; None where a run was loaded.
        fit: likewise.
        counter: steps made, int64 scalar, for steps of one's own.
        loaded_step: of the checkpoint, where a run was loaded.
    """

    trainer: StepTrainer
    hooks: list[Hook]
    watch: Watch
    variables: dict[str, tf.Variable]
    parts: Assembly | None = None
    fit: Fit | None = None
    counter: tf.Variable = field(default_factory=lambda: tf.Variable(0, trainable=False, dtype=tf.int64))
    loaded_step: int = 0

    @property
    def begun(self) -> int:
        """Return how many steps were made, but for those of one's own."""
        return self.loaded_step if self.fit is None else self.fit.run.step

    @property
    def step(self) -> int:
        """Return how many steps were made."""
        return self.begun + int(self.counter.numpy())

    def put_best(self) -> None:
        """Give networks and hooks the values of the best evaluation."""
        assert self.fit is not None
        kept = self.fit.store.load("best").tensors
        assign_variables({key: self.variables[key] for key in evaluation_keys(self.variables)}, kept, "the best")


def begin(stack: ExitStack, spec: Spec, asked: Asked, state: State | None) -> State:
    """Return a fit, built and with the state that it continues from; the stack holds the lock of its directory."""
    data, started, config = asked.data, StartTime(None), spec.config()
    goes_on = asked.resume or state is not None
    old = goes_on and asked.run_dir is not None and (asked.run_dir / FILE_NAME).is_file()
    directory, store, checkpoint = _place(stack, config, asked, old=old)
    if checkpoint is not None and state is None:
        restore_paths(read_record(directory), spec.models)
    before = None if asked.resume else state
    plan = _plan(asked, before, checkpoint)
    if state is not None:
        spec.renew_optimizers(state.trainer)
    parts = assemble_blueprint(spec.blueprint(data, plan))
    settings = {**spec.fit_settings(plan), **_monitored(spec.settings, parts)}
    fit = build_fit({**config, KEY: str(directory), "trainer": settings}, NAME, parts, directory, store, started)
    if asked.run_dir is not None and not old:
        make_directory(directory, config, [])
        stack.enter_context(locked(directory))
        write_record(directory, spec)
    if checkpoint is not None:
        restore_fit(fit, checkpoint)
    elif before is not None:
        _carry_on(before, fit, same_data=plan.epochs_before > 0)
    watch = next(each for each in parts.host_hooks if isinstance(each, Watch))
    own = {key: value for key, value in asdict(plan).items() if key != "class_weights"}
    watch.fits = {
        **own,
        "data": data_fingerprint([data.train]),
        "steps_per_epoch": data.train.size / plan.batch_size,
        "classes": data.classes,
        "input_shape": list(data.input_shape),
        "epochs": asked.epochs,
    }
    return State(parts.trainer, parts.hooks, watch, fit.variables, parts, fit)


def train(state: State, *, writes: bool, quiet: bool) -> dict[str, Any]:
    """Train, and return the summary; Ctrl-C ends it in good order."""
    fit, parts = state.fit, state.parts
    assert fit is not None
    assert parts is not None
    try:
        return run_fit(fit, parts, writes=writes).summary
    except KeyboardInterrupt as error:
        if getattr(error, "signal_number", signal.SIGINT) == signal.SIGTERM:
            raise
        line = f"Stopped after step {fit.run.step:,} of {fit.run.total_steps:,}: what was trained is kept."
        if not quiet:
            open_console().print(line, soft_wrap=True)
        return {"status": "interrupted", "stop_reason": line, "steps": fit.run.step, "final": dict(fit.final)}


def _place(
    stack: ExitStack, config: dict[str, Any], asked: Asked, *, old: bool
) -> tuple[Path, Store, Checkpoint | None]:
    """Return the directory of a fit, not made where it is new, its store, and the checkpoint to resume from."""
    if asked.run_dir is None:
        return NOWHERE, MemoryStore(), None
    own: dict[str, Any] = yaml.safe_load(config_text(config))  # as it is read from its file
    if not old:
        path = choose_directory(str(asked.run_dir), NAME, datetime.now())
        return path, open_store(path, config_digest(own)), None
    directory = asked.run_dir
    stack.enter_context(locked(directory))
    stored = read_stored(str(directory), KEY)
    _check_same(stored, own, directory)
    digest = config_digest(stored)
    store = open_store(directory, digest)
    if not asked.resume:
        return directory, store, None
    checkpoint = store.newest()
    for problem in store.problems():
        warnings.warn(problem, stacklevel=2)
    check_config(directory, checkpoint, digest)
    for difference in changed_environment(directory):
        warnings.warn(f"resume: {difference}; the bits may differ from those of a whole run.", stacklevel=2)
    return directory, store, checkpoint


def _check_same(stored: dict[str, Any], config: dict[str, Any], directory: Path) -> None:
    """Refuse to continue a run of another trainer."""
    settings = spread_settings([stored, config], (KEY,))
    if keys := differing(settings):
        was, now = settings[keys[0]]
        shown = "nothing" if was is MISSING else repr(was)
        raise UserError(
            f"{directory} is the run of another trainer: {keys[0]} was {shown} and is {now!r}. Expected the same "
            "arguments, or another run_dir."
        )


def _plan(asked: Asked, before: State | None, checkpoint: Checkpoint | None) -> Plan:
    """Return how far a fit goes: epochs more of the same data, or of other data from now on."""
    size, batch_size = asked.data.train.size, asked.batch_size
    first, epochs_before, planned = 0, 0, None
    if before is not None:
        known = before.watch.fits
        planned, first = known.get("planned_steps"), before.step
        if known and known["batch_size"] == batch_size and known["data"] == data_fingerprint([asked.data.train]):
            first = known["first_step"]
            epochs_before = math.floor((before.step - first) * batch_size / size + 1e-9)
    elif checkpoint is not None:
        known = checkpoint.state["hooks"][HISTORY]["fit"]
        first, epochs_before, planned = (known[key] for key in ("first_step", "epochs_before", "planned_steps"))
    total = first - (-(epochs_before + asked.epochs) * size // batch_size)
    weights = asked.class_weight
    by_label = None if weights is None else {int(label): weight for label, weight in weights.items()}
    return Plan(first, total, planned or total, batch_size, epochs_before, by_label)


def _monitored(settings: Mapping[str, Any], parts: Assembly) -> dict[str, str]:
    """Return the settings of the metric that says which evaluation is the best."""
    evaluator = parts.evaluators.get("validation")
    names = evaluator.names if evaluator is not None else []
    losses = [name for name in names if name.endswith("loss/total")]
    default = ACCURACY_METRIC if ACCURACY_METRIC in names else next(iter(losses), "loss/total")
    chosen = settings["monitor"] or default
    if names and chosen not in names:
        raise unknown_name("metric monitor", chosen, names)
    higher = "loss" not in chosen and "error" not in chosen
    return {"monitor": chosen, "monitor_mode": settings["monitor_mode"] or ("max" if higher else "min")}


def _carry_on(before: State, fit: Fit, *, same_data: bool) -> None:
    """Let a fit begin where another one, of the same trainer, ended; of the same data, evaluations compare."""
    values = {key: variable for key, variable in before.variables.items() if key != SUMS}
    own = {key: variable for key, variable in fit.variables.items() if key != SUMS}
    if values.keys() != own.keys():  # layers of hooks got other numbers: in order
        if [each.shape for each in values.values()] != [each.shape for each in own.values()]:
            raise UserError(
                "The networks or hooks of this fit are not those of the one before. Expected a new Trainer."
            )
        values = dict(zip(own, values.values(), strict=True))
    assign_variables(own, {key: each.numpy() for key, each in values.items()}, "the fit before")
    run = fit.run
    run.step, run.resumed_at = before.step, [before.step]
    known = {hook.name: hook for hook in before.hooks if isinstance(hook, HostHook)}
    for hook in fit.host_hooks:
        if (old := known.get(hook.name)) is not None and old is not hook:
            hook.load_state_dict(old.state_dict())
    if before.fit is not None:
        run.warnings, fit.warned = list(before.fit.run.warnings), set(before.fit.warned)
        run.resumed_at = [*before.fit.run.resumed_at, before.step]
        fit.elapsed_before = before.fit.elapsed
        if same_data:
            run.best.put_back(before.fit.run.best.as_json())
