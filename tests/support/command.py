"""Run a command line in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainer.config.command import parse_command
from trainer.config.preflight import preflight
from trainer.run.session import execute

SMALL_MODELS = {"center_loss": {"model.filters": "[2,2,2]"}}  # of recipes whose model is not the mlp


def run_small(recipe: str, *overrides: str, run_dir: Path) -> dict[str, Any]:
    """Return the summary of a run of two short epochs on the digits.

    Args:
        recipe: its name, or several as "[first,second]".
        overrides: further ones; one that repeats a default here wins.
        run_dir: of the run.
    """
    defaults = {
        "trainer.epochs": "2",
        "trainer.batch_size": "128",
        "trainer.compile": "off",  # compiling takes longer than these runs
        **SMALL_MODELS.get(recipe, {"model.units": "[16,16]"}),
        "run_dir": str(run_dir),
        "recipe": recipe,
    }
    given = {override.partition("=")[0] for override in overrides}
    texts = [f"{key}={value}" for key, value in defaults.items() if key not in given]
    (job,) = preflight(parse_command([*texts, *overrides]))
    return execute(job.config, job.recipe, job.overrides)
