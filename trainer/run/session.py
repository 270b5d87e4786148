"""One run from its config to its summary: open the data, build, trace, audit, train, test."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from trainer.errors import UserError, did_you_mean
from trainer.hook import HostHook
from trainer.plan.markdown import as_markdown
from trainer.plan.run import plan_run
from trainer.run.assembly import Assembly, assemble
from trainer.run.cadence import Cadence
from trainer.run.checkpoint import CheckpointStore
from trainer.run.control import Best, Run
from trainer.run.directory import choose_directory, make_directory
from trainer.run.fit import Fit
from trainer.run.input_verdict import judge_input
from trainer.run.release import released_graphs
from trainer.run.shipped import stored_bits
from trainer.run.size import measure_size
from trainer.run.state import run_variables
from trainer.run.summary import build_summary, write_summary
from trainer.run.views import Views


@released_graphs()
def execute(config: Mapping[str, Any], recipe: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Run a validated config and return what its summary.json holds.

    Nothing is written before the data is open, the networks are built, and the step is traced and audited.

    Args:
        config: the resolved config.
        recipe: the recipe's name, such as "bnn" or "bnn+frozen_mask".
        overrides: the command line's.

    Raises:
        UserError: a mistake that the user can mend.
        NonFiniteError: training produced NaN or infinity; the run directory says so.
    """
    directory = choose_directory(config["run_dir"], recipe, datetime.now())
    parts = prepare(config)
    make_directory(directory, config, overrides)
    fit = _fit(config, recipe, parts, directory)
    return _train(fit, parts)


def prepare(config: Mapping[str, Any]) -> Assembly:
    """Open the data, build everything, trace and audit the step; nothing is written, nothing trained.

    Args:
        config: the resolved config.

    Raises:
        UserError: a mistake that the user can mend.
    """
    keras.utils.clear_session()
    _set_threads(config["trainer"]["threads"])
    parts = assemble(config)
    _check_monitor(config["trainer"]["monitor"], parts.validation.names)
    return parts


def _set_threads(threads: int | None) -> None:
    if threads is not None and tf.config.threading.get_intra_op_parallelism_threads() != threads:
        try:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
        except RuntimeError as error:
            raise UserError(
                f"trainer.threads={threads} comes too late: TensorFlow has started with another number. "
                "Give every job of a sweep the same number, or start them one by one."
            ) from error


def _check_monitor(monitor: str, names: Sequence[str]) -> None:
    if monitor not in names:
        raise UserError(
            f"Unknown metric trainer.monitor={monitor}.{did_you_mean(monitor, names)} "
            f"Expected one of: {', '.join(sorted(names))}."
        )


def _fit(config: Mapping[str, Any], recipe: str, parts: Assembly, directory: Path) -> Fit:
    settings = config["trainer"]
    views = Views(parts.hooks, parts.trainer.objectives, parts.observer, parts.evaluated, parts.training)
    run = Run(
        directory=directory,
        recipe=recipe,
        config=dict(config),
        networks=parts.trainer.networks,
        batch_size=settings["batch_size"],
        total_steps=parts.total_steps,
        steps_per_epoch=parts.steps_per_epoch,
        plan=as_markdown(plan_run(config, recipe, parts)),
        best=Best(
            settings["monitor"],
            settings["monitor_mode"],
            since=parts.settled_at,
        ),
        pictures=views.pictures,
        embeddings=views.embeddings,
        training=parts.training,
        first_pictures=views.first_pictures,
        held_out={name: each.split for name, each in parts.evaluated.items()},
    )
    cadence = Cadence(
        parts.total_steps, parts.steps_per_epoch, settings["evaluate_every_epochs"], settings["report_every_steps"]
    )
    variables = run_variables(parts.trainer.networks.values(), parts.trainer.hooks, parts.loop.accumulators.variable)
    store = CheckpointStore(directory / "checkpoints")
    return Fit(run, parts.loop, parts.validation, parts.test, parts.hooks, cadence, store, variables)


def _train(fit: Fit, parts: Assembly) -> dict[str, Any]:
    """Train and test; whatever happens, leave a summary.json that says how it ended and let hooks close."""
    start = time.perf_counter()
    test: dict[str, Any] = {}
    failure: BaseException | None = None
    try:
        fit.train()
        test = fit.finish()
    except BaseException as error:  # noqa: BLE001 - raised again, once the run directory says how it ended
        failure = error
        fit.call_all("on_exception", fit.run, error)
    status, reason = _ending(failure, fit.run.control.stop_reason)
    networks, bits = parts.trainer.networks, stored_bits(parts.trainer, fit.run.step)
    summary = build_summary(
        fit.run,
        status=status,
        reason=reason,
        seconds=time.perf_counter() - start,
        size=measure_size(networks.values(), bits),
        sizes={name: measure_size([network], bits) for name, network in networks.items()},
        final=fit.final,
        test=test,
        hooks=_hook_summaries(fit, parts),
        verdict=judge_input(fit.run, measure=failure is None),
    )
    write_summary(fit.run.directory, summary)
    closing_failures = fit.call_all("on_fit_end", fit.run, summary)
    if failure is not None:
        raise failure
    if closing_failures:
        raise closing_failures[0]
    return summary


def _ending(failure: BaseException | None, stop_reason: str | None) -> tuple[str, str | None]:
    """Return the status and the reason that summary.json gives."""
    if failure is None:
        return ("completed", None) if stop_reason is None else ("stopped", stop_reason)
    status = "interrupted" if isinstance(failure, KeyboardInterrupt) else "failed"
    return status, str(failure) or type(failure).__name__


def _hook_summaries(fit: Fit, parts: Assembly) -> dict[str, dict[str, Any]]:
    summaries: dict[str, dict[str, Any]] = {}
    for hook in parts.hooks:
        timed = {"host_seconds": round(fit.seconds[hook.name], 3)} if isinstance(hook, HostHook) else {}
        summaries[hook.name] = {**hook.summary(), **timed}
    return summaries
