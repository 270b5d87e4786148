"""The command line as a function: compose the config, check it, train, and return what was made."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookline.trainer.errors import UserError

if TYPE_CHECKING:
    import keras

    from hookline.trainer.config.preflight import Job
    from hookline.trainer.run.run import Run
    from hookline.trainer.run.session import Outcome

METRICS = "metrics.jsonl"
CONFIG_FLAGS = ("--config-dir", "-cd", "--config-name", "-cn")
"""Flags that say where configs lie; all others show something, or make several runs."""

History = dict[str, dict[str, list[float]]]
"""By split, then by name. "step" is a name in each split; the values of the others belong to its steps, one each."""


@dataclass(frozen=True, repr=False)
class RunResult:
    """Hold what a run has made.

    Attributes:
        summary: what summary.json holds: status, best and final values, test metrics, sizes, digest.
        history: the reports of metrics.jsonl, as `history["validation"]["loss/total"]`, beside
            `history["validation"]["step"]`. NaN stands where a report has no finite value of that name. Empty without
            the hook `metrics_jsonl`.
        networks: the networks by name, Keras models, as they were trained: with latent weights, and with the layers
            that hooks inserted. Those of a run that was complete already come from its last checkpoint.
        directory: of the run.
    """

    summary: dict[str, Any]
    history: History
    networks: dict[str, keras.Model]
    directory: Path

    def __repr__(self) -> str:
        status, steps = self.summary.get("status"), self.summary.get("steps")
        return f"RunResult({status} after {steps} steps, networks: {', '.join(self.networks)}, {self.directory})"


def run(*overrides: str) -> RunResult:
    """Train as `hookline train` does, in this process, and return what was made.

    A run that reached `trainer.max_seconds` returns, too: its summary says "paused", and `resume=` continues it.

    Args:
        overrides: arguments of the command line, one each: "recipe=bnn", "seed=1", or "resume=runs/first".

    Returns:
        Summary, history, networks and directory of the run.

    Raises:
        UserError: a mistake in the overrides or the data: the line that the command line prints. It is a ValueError.
        NonFiniteError: training produced NaN or infinity.
        UnsavedError: the run is over, and its last or best state is not on the disk.
        KeyboardInterrupt: Ctrl-C or SIGTERM ended the run; it is saved, and can be resumed.
    """
    from hookline.train import check, unnamed_hook

    began = time.monotonic()
    _check_arguments(overrides)
    try:
        (job,) = check(overrides)
        return _result(_carried_out(job, began))
    except UserError as error:
        if hook := unnamed_hook(error):
            raise UserError(f"{error}{hook}") from error
        raise


def _check_arguments(overrides: Sequence[str]) -> None:
    for each in overrides:
        if not isinstance(each, str):
            raise UserError(f"{each!r} received. Expected texts as on the command line, such as 'seed=1'.")
        if each.startswith("-") and each.partition("=")[0] not in CONFIG_FLAGS:
            raise UserError(
                f"'{each}' received. Expected key=value: this makes one run. What shows or sweeps is for the command "
                "line."
            )


def _carried_out(job: Job, began: float) -> Outcome:
    """Train; return what is there also when the run's own time was over."""
    from hookline.trainer.quiet import plain_warnings, quiet_start
    from hookline.trainer.replicas.cluster import MULTI_WORKER

    if job.config["trainer"]["strategy"] == MULTI_WORKER:
        raise UserError(
            f"trainer.strategy={MULTI_WORKER} received. Expected several processes: python scripts/launch.py "
            "workers=<number> ..., or trainer.strategy=mirrored in this one."
        )
    with quiet_start():
        from hookline.scripts.planning.trace import plan_text
        from hookline.trainer.run.interruption import Interrupted
        from hookline.trainer.run.session import Outcome, carry_out
    with plain_warnings():
        try:
            return carry_out(job.config, job.recipe, job.overrides, plan=plan_text, began=began)
        except Interrupted as error:
            if error.signal_number is None and isinstance(error.outcome, Outcome):
                return error.outcome
            raise


def _result(outcome: Outcome) -> RunResult:
    if outcome.directory is None:
        raise RuntimeError("A run of one process has a directory.")
    networks = _last_networks(outcome.directory) if outcome.run is None else _models(outcome.run)
    return RunResult(outcome.summary, read_history(outcome.directory), networks, outcome.directory)


def _models(run: Run) -> dict[str, keras.Model]:
    return {name: network.model for name, network in run.networks.items()}


def _last_networks(directory: Path) -> dict[str, keras.Model]:
    """Return the networks of a run that was complete before; none where it kept no checkpoint."""
    from hookline.trainer.run.finished import LAST, read_config, restore

    if not any((directory / "checkpoints").glob("*")):
        return {}
    return _models(restore(str(directory), read_config(str(directory)), LAST))


def read_history(directory: Path) -> History:
    """Return the reports of a run directory by split and name, as `RunResult.history` describes them."""
    from hookline.trainer.files import parse_json, read_lines

    path = directory / METRICS
    rows: dict[str, list[dict[str, Any]]] = {}
    for line in read_lines(path) if path.exists() else ():
        row = parse_json(line)
        rows.setdefault(row.pop("split"), []).append(row)
    return {split: _columns(each) for split, each in rows.items()}


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Return the rows of a split by name."""
    names = dict.fromkeys(name for row in rows for name in row)
    values = {name: [row.get(name) for row in rows] for name in names}
    return {name: [math.nan if value is None else value for value in each] for name, each in values.items()}
