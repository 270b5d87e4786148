"""One run from its config, or from where it was left, to its summary: open the data, build, trace, train, test."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
import yaml

from hookline.trainer.config.stored import CONFIG_DIGEST, config_digest, read_stored
from hookline.trainer.errors import UnsavedError, UserError
from hookline.trainer.run.blueprint import from_config
from hookline.trainer.run.build_run import build_run
from hookline.trainer.run.checkpoint import Checkpoint, CheckpointStore
from hookline.trainer.run.directory import choose_directory, config_text, environment, locked, make_directory
from hookline.trainer.run.finished import without_initial
from hookline.trainer.run.interruption import Interrupted, Interruption, termination_interrupts
from hookline.trainer.run.precision import check_precision
from hookline.trainer.run.process import estimated, memory_errors, released_graphs
from hookline.trainer.run.resume import (
    changed_environment,
    check_config,
    check_place,
    completed_summary,
    existing_directory,
    restore_run,
)
from hookline.trainer.run.run import Run
from hookline.trainer.run.start_time import StartTime
from hookline.trainer.run.summary import build_summary, write_summary
from hookline.trainer.run.workers import ClusterWorkers, Workers, follow, join_workers

PlanText = Callable[[Run], str]


@dataclass(frozen=True)
class Outcome:
    """Hold what a run leaves behind.

    Attributes:
        summary: what its summary.json holds; empty for a worker beside the first.
        directory: of the run; None for a worker beside the first, which writes nothing.
        run: that was trained; None where it was complete already, so that nothing was built.
    """

    summary: dict[str, Any]
    directory: Path | None = None
    run: Run | None = None


def execute(
    config: Mapping[str, Any],
    recipe: str,
    overrides: Sequence[str],
    *,
    plan: PlanText | None = None,
    began: float | None = None,
) -> dict[str, Any]:
    """Run as `carry_out` does, and return only what summary.json holds."""
    return carry_out(config, recipe, overrides, plan=plan, began=began).summary


@released_graphs()
@termination_interrupts()
@memory_errors()
def carry_out(
    config: Mapping[str, Any],
    recipe: str,
    overrides: Sequence[str],
    *,
    plan: PlanText | None = None,
    began: float | None = None,
) -> Outcome:
    """Run a validated config, or resume a run, and return what it leaves behind.

    Of a new run nothing is written before the data is open, the networks are built, and the step is traced and audited.

    Args:
        config: the resolved config; with `resume`, that of the run to resume.
        recipe: the recipe's name, such as "bnn" or "bnn+frozen_mask".
        overrides: the command line's.
        plan: describes the run for the dashboard; None for no text.
        began: when the run was asked for, by `time.monotonic`; None for now.

    Raises:
        UserError: a mistake that the user can fix.
        NonFiniteError: training produced NaN or infinity; the run directory says so.
        Interrupted: a signal or the wall-clock budget ended the run before its time; it can be resumed.
        WorkersError: the run has several processes, and they cannot continue together.
    """
    started = StartTime(began)
    started.end("import")
    settings = config["trainer"]
    _set_threads(settings["threads"])
    workers = join_workers(settings)
    given = {"workers": workers, "started": started, "plan": plan}
    try:
        check_precision(settings["precision"], allow_slow=settings["allow_slow_precision"])
        if isinstance(workers, ClusterWorkers) and workers.index:
            outcome = _follow(config, workers)
        elif config["resume"] is not None:
            outcome = _resume(config, recipe, **given)
        else:
            outcome = _begin(config, recipe, overrides, **given)
    except BaseException as error:
        workers.leave(error)
        raise
    workers.leave(None)
    return outcome


def _begin(config: Mapping[str, Any], recipe: str, overrides: Sequence[str], **given: Any) -> Outcome:
    """Make a new run."""
    directory = choose_directory(config["run_dir"], recipe, datetime.now())
    digest = config_digest(yaml.safe_load(config_text(config)))  # of what is read again
    run = prepare(config, recipe, directory=directory, store=open_store(directory, digest), **given)
    run.workers.compare(run)
    make_directory(directory, config, overrides)
    with locked(directory):
        return complete(run)


def _follow(config: Mapping[str, Any], workers: ClusterWorkers) -> Outcome:
    """Train beside the chief, which writes; nothing is left here to sum up."""
    run = prepare(config, workers=workers, begun=config["resume"] is not None)  # the chief gives its variables then
    workers.compare(run)
    follow(run, workers)
    return Outcome({})


def _resume(config: Mapping[str, Any], recipe: str, **given: Any) -> Outcome:
    """Resume a run from its newest sound checkpoint; from its start where there is none yet."""
    directory = existing_directory(config["resume"])
    with locked(directory):
        if (summary := completed_summary(directory)) is not None:
            warnings.warn(f"{directory} is complete: nothing is left to do.", stacklevel=2)
            given["workers"].leave(None, complete=True)
            return Outcome(summary, directory)
        store, checkpoint = open_existing(directory, config_digest(read_stored(str(directory), "resume")))
        if checkpoint is None:
            check_place(directory, config)
        run = prepare(config, recipe, directory=directory, store=store, begun=checkpoint is not None, **given)
        run.workers.compare(run)
        if checkpoint is None:
            run.journal.resumed_at = [0]
        else:
            restore_run(run, checkpoint)
        return complete(run)


def open_store(directory: Path, digest: str) -> CheckpointStore:
    """Return the store for the checkpoints of a run directory, which knows this process's environment.

    Args:
        directory: of the run.
        digest: of the run's config.
    """
    return CheckpointStore(directory / "checkpoints", environment={**environment(), CONFIG_DIGEST: digest})


def open_existing(directory: Path, digest: str) -> tuple[CheckpointStore, Checkpoint | None]:
    """Return the store of a run and its newest sound checkpoint; warn of what is damaged, and of another environment.

    Args:
        directory: of the run.
        digest: of the run's config.

    Raises:
        UserError: no checkpoint is sound any more, or the config has changed since.
    """
    store = open_store(directory, digest)
    checkpoint = store.newest()
    for problem in store.problems():
        warnings.warn(problem, stacklevel=2)
    check_config(directory, checkpoint, digest)
    for difference in changed_environment(directory):
        warnings.warn(f"resume: {difference}; the bits may differ from those of a whole run.", stacklevel=2)
    return store, checkpoint


def prepare(
    config: Mapping[str, Any],
    recipe: str = "",
    *,
    workers: Workers | None = None,
    begun: bool = False,
    plan: PlanText | None = None,
    **given: Any,
) -> Run:
    """Open the data, build everything, trace and audit the step; nothing is written, nothing trained.

    Args:
        config: the resolved config.
        recipe: the recipe's name.
        workers: of a run that is trained; None where it is looked at in this process alone.
        begun: whether its weights come from a checkpoint, not from what `init_from` names.
        plan: describes the run; None for no text.
        **given: to `build_run`.

    Raises:
        UserError: a mistake that the user can fix.
    """
    keras.utils.clear_session()
    settings, workers = config["trainer"], workers or Workers()
    _set_threads(settings["threads"])
    blueprint = from_config(without_initial(config) if begun else config, recipe)
    blueprint = replace(blueprint, config=config)
    run = build_run(blueprint, replicas=workers.replicas(settings), workers=workers, **given)
    if plan is not None:
        describe = plan
        run.plan = estimated("The plan of the run", lambda: describe(run), "")
    return run


def _set_threads(threads: int | None) -> None:
    if threads is not None and tf.config.threading.get_intra_op_parallelism_threads() != threads:
        try:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
        except RuntimeError as error:
            raise UserError(
                f"trainer.threads={threads} comes too late: TensorFlow has started with another number. "
                "Expected the same number for all runs of a process."
            ) from error


def complete(run: Run, interruption: Interruption | None = None, *, writes: bool = True) -> Outcome:
    """Train and test; whatever happens, leave a summary.json that says how it ended and let hooks close.

    Args:
        run: from its step on.
        interruption: as for `Run.fit`.
        writes: whether there is a run directory; otherwise nothing is left but what is returned.
    """
    test: dict[str, Any] = {}
    failure: BaseException | None = None
    try:
        run.store.sweep()
        run.tell_problems()
        run.fit(interruption)
        test = run.finish()
    except BaseException as error:  # noqa: BLE001 - raised again, once the run directory says how it ended
        failure = run.error = error
        run.wait_for_checkpoints()
    run.name_what_is_saved()
    status, reason = _ending(failure, run.control.stop_reason)
    summary = build_summary(run, status=status, reason=reason, test=test, failed=failure is not None)
    failures: list[Exception] = []
    if writes:
        try:
            write_summary(run.directory, summary)
        except OSError as error:
            text = f"Cannot write {run.directory}/summary.json: {error.strerror}. Make room; the result comes from"
            failures.append(UserError(f"{text} python train.py resume={run.directory}."))
    failures += run.call("on_fit_end", summary, closing=True)
    outcome = Outcome(summary, run.directory, run)
    if isinstance(failure, Interrupted):
        failure.outcome = outcome
    if failure is not None:
        raise failure
    if failures:
        raise failures[0]
    return outcome


def _ending(failure: BaseException | None, stop_reason: str | None) -> tuple[str, str | None]:
    """Return the status and the reason that summary.json gives."""
    if failure is None:
        return ("completed", None) if stop_reason is None else ("stopped", stop_reason)
    if isinstance(failure, Interrupted) and failure.signal_number is None:
        return "paused", str(failure)
    status = "interrupted" if isinstance(failure, KeyboardInterrupt) else "failed"
    if isinstance(failure, UnsavedError):
        status = "unsaved"
    return status, str(failure) or type(failure).__name__
