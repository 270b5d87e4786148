"""Advice before training: every recipe as shipped, at its full length, gets none.

Warnings of reports and evaluations are errors in every test that trains a recipe.
"""

from types import SimpleNamespace

import keras
import pytest

from hookline.trainer.config.command import parse_command
from hookline.trainer.config.preflight import preflight
from hookline.trainer.run import build_run as module
from hookline.trainer.run.blueprint import from_config
from tests.contract.test_every_recipe import RECIPES
from tests.support.command import FOR_RECIPE, NEEDS_IMAGES
from tests.support.images import write_images


def advice_on(*overrides, directory):
    """Return the advice of hooks before a run. Everything is built as for the run, but nothing is traced."""
    (job,) = preflight(parse_command(list(overrides)))
    keras.utils.clear_session()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_trace_loop", lambda trainers, *_: SimpleNamespace(trainer=trainers[0]))
        patch.setattr(module, "HeldOut", lambda trainer, split, **_: SimpleNamespace(split=split, names=[]))
        run = module.build_run(from_config(job.config, job.recipe), directory=directory)
    return [line for hook in run.hooks for line in hook.advise(run)]


@pytest.mark.parametrize("recipe", RECIPES)
def test_shipped_recipe_gets_no_advice(recipe, tmp_path):
    own = []
    if recipe in NEEDS_IMAGES:  # the recipe's values are for more images than are written here
        own = [f"data.path={write_images(tmp_path / 'images')}"]
        own += [f"{key}={value}" for key, value in FOR_RECIPE[recipe].items()]
    assert advice_on(f"recipe={recipe}", *own, directory=tmp_path) == []


HARMFUL = {
    "recipe=bnn optimizer.learning_rate=3e-4 trainer.monitor=metric/accuracy model.dropout=0.2": [
        "most signs keep their initial value",
        "Set trainer.monitor_mode=max.",
        "what it drops becomes sign(0) = +1",
    ],
    "recipe=frozen_mask hooks.prune.end_epoch=100": ["0 steps are left to train with them"],
    "recipe=baseline trainer.batch_size=2 +hooks=ema hooks.ema.warm_up=false hooks.ema.decay=0.99999": [
        "see 2 examples at a time",
        "decay=0.99999 over",
    ],
    "recipe=center_loss hooks.center_loss.warm_up_epochs=1000": ["a loss at full weight are reached"],
    "recipe=fine_tuning hooks.freeze_layers.end_epoch=1000": ["so the layers never train again"],
}


@pytest.mark.parametrize("overrides", HARMFUL)
def test_harmful_overrides_get_one_line_of_advice_each(overrides, tmp_path):
    found = advice_on(*overrides.split(), directory=tmp_path)
    assert len(found) == len(HARMFUL[overrides])
    assert all(any(expected in line for line in found) for expected in HARMFUL[overrides])
