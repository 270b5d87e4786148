"""A run from its config or its checkpoint to its summary: open the data, build, trace, train, test."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
import yaml

from hookline.trainer.config.stored import CONFIG_DIGEST, config_digest, read_stored, without_initial
from hookline.trainer.deferred import termination_interrupts
from hookline.trainer.errors import Interrupted, UnsavedError, UserError, user_path
from hookline.trainer.run.blueprint import from_config
from hookline.trainer.run.build_run import build_run
from hookline.trainer.run.checkpoint import CheckpointStore
from hookline.trainer.run.checkpoint_files import Checkpoint, tensors_digest
from hookline.trainer.run.control import Interruption
from hookline.trainer.run.directory import choose_directory, config_text, environment, locked, make_directory
from hookline.trainer.run.machine import check_precision, estimated, kept_seeds, memory_errors, released_graphs
from hookline.trainer.run.results import is_complete, read_summary
from hookline.trainer.run.run import Run
from hookline.trainer.run.state import changed_environment, check_config, restore_run, values_by_key
from hookline.trainer.run.summary import build_summary, write_summary
from hookline.trainer.run.times import Times
from hookline.trainer.run.workers import ClusterWorkers, Workers, follow, join_workers

PlanText = Callable[[Run], str]


@dataclass(frozen=True)
class Outcome:
    """Hold the outcome of a run."""

    summary: dict[str, Any]  # contents of summary.json; empty for a worker other than the first
    directory: Path | None = None  # None for a worker other than the first, which writes nothing
    run: Run | None = None  # None for such a worker, or if the run was complete already


@kept_seeds()
@released_graphs()
@termination_interrupts()
@memory_errors()
def execute(
    config: Mapping[str, Any],
    recipe: str,
    overrides: Sequence[str],
    *,
    plan: PlanText = lambda run: "",
    began: float | None = None,
) -> Outcome:
    """Run a validated config, or resume a run; `began` is the time of the request on the clock of `time.monotonic`."""
    times = Times() if began is None else Times(latest=began)
    times.started("import")
    settings = config["trainer"]
    _set_threads(settings["threads"])
    workers = join_workers(settings)
    given = {"workers": workers, "times": times, "plan": plan}
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
    """Start a new run; nothing is written before the step is traced and audited."""
    choose = partial(choose_directory, config["run_dir"], recipe, datetime.now())
    digest = config_digest(yaml.safe_load(config_text(config)))  # of the config as a resumed run reads it
    store = open_store(directory := choose(), digest)
    run = prepare(config, recipe, directory=directory, store=store, **given)
    workers = given["workers"]
    workers.compare(run)  # also sends the directory to the others
    run.directory = make_directory(directory, config, overrides, choose if workers.count == 1 else None)
    store.directory = run.directory / store.directory.name
    with locked(run.directory):
        return complete(run)


def _follow(config: Mapping[str, Any], workers: ClusterWorkers) -> Outcome:
    """Train alongside the chief; only the chief writes files."""
    run = prepare(config, workers=workers, begun=config["resume"] is not None)  # the chief sends its variables then
    workers.compare(run)
    follow(run, workers)
    return Outcome({})


def _resume(config: Mapping[str, Any], recipe: str, **given: Any) -> Outcome:
    """Resume a run from its newest sound checkpoint; from its start if there is none yet."""
    directory = user_path(config["resume"], "resume")
    with locked(directory):
        if is_complete(summary := read_summary(directory)):
            warnings.warn(f"{directory} is complete: nothing is left to do.", stacklevel=2)
            given["workers"].leave(None, complete=True)
            return Outcome(summary, directory)
        store, checkpoint = open_existing(directory, config_digest(read_stored(str(directory), "resume")))
        run = prepare(config, recipe, directory=directory, store=store, begun=checkpoint is not None, **given)
        given["workers"].compare(run)
        if checkpoint is None:
            run.journal.resumed_at = [0]
        else:
            restore_run(run, checkpoint)
        return complete(run)


def open_store(directory: Path, digest: str) -> CheckpointStore:
    """Return the store of a run directory, which writes the environment and the config's digest into checkpoints."""
    return CheckpointStore(directory / "checkpoints", environment={**environment(), CONFIG_DIGEST: digest})


def open_existing(directory: Path, digest: str) -> tuple[CheckpointStore, Checkpoint | None]:
    """Return the store of a run and its newest sound checkpoint; warn about damage and a changed environment."""
    store = open_store(directory, digest)
    checkpoint = store.newest()
    store.warn()
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
    plan: PlanText = lambda run: "",
    **given: Any,
) -> Run:
    """Open the data, build everything, trace and audit the step; a run that has `begun` needs no initial weights."""
    keras.utils.clear_session()
    settings, workers = config["trainer"], workers or Workers()
    _set_threads(settings["threads"])
    blueprint = replace(from_config(without_initial(config) if begun else config, recipe), config=config)
    run = build_run(blueprint, replicas=workers.replicas(settings), workers=workers, **given)
    run.plan = estimated("The plan of the run", lambda: plan(run), "")
    return run


def _set_threads(threads: int | None) -> None:
    if threads is not None and tf.config.threading.get_intra_op_parallelism_threads() != threads:
        try:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
        except RuntimeError as error:
            used = "TensorFlow already uses another number of threads"
            raise UserError(f"trainer.threads={threads} has no effect any more: {used}.") from error


def complete(run: Run, interruption: Interruption | None = None, *, writes: bool = True) -> Outcome:
    """Train and test; whatever happens, close the hooks and write a summary.json with the final status."""
    test: dict[str, Any] = {}
    failure: BaseException | None = None
    digest: str | None = None
    try:
        run.fit(interruption)
        digest = tensors_digest(values_by_key(run.variables))
        test = run.finish()
    except BaseException as error:  # noqa: BLE001 - raised again once the summary is written
        failure = error
        run.wait_for_checkpoints()
    run.name_what_is_saved()
    status, reason = _ending(failure, run.control.stop_reason)
    ending = {"status": status, "stop_reason": reason, "test": test, "digest": digest}
    summary = build_summary(run, ending, failed=failure is not None)
    failures = run.call("on_fit_end", summary, closing=True)
    if writes:  # last: a run killed before this tests again when resumed, and its hooks end again
        try:
            write_summary(run.directory, summary)
        except OSError as error:
            text = f"Cannot write {run.directory}/summary.json: {error.strerror}. Make room; the result comes from"
            failures.insert(0, UnsavedError(f"{text} {run.resume_command()}."))
    outcome = Outcome(summary, run.directory, run)
    if isinstance(failure, KeyboardInterrupt):
        failure.outcome = outcome  # type: ignore[attr-defined]
    if failure is not None:
        raise failure
    if failures:
        raise failures[0]
    return outcome


def _ending(failure: BaseException | None, stop_reason: str | None) -> tuple[str, str | None]:
    """Return the status and the reason for summary.json."""
    if failure is None:
        return ("completed", None) if stop_reason is None else ("stopped", stop_reason)
    if isinstance(failure, Interrupted) and failure.signal_number is None:
        status = "paused"
    elif isinstance(failure, KeyboardInterrupt):
        status = "interrupted"
    else:
        status = "unsaved" if isinstance(failure, UnsavedError) else "failed"
    return status, str(failure) or type(failure).__name__
