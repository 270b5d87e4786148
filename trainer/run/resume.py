"""Resuming a run: what it knew besides its variables, and what has changed around it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookline.trainer.config.plugins import used_plugins
from hookline.trainer.config.resume import CONFIG_DIGEST
from hookline.trainer.config.stored import FILE_NAME, read_stored
from hookline.trainer.errors import UserError, user_path
from hookline.trainer.files import read_json
from hookline.trainer.run.directory import ENVIRONMENT, environment
from hookline.trainer.run.results import COMPLETE
from hookline.trainer.run.state import assign_variables, share_variables
from hookline.trainer.step.stage import in_stage

if TYPE_CHECKING:
    from hookline.trainer.run.checkpoint import Checkpoint
    from hookline.trainer.run.fit import Fit

"""The key of `config_digest`'s result in "environment" of a checkpoint's manifest."""
MATTERS = ("python", "packages", "cpu_flags", "intra_op_threads", "inter_op_threads", "gpus", "one_dnn", "git_commit")
"""Keys of environment.json that may change the bits of a step."""


def existing_directory(run: str) -> Path:
    """Return the directory of a run to resume."""
    path = user_path(run, "resume")
    if not path.is_dir():
        raise UserError(f"resume={run} is no directory. Expected the directory of a run.")
    return path


def completed_summary(directory: Path) -> dict[str, Any] | None:
    """Return the summary of a run that is complete, so that there is nothing to resume; None otherwise."""
    try:
        summary = read_json(directory / "summary.json")
    except (OSError, ValueError):
        return None
    return summary if isinstance(summary, dict) and summary.get("status") in COMPLETE else None


def check_config(directory: Path, checkpoint: Checkpoint | None, digest: str) -> None:
    """Refuse a config that differs from the one a checkpoint was written with."""
    if checkpoint is not None and checkpoint.environment.get(CONFIG_DIGEST, digest) != digest:  # older ones have none
        raise UserError(
            f"{directory / FILE_NAME} has changed since the checkpoint of step {checkpoint.step} was written. "
            "Expected it as it was: a resumed run keeps its config. For another run from its weights, use "
            f"init_from={directory}."
        )


def check_place(directory: Path, config: Mapping[str, Any]) -> None:
    """Refuse data from another place for a run without a checkpoint, which would show whether it is the same."""
    if read_stored(str(directory), "resume")["data"] != config["data"]:
        raise UserError(
            f"{directory} has no checkpoint yet, so it is unknown whether the data at another place is the same. "
            "Expected the data where it was, or a new run."
        )


def changed_environment(directory: Path) -> list[str]:
    """Return, in words, what differs from where the run was started and may change its bits."""
    try:
        before = read_json(directory / ENVIRONMENT)
    except (OSError, ValueError):
        before = None
    if not isinstance(before, dict):
        return [f"{ENVIRONMENT} cannot be read, so nothing is known of where the run was started"]
    now = environment()
    pairs = [*_pairs({name: before.get(name) for name in MATTERS}, now), *_plugin_pairs(directory, before, now)]
    return [f"{name} was {_short(was)} and is {_short(now_)}" for name, was, now_ in pairs if was != now_]


def run_state(fit: Fit) -> dict[str, Any]:
    """Return what a checkpoint holds of a run besides variables and hooks: JSON values."""
    run = fit.run
    return {
        "best": run.best.as_json(),
        "final": dict(fit.final),
        "train_seconds": run.train_seconds,
        "timed_steps": run.timed_steps,
        "waited_seconds": run.waited_seconds,
        "seconds": fit.elapsed,
        "resumed_at": list(run.resumed_at),
        "rolled_back": list(run.rolled_back),
        "returns": list(run.returns),
        "warnings": list(run.warnings),
        "warned": sorted(fit.warned),
        "data": fit.fingerprint,
        "replicas": fit.loop.trainer.replica.count,
    }


def restore_fit(fit: Fit, checkpoint: Checkpoint) -> None:
    """Restore a run to the state of a checkpoint: variables, hooks, what it knew."""
    state = checkpoint.state["run"]
    if state["data"] != fit.fingerprint:
        raise UserError(
            "The data is not that of the run: its rows, or the contents of some, have changed since. Expected the same "
            "data, in the same order. For another run from these weights, use init_from=."
        )
    run = fit.run
    if (change := changed_replicas(checkpoint, fit.loop.trainer.replica.count)) is not None:
        warnings.warn(f"resume: {change}; the bits may differ from those of a whole run.", stacklevel=2)
    _go_to(fit, checkpoint)
    run.train_seconds, run.timed_steps, run.waited_seconds = (
        state[name] for name in ("train_seconds", "timed_steps", "waited_seconds")
    )
    run.resumed_at, run.rolled_back = [*state["resumed_at"], checkpoint.step], list(state["rolled_back"])
    run.returns = list(state["returns"])
    run.warnings, fit.warned = list(state.get("warnings", ())), set(state.get("warned", ()))  # older runs have none
    fit.elapsed_before = state["seconds"]


def changed_replicas(checkpoint: Checkpoint, count: int) -> str | None:
    """Return in words how many replicas shared a batch before and now; None if the number is the same."""
    before = checkpoint.state["run"].get("replicas", 1)  # older runs had one
    return None if before == count else f"replicas was {before} and is {count}"


def roll_back(fit: Fit, checkpoint: Checkpoint, rate_factor: float) -> None:
    """Roll a run back to a checkpoint, and lower its learning rates.

    Time that was spent stays spent. The checkpoint holds the rates at its time; they are lowered once for each rollback
    since then.
    """
    fit.run.rolled_back.append(fit.run.step)
    _go_to(fit, checkpoint)
    times = len(fit.run.rolled_back) - len(checkpoint.state["run"]["rolled_back"])
    fit.run.returns.append({"to": checkpoint.step, "rate_factor": rate_factor**times})
    for network in fit.run.networks.values():
        network.lower_rate(rate_factor**times)
    share_variables(fit.loop.trainers)


def _go_to(fit: Fit, checkpoint: Checkpoint) -> None:
    """Give variables, hooks and the run the values of a checkpoint."""
    state, run = checkpoint.state["run"], fit.run
    assign_variables(fit.variables, checkpoint.tensors, f"the checkpoint of step {checkpoint.step}")
    share_variables(fit.loop.trainers)
    fit.loop.accumulators.reset_others()
    run.best.put_back(state["best"])
    run.step, fit.final = checkpoint.step, dict(state["final"])
    for hook in fit.host_hooks:
        if hook.name in checkpoint.state["hooks"]:
            with in_stage(hook, "load_state_dict", checkpoint.step):
                hook.load_state_dict(checkpoint.state["hooks"][hook.name])


def _pairs(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return what to compare; packages one by one."""
    pairs = []
    for name, was in before.items():
        if isinstance(was, dict) and isinstance(now[name], dict):
            pairs += [(each, was.get(each), now[name].get(each)) for each in sorted({*was, *now[name]})]
        else:
            pairs.append((name, was, now[name]))
    return pairs


def _plugin_pairs(directory: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return what to compare of the plugins that the run uses; for one that was no plugin then, no version is known."""
    was, is_ = before.get("plugins"), now["plugins"]
    was = was if isinstance(was, dict) else {}
    used = used_plugins(read_stored(str(directory), "resume"))
    return [(f"the plugin {name}", was.get(name), is_.get(name)) for name in used if was.get(name) is not None]


def _short(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
