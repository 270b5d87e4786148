"""A finished run, rebuilt from its directory."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hookline.trainer.config.stored import check_plugins, read_stored
from hookline.trainer.errors import UserError, unknown_name, user_path

if TYPE_CHECKING:
    from hookline.trainer.run.assembly import Assembly

BEST, LAST = "best", "last"
TARGET, PYTHON = "_target_", "hookline.Trainer"
"""What stands in the place of a part that Python gave, and no config can name."""


@dataclass(frozen=True)
class FinishedRun:
    """Hold a run as it was at a checkpoint.

    Attributes:
        parts: networks, optimizers and hooks with the values of the checkpoint.
        checkpoint: "best" or "last".
        step: steps made when it was written.
    """

    parts: Assembly
    checkpoint: str
    step: int


def read_config(run: str, plugins: Sequence[str] = ()) -> dict[str, Any]:
    """Return the config of a run, ready to be assembled again."""
    config = read_stored(run, "run")
    if (config.get("task") or {}).get(TARGET) == PYTHON:
        raise UserError(f"run={run} was trained by Python. Expected hookline.load('{run}') there, and what it offers.")
    check_plugins(config, plugins, "run")
    # The weights come from the checkpoint; what the run once started from no longer matters.
    named = list(dict.fromkeys([*(config.get("plugins") or []), *plugins]))
    return {**config, "init_from": None, "plugins": named}


def restore(run: str, config: dict[str, Any], checkpoint: str | None = None) -> FinishedRun:
    """Assemble a run, and give networks, optimizers and hooks the values of a checkpoint."""
    import keras

    keras.utils.clear_session()  # layers without a name get the numbers that they had in the run
    return _restored(run, config, checkpoint)


def restore_beside(run: str, config: dict[str, Any], checkpoint: str | None = None) -> FinishedRun:
    """Assemble a finished run while another one is being built, without affecting how the other is built.

    Keras numbers layers without a name per thread, so this happens in a thread of its own. Random numbers drawn
    afterwards depend only on the random state before.
    """
    import keras

    seed = random.randrange(2**31)
    with ThreadPoolExecutor(1) as thread:
        restored = thread.submit(_restored, run, config, checkpoint).result()
    keras.utils.set_random_seed(seed)
    return restored


def _restored(run: str, config: dict[str, Any], checkpoint: str | None) -> FinishedRun:
    from hookline.trainer.run.assembly import assemble
    from hookline.trainer.run.checkpoint import CheckpointStore
    from hookline.trainer.run.state import assign_variables, run_variables

    store = CheckpointStore(user_path(run, "run") / "checkpoints")
    tags, problems = store.tags(), store.problems()
    if not tags:
        told = "".join(f" {problem}" for problem in problems)
        raise UserError(f"run={run} has no checkpoints.{told} Expected a run with the hook 'checkpoint'.")
    for problem in problems:
        warnings.warn(problem, stacklevel=2)
    tag = checkpoint or (BEST if BEST in tags else LAST)
    if tag not in tags:
        raise unknown_name("checkpoint", tag, tags)
    loaded = store.load(tag)
    parts = assemble(config)
    trainer = parts.trainer
    variables = run_variables(
        trainer.networks.values(), trainer.hooks, parts.loop.accumulators.variable, trainer.loss_scale
    )
    del variables["accumulators"]  # sums of a report that the run never finished
    assign_variables(variables, loaded.tensors, f"run={run}")
    return FinishedRun(parts, tag, loaded.step)
