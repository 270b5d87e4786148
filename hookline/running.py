"""Results of training, and the command line as a function: compose the config, check it, train."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookline.trainer.errors import UserError

if TYPE_CHECKING:
    import keras

    from hookline.trainer.run.run import Run
    from hookline.trainer.run.session import Outcome

METRICS = "metrics.jsonl"
CONFIG_FLAGS = ("--config-dir", "-cd", "--config-name", "-cn")
"""Flags that locate configs; all others display something or start several runs."""

Reports = dict[str, dict[str, list[float]]]
"""By split, then by name. Each split has the name "step": its entries are the steps of the other values."""


@dataclass(frozen=True, repr=False)
class History:
    """Hold the value of each loss and metric per epoch, as `keras.callbacks.History` does.

    Attributes:
        history: values by name: "loss", "accuracy", "val_loss", "val_accuracy".
        epoch: numbers of these epochs, counted from 0 over all fits of the trainer.
        summary: contents of summary.json of a run: "digest", "steps", "status", "hooks" and more.
    """

    history: dict[str, list[float]] = field(default_factory=dict)
    epoch: list[int] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return the first and the last value of each loss and metric."""
        spans = [f"{name} {each[0]:.4g} -> {each[-1]:.4g}" for name, each in self.history.items() if each]
        epochs = "1 epoch" if len(self.epoch) == 1 else f"{len(self.epoch)} epochs"
        return f"History({epochs}: {', '.join(spans) or 'no values'})"


@dataclass(frozen=True, repr=False)
class RunResult:
    """Hold the results of a run.

    Attributes:
        summary: contents of summary.json: status, best and final values, test metrics, sizes, digest.
        history: the reports of metrics.jsonl, such as `history["validation"]["loss/total"]` at the steps
            `history["validation"]["step"]`; NaN if a report has no finite value of that name. Empty without the hook
            `metrics_jsonl`.
        networks: Keras models by network name, as trained: with latent weights, and with the layers that hooks
            inserted. The weights are those that were tested: of the best checkpoint, or the last ones if there is none
            or nothing was tested.
        directory: the run directory.
    """

    summary: dict[str, Any]
    history: Reports
    networks: dict[str, keras.Model]
    directory: Path

    def __repr__(self) -> str:
        status, steps = self.summary.get("status"), self.summary.get("steps")
        return f"RunResult({status} after {steps} steps, networks: {', '.join(self.networks)}, {self.directory})"


def run(*overrides: str) -> RunResult:
    """Train as `hookline train` does, in this process, and return the results.

    A run that reaches `trainer.max_seconds` returns, too: its summary has the status "paused"; `resume=` continues it.

    Args:
        overrides: command line arguments, one per string: "recipe=bnn", "seed=1", or "resume=runs/first".

    Returns:
        Summary, history, networks and directory of the run.

    Raises:
        UserError: a mistake in the overrides or the data; the message is what the command line prints. A ValueError.
        NonFiniteError: training produced NaN or infinity.
        UnsavedError: the run has ended, but its last or best state is not on disk.
        KeyboardInterrupt: Ctrl-C or SIGTERM ended the run; it is saved, and can be resumed.
    """
    from hookline.train import DONE, check, execute_job, interrupted_code, unnamed_hook

    began = time.monotonic()
    for each in overrides:
        if not isinstance(each, str):
            raise UserError(f"{each!r} received. Expected strings, one by one: hookline.run('recipe=bnn', 'seed=1').")
        if each.startswith("-") and each.partition("=")[0] not in CONFIG_FLAGS:
            raise UserError(f"'{each}' received. Expected key=value: hookline.run takes no display or sweep flags.")
    try:
        (job,) = check(overrides)
        outcome = execute_job(job, began)
    except UserError as error:
        if hook := unnamed_hook(error):
            raise UserError(f"{error}{hook}") from error
        raise
    except KeyboardInterrupt as error:
        ended: Outcome | None = getattr(error, "outcome", None)
        if ended is None or interrupted_code(error) != DONE:  # done if it reached its own time limit
            raise
        outcome = ended
    directory = outcome.directory
    assert directory is not None
    last = _complete_run(directory, outcome.summary) if outcome.run is None else outcome.run
    networks = {} if last is None else {name: each.model for name, each in last.networks.items()}
    return RunResult(outcome.summary, read_history(directory), networks, directory)


def _complete_run(directory: Path, summary: dict[str, Any]) -> Run | None:
    """Return a run that was already complete, with the tested weights; None if it kept no checkpoint."""
    from hookline.trainer.run.finished import LAST, read_config, restore
    from hookline.trainer.run.machine import kept_seeds

    if not any((directory / "checkpoints").glob("*")):
        return None
    tested = summary.get("test") or {}
    tag = "best" if tested.get("weights") == "best" else LAST
    with kept_seeds():
        return restore(str(directory), read_config(str(directory)), tag)


def read_history(directory: Path) -> Reports:
    """Return the reports of a run directory by split and name, as `RunResult.history` describes them."""
    from hookline.trainer.files import parse_json, read_lines

    path = directory / METRICS
    rows: dict[str, list[dict[str, Any]]] = {}
    for line in read_lines(path) if path.exists() else ():
        row = parse_json(line)
        rows.setdefault(row.pop("split"), []).append(row)
    history: Reports = {}
    for split, found in rows.items():
        names = dict.fromkeys(name for row in found for name in row)
        history[split] = {
            name: [math.nan if (value := row.get(name)) is None else value for row in found] for name in names
        }
    return history
