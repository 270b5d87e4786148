"""Advice before training: of every recipe as it is shipped, at its full length, there is none to give.

Warnings of reports and evaluations are errors in every test that trains a recipe.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import keras
import pytest

from hookline.trainer.config.build import build
from hookline.trainer.config.command import parse_command
from hookline.trainer.config.preflight import preflight
from hookline.trainer.replicas.replica import Replica
from hookline.trainer.run import assembly
from hookline.trainer.run.blueprint import build_hooks, from_config
from hookline.trainer.run.build_trainer import build_trainer
from hookline.trainer.run.control import Best, Run
from tests.contract.test_every_recipe import RECIPES
from tests.support.command import FOR_RECIPE, NEEDS_IMAGES
from tests.support.images import write_images


def advice_on(*overrides: str, directory: Path) -> list[str]:
    """Return what hooks say before a run. Everything is built as for the run, but nothing is traced."""
    (job,) = preflight(parse_command(list(overrides)))
    config = job.config
    settings = config["trainer"]
    keras.utils.clear_session()
    hooks = build_hooks(config)
    keras.utils.set_random_seed(config["seed"])
    data = build(config["data"], group="data", plugins=config["plugins"])
    training = assembly._training_batches(data, from_config(config), [])
    steps = assembly._total_steps(settings, training)
    parts = partial(
        build_trainer, from_config(config), data=data, training=training, total_steps=steps, precision="float32"
    )
    trainer, hooks = parts(hooks, replica=Replica())
    since = min(steps, max((hook.declare().best_from_step for hook in trainer.hooks), default=0))
    run = Run(
        directory=directory, recipe=job.recipe, config=dict(config), networks=trainer.networks,
        batch_size=settings["batch_size"], total_steps=steps, steps_per_epoch=training.steps_per_epoch, plan="",
        best=Best(settings["monitor"], settings["monitor_mode"], since=since), training=training,
        held_out={"validation": data.validation, "test": data.test},
    )  # fmt: skip
    every = {id(hook): hook for hook in (*trainer.hooks, *hooks)}.values()
    return [line for hook in every for line in hook.advise(run)]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_as_it_is_shipped_gives_no_alarm(recipe: str, tmp_path: Path) -> None:
    own = []
    if recipe in NEEDS_IMAGES:  # the recipe's values are for more images than are drawn here
        own = [f"data.path={write_images(tmp_path / 'images')}"]
        own += [f"{key}={value}" for key, value in FOR_RECIPE[recipe].items()]
    assert advice_on(f"recipe={recipe}", *own, directory=tmp_path) == []


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["recipe=bnn", "optimizer.learning_rate=3e-4"], "most signs stay as they were drawn"),
        (["recipe=bnn", "trainer.monitor=metric/accuracy"], "Set trainer.monitor_mode=max."),
        (["recipe=frozen_mask", "hooks.prune.end_epoch=100"], "0 steps are left to train with it"),
        (["recipe=baseline", "trainer.batch_size=2"], "see 2 examples at a time"),
        (["recipe=bnn", "model.dropout=0.2"], "what it drops becomes sign(0) = +1"),
    ],
)
def test_one_override_that_hurts_gives_one_line(overrides: list[str], expected: str, tmp_path: Path) -> None:
    found = advice_on(*overrides, directory=tmp_path)
    assert any(expected in line for line in found)
    assert len(found) == 1
