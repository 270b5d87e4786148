"""Kill runs at random moments and check that nothing is lost.

python scripts/kill_runs.py out=<new directory> [key=value ...]

For each recipe, one run is trained without interruption. Then runs of the same command are repeatedly killed by SIGKILL
and resumed with resume=. At the end, each must have the same digest of all variables, curves and test result as the
uninterrupted run.

  out      directory for the runs
  kills    how many processes to kill, over all recipes
  recipes  recipes to run, such as [bnn,center_loss]
  in_save  share of the kills that wait until a checkpoint is being written, from 0 to 1
  seed     seed of the random moments
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from hookline.scripts.command import make_main, parse_options
from hookline.trainer.config.overrides import quoted
from hookline.trainer.errors import UserError
from hookline.trainer.run.checkpoint_files import leftovers

ALWAYS = [
    *("trainer.threads=1", "trainer.compile=off", "hooks.progress=null", "trainer.evaluate_every_epochs=2"),
    *("hooks.checkpoint.every_epochs=0.2", "hooks.checkpoint.every_seconds=0"),
]
RECIPES = {
    "bnn": ["trainer.epochs=60"],
    "baseline": ["trainer.epochs=60", "+augment=standard_digits", "trainer.placement=host"],
    "frozen_mask": ["trainer.epochs=60"],
    "center_loss": ["trainer.epochs=10", "model.filters=[4,4,8]"],
    "gan": ["trainer.epochs=6"],
}
"""Recipes, with overrides that make a run last some seconds."""
ROOT = Path(__file__).resolve().parents[1]
TRAIN = (sys.executable, str(ROOT / "train.py"))
POLL_SECONDS = 0.001


@dataclass
class Options:
    """The options of the command line."""

    out: str
    kills: int = 100
    recipes: list[str] = field(default_factory=lambda: list(RECIPES))
    in_save: float = 0.5
    seed: str = "0"


def command(options: Options) -> int:
    """Kill, resume and compare; print a line for each recipe. Return 0 when nothing was lost."""
    moments = random.Random(options.seed)
    losses = 0
    for number, recipe in enumerate(options.recipes):
        share = options.kills // len(options.recipes) + (number < options.kills % len(options.recipes))
        in_saves, runs, lost = try_recipe(recipe, share, Path(options.out) / recipe, options.in_save, moments)
        print(f"{recipe}: {share} kills ({in_saves} inside a save), {runs} runs reached their end", flush=True)
        for each in lost:
            print(f"  LOST: {each}", flush=True)
        losses += len(lost)
    print(f"{options.kills} kills; {losses} losses.")
    return 1 if losses else 0


def try_recipe(
    recipe: str, kills: int, out: Path, in_save: float, moments: random.Random
) -> tuple[int, int, list[str]]:
    """Kill and resume runs; return how many kills were inside a save, how many runs ended, and what was lost."""
    overrides = [f"recipe={recipe}", *RECIPES.get(recipe, ()), *ALWAYS]
    start = time.monotonic()
    finish([*overrides, f"run_dir={quoted(out / 'whole')}"])
    seconds = time.monotonic() - start
    killed = inside = runs = 0
    lost: list[str] = []
    while killed < kills or not runs:
        run = out / f"killed_{runs}"
        given = [*overrides, f"run_dir={quoted(run)}"]
        while killed < kills:
            started = time.monotonic()
            if not kill_once(given, run, moments.random() < in_save, moments.uniform(0.0, seconds)):
                # It finished first: less was left to do, or the machine has become faster.
                seconds = max(0.8 * seconds, time.monotonic() - started)
                break
            killed += 1
            inside += bool(leftovers(run / "checkpoints"))
            given = [f"resume={quoted(run)}"] if (run / "config.yaml").exists() else given
        finish([f"resume={quoted(run)}"] if (run / "config.yaml").exists() else given)
        runs += 1
        lost += [f"{run.name}: {each}" for each in differences(run, out / "whole")]
    return inside, runs, lost


def kill_once(overrides: list[str], run: Path, in_save: bool, delay: float) -> bool:
    """Start a process and kill it; return whether it was killed before its end."""
    process = subprocess.Popen([*TRAIN, *overrides], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + delay
    while process.poll() is None:
        if time.monotonic() >= until and (not in_save or leftovers(run / "checkpoints")):
            process.kill()
            return process.wait() != 0
        time.sleep(POLL_SECONDS)
    return False


def finish(overrides: list[str]) -> None:
    """Run a process to its end."""
    found = subprocess.run([*TRAIN, *overrides], capture_output=True, text=True, check=False)
    if found.returncode:
        raise UserError(f"python train.py {' '.join(overrides)} ended with {found.returncode}: {found.stderr[-500:]}")


def differences(run: Path, whole: Path) -> list[str]:
    """Return the results in which a run differs from the uninterrupted one, ignoring measured times."""
    found, expected = (json.loads((each / "summary.json").read_text()) for each in (run, whole))
    wrong = [key for key in ("status", "steps", "digest", "best", "test") if found[key] != expected[key]]
    texts = ((each / "metrics.jsonl").read_text().splitlines() for each in (run, whole))
    curves = [[_untimed(json.loads(line)) for line in text] for text in texts]
    wrong += ["metrics.jsonl"] * (curves[0] != curves[1])
    return wrong + [each.name for each in leftovers(run / "checkpoints")]


def _untimed(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if not key.startswith("time/")}


parse = partial(parse_options, make=Options)
main = make_main(__doc__, parse, command)

if __name__ == "__main__":
    sys.exit(main())
