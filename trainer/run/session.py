"""One run from its config, or from where it was left, to its summary: open the data, build, trace, train, test."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
import yaml

from hookline.trainer.config.resume import CONFIG_DIGEST, config_digest
from hookline.trainer.config.stored import read_stored
from hookline.trainer.errors import UnsavedError, UserError, did_you_mean
from hookline.trainer.hook import HostHook
from hookline.trainer.network import Network
from hookline.trainer.replicas.strategy import NONE, describe_replicas
from hookline.trainer.run.assembly import Assembly, assemble
from hookline.trainer.run.checkpoint import CheckpointStore, Store
from hookline.trainer.run.control import Best, Cadence, Run
from hookline.trainer.run.directory import choose_directory, config_text, environment, make_directory
from hookline.trainer.run.fingerprint import data_fingerprint
from hookline.trainer.run.fit import Fit
from hookline.trainer.run.follow import follow
from hookline.trainer.run.interruption import Interrupted, Interruption, termination_interrupts
from hookline.trainer.run.lock import locked
from hookline.trainer.run.network_summary import Forms, NetworkSummary, measure_size, summarize_network
from hookline.trainer.run.precision import check_precision, describe_precision
from hookline.trainer.run.process import estimated, memory_errors, peak_memory_bytes
from hookline.trainer.run.release import released_graphs
from hookline.trainer.run.resume import (
    changed_environment,
    check_config,
    check_place,
    completed_summary,
    existing_directory,
    restore_fit,
)
from hookline.trainer.run.start_time import StartTime
from hookline.trainer.run.state import run_variables, shipped_forms
from hookline.trainer.run.summary import answer, build_summary, write_summary
from hookline.trainer.run.times import judge_input
from hookline.trainer.run.views import Views
from hookline.trainer.run.workers import ClusterWorkers, Workers, join_workers

PlanText = Callable[[Mapping[str, Any], str, Assembly], str]


@dataclass(frozen=True)
class Outcome:
    """Hold what a run leaves behind.

    Attributes:
        summary: what its summary.json holds; empty for a worker beside the first.
        directory: of the run; None for a worker beside the first, which writes nothing.
        parts: what was trained; None where the run was complete already, so that nothing was built.
    """

    summary: dict[str, Any]
    directory: Path | None = None
    parts: Assembly | None = None


def execute(
    config: Mapping[str, Any],
    recipe: str,
    overrides: Sequence[str],
    *,
    plan: PlanText | None = None,
    began: float | None = None,
) -> dict[str, Any]:
    """Run as `carry_out` does, and return only what summary.json holds.

    Args:
        config: as for `carry_out`, like all others.
        recipe: the recipe's name.
        overrides: the command line's.
        plan: describes the run for the dashboard.
        began: when the run was asked for.
    """
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
    """Run a validated config, or go on with a run, and return what it leaves behind.

    Of a new run nothing is written before the data is open, the networks are built, and the step is traced and audited.

    Args:
        config: the resolved config; with `resume`, that of the run to go on with.
        recipe: the recipe's name, such as "bnn" or "bnn+frozen_mask".
        overrides: the command line's.
        plan: describes the run for the dashboard, from config, recipe and assembly; None for no text.
        began: when the run was asked for, by `time.monotonic`; None for now.

    Raises:
        UserError: a mistake that the user can mend.
        NonFiniteError: training produced NaN or infinity; the run directory says so.
        Interrupted: a signal or the wall-clock budget ended the run before its time; it can be resumed.
        WorkersError: the run has several processes, and they cannot go on together.
    """
    started = StartTime(began)
    started.end("import")
    settings = config["trainer"]
    _set_threads(settings["threads"])
    workers = join_workers(settings)
    try:
        check_precision(settings["precision"], allow_slow=settings["allow_slow_precision"])
        if isinstance(workers, ClusterWorkers) and workers.index:
            outcome = _follow(config, workers)
        elif config["resume"] is not None:
            outcome = _resume(config, recipe, started, workers, plan)
        else:
            outcome = _begin(config, recipe, overrides, started, workers, plan)
    except BaseException as error:
        workers.leave(error)
        raise
    workers.leave(None)
    return outcome


def _begin(
    config: Mapping[str, Any],
    recipe: str,
    overrides: Sequence[str],
    started: StartTime,
    workers: Workers,
    plan: PlanText | None,
) -> Outcome:
    """Make a new run."""
    directory = choose_directory(config["run_dir"], recipe, datetime.now())
    parts = prepare(config, workers)
    workers.compare(config, parts, directory)
    _note_build(started, parts)
    digest = config_digest(yaml.safe_load(config_text(config)))  # of what is read again
    fit = build_fit(config, recipe, parts, directory, open_store(directory, digest), started, plan)
    fit.workers = workers
    make_directory(directory, config, overrides)
    with locked(directory):
        return run_fit(fit, parts)


def _follow(config: Mapping[str, Any], workers: ClusterWorkers) -> Outcome:
    """Train beside the chief, which writes; nothing is left here to sum up."""
    begun = {} if config["resume"] is None else {"init_from": None}  # the chief gives its variables then
    parts = prepare({**config, **begun}, workers)
    workers.compare({**config, **begun}, parts)
    follow(config["trainer"], parts, workers)
    return Outcome({})


def _note_build(started: StartTime, parts: Assembly) -> None:
    started.end("build")
    started.split("build", parts.trace_seconds, "trace")


def _resume(
    config: Mapping[str, Any], recipe: str, started: StartTime, workers: Workers, plan: PlanText | None
) -> Outcome:
    """Go on with a run from its newest sound checkpoint; from its start where there is none yet."""
    directory = existing_directory(config["resume"])
    with locked(directory):
        if (summary := completed_summary(directory)) is not None:
            warnings.warn(f"{directory} is complete: nothing is left to do.", stacklevel=2)
            workers.leave(None, complete=True)
            return Outcome(summary, directory)
        digest = config_digest(read_stored(str(directory), "resume"))
        store = open_store(directory, digest)
        checkpoint = store.newest()
        for problem in store.problems():
            warnings.warn(problem, stacklevel=2)
        check_config(directory, checkpoint, digest)
        if checkpoint is None:
            check_place(directory, config)
        begun = {} if checkpoint is None else {"init_from": None}
        parts = prepare({**config, **begun}, workers)
        workers.compare({**config, "init_from": None}, parts, directory)
        _note_build(started, parts)
        for difference in changed_environment(directory):
            warnings.warn(f"resume: {difference}; the bits may differ from those of a whole run.", stacklevel=2)
        fit = build_fit(config, recipe, parts, directory, store, started, plan)
        fit.workers = workers
        if checkpoint is None:
            fit.run.resumed_at = [0]
        else:
            restore_fit(fit, checkpoint)
        return run_fit(fit, parts)


def open_store(directory: Path, digest: str) -> CheckpointStore:
    """Return the store for the checkpoints of a run directory, which knows this process's environment.

    Args:
        directory: of the run.
        digest: of the run's config.
    """
    return CheckpointStore(directory / "checkpoints", environment={**environment(), CONFIG_DIGEST: digest})


def prepare(config: Mapping[str, Any], workers: Workers | None = None) -> Assembly:
    """Open the data, build everything, trace and audit the step; nothing is written, nothing trained.

    Args:
        config: the resolved config.
        workers: of a run that is trained; None where it is looked at in this process alone.

    Raises:
        UserError: a mistake that the user can mend.
    """
    keras.utils.clear_session()
    _set_threads(config["trainer"]["threads"])
    parts = assemble(config, (workers or Workers()).replicas(config["trainer"]))
    _check_monitor(config["trainer"]["monitor"], parts.validation.names)
    return parts


def _set_threads(threads: int | None) -> None:
    if threads is not None and tf.config.threading.get_intra_op_parallelism_threads() != threads:
        try:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
        except RuntimeError as error:
            raise UserError(
                f"trainer.threads={threads} comes too late: TensorFlow has started with another number. "
                "Expected the same number for all runs of a process."
            ) from error


def _check_monitor(monitor: str, names: Sequence[str]) -> None:
    if monitor not in names:
        raise UserError(
            f"Unknown metric trainer.monitor={monitor}.{did_you_mean(monitor, names)} "
            f"Expected one of: {', '.join(sorted(names))}."
        )


def build_fit(
    config: Mapping[str, Any],
    recipe: str,
    parts: Assembly,
    directory: Path,
    store: Store,
    started: StartTime,
    plan: PlanText | None = None,
) -> Fit:
    """Return what trains a run; nothing is written yet.

    Args:
        config: the resolved config.
        recipe: name.
        parts: as `prepare` built them from the config.
        directory: of the run.
        store: for its checkpoints; in memory for a run that writes nothing.
        started: the time to the first step, up to here.
        plan: describes the run for the dashboard; None for no text.
    """
    settings = config["trainer"]
    views, variables = _views(parts), _variables(parts)
    run = Run(
        directory=directory,
        recipe=recipe,
        config=dict(config),
        networks=parts.trainer.networks,
        batch_size=settings["batch_size"],
        total_steps=parts.total_steps,
        steps_per_epoch=parts.steps_per_epoch,
        plan=estimated("The plan of the run", lambda: plan(config, recipe, parts) if plan else "", ""),
        best=Best(settings["monitor"], settings["monitor_mode"], since=parts.best_from_step),
        pictures=views.pictures,
        embeddings=views.embeddings,
        distributions=views.distributions,
        graph=partial(parts.loop.step_graph, variables),
        training=parts.training,
        first_pictures=views.first_pictures,
        held_out={name: each.split for name, each in parts.evaluated.items()},
        replicas=parts.trainer.replica.count,
    )
    every = settings["evaluate_every_epochs"], settings["report_every_steps"]
    cadence = Cadence(parts.total_steps, parts.steps_per_epoch, *every, parts.training.first_step)
    return Fit(
        run,
        parts.loop,
        parts.evaluators.get("validation"),
        parts.evaluators.get("test"),
        parts.hooks,
        cadence,
        store,
        variables,
        fingerprint=data_fingerprint([parts.training.split, *(each.split for each in parts.evaluated.values())]),
        interruption=Interruption(settings["max_seconds"]),
        started=started,
    )


def _variables(parts: Assembly) -> dict[str, tf.Variable]:
    trainer, sums = parts.trainer, parts.loop.accumulators.variable
    return run_variables(trainer.networks.values(), trainer.hooks, sums, trainer.loss_scale)


def _views(parts: Assembly) -> Views:
    trainer = parts.trainer
    return Views(
        parts.hooks,
        trainer.objectives,
        parts.observer,
        parts.evaluated,
        parts.training,
        trainer.networks,
        parts.shipped,
    )


def run_fit(fit: Fit, parts: Assembly, *, writes: bool = True) -> Outcome:
    """Train and test; whatever happens, leave a summary.json that says how it ended and let hooks close.

    Args:
        fit: from its step on.
        parts: that it runs.
        writes: whether there is a run directory; otherwise nothing is left but what is returned.
    """
    test: dict[str, Any] = {}
    failure: BaseException | None = None
    try:
        fit.store.sweep()
        fit.tell_problems()
        with fit.interruption.listening():
            fit.train()
        test = fit.finish()
    except BaseException as error:  # noqa: BLE001 - raised again, once the run directory says how it ended
        failure = fit.run.error = error
        fit.wait_for_checkpoints()
    fit.name_what_is_saved()
    status, reason = _ending(failure, fit.run.control.stop_reason)
    networks, forms = parts.trainer.networks, shipped_forms(parts.trainer, fit.run.step, parts.shipped)
    settings = fit.run.config["trainer"]
    summary = build_summary(
        fit.run,
        status=status,
        reason=reason,
        seconds=fit.elapsed,
        size=measure_size(networks.values(), {name: each.stored_bits for name, each in forms.items()}),
        networks=estimated("What the networks are made of", partial(_network_summaries, networks, forms), {}),
        final=fit.final,
        test=test,
        hooks=_hook_summaries(fit, parts),
        digest=fit.digest,
        verdict=judge_input(fit.run, measure=failure is None),
        precision=describe_precision(settings["precision"], parts.trainer.loss_scale),
        replicas=describe_replicas(settings.get("strategy", NONE), parts.trainer.replica, fit.run.batch_size),
        memory=estimated("The peak of the memory", peak_memory_bytes, {}),
        start=fit.started.summary() if fit.run.first_step_seconds else None,
    )
    summary |= fit.workers.summary()
    failures = _summary_failures(fit.run.directory, summary) if writes else []
    failures += fit.call_all("on_fit_end", fit.run, summary)
    outcome = Outcome(summary, fit.run.directory, parts)
    if isinstance(failure, Interrupted):
        failure.outcome = outcome
    if failure is not None:
        raise failure
    if failures:
        raise failures[0]
    return outcome


def _network_summaries(networks: Mapping[str, Network], forms: Mapping[str, Forms]) -> dict[str, NetworkSummary]:
    return {name: summarize_network(network, forms[name]) for name, network in networks.items()}


def _summary_failures(directory: Path, summary: dict[str, Any]) -> list[Exception]:
    try:
        write_summary(directory, summary)
    except OSError as error:
        return [
            UserError(
                f"Cannot write {directory}/summary.json: {error.strerror}. Make room; the result comes from python "
                f"train.py resume={directory}."
            )
        ]
    return []


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


def _hook_summaries(fit: Fit, parts: Assembly) -> dict[str, dict[str, Any]]:
    summaries: dict[str, dict[str, Any]] = {}
    for hook in parts.hooks:
        timed = {"host_seconds": round(fit.seconds[hook.name], 3)} if isinstance(hook, HostHook) else {}
        summaries[hook.name] = {**answer(hook, "summary", {}), **timed}
    return summaries
