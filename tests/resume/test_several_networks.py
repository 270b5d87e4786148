"""Several networks that start again from a checkpoint: the bits that the uninterrupted run would have."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

from hookline.trainer.config.command import parse_command
from hookline.trainer.config.preflight import preflight
from hookline.trainer.run.blueprint import from_config
from hookline.trainer.run.build_run import build_run
from hookline.trainer.run.checkpoint import CheckpointStore
from hookline.trainer.run.run import Run
from hookline.trainer.run.state import VariableValues, assign_variables
from tests.support.command import FOR_RECIPE

CUT, STEPS = 4, 9
SETTINGS = {
    "sgan": ["task.messenger_every=3", "task.messenger_optimizer=reset"],  # copies before the cut and behind it
}


def started(recipe: str) -> Run:
    keras.utils.clear_session()  # a new process names its layers anew
    small = [f"{key}={value}" for key, value in FOR_RECIPE[recipe].items()]
    settings = ["model.units=[8]", "trainer.batch_size=16", "trainer.compile=off", *SETTINGS[recipe]]
    (job,) = preflight(parse_command([f"recipe={recipe}", *small, *settings]))
    return build_run(from_config(job.config))


def values(parts: Run) -> dict[str, np.ndarray]:
    return dict(VariableValues(parts.variables))


@pytest.mark.parametrize("recipe", SETTINGS)
def test_a_run_from_a_checkpoint_has_the_bits_of_one_that_never_stopped(recipe: str, tmp_path: Path) -> None:
    whole = started(recipe)
    whole.loop.run(0, CUT)
    store = CheckpointStore(tmp_path)
    store.save({"last"}, CUT, values(whole), {})
    at_cut = values(whole)
    whole.loop.run(CUT, STEPS - CUT)
    expected = values(whole)
    weights = [key for key in expected if key.startswith("network/")]
    moved = {key.split("/")[1] for key in weights if not np.array_equal(expected[key], at_cut[key])}
    assert moved >= set(whole.trainer.networks)  # every network learned behind the cut

    again, saved = started(recipe), store.load("last")
    assign_variables(again.variables, saved.tensors, "test")
    again.loop.run(saved.step, STEPS - saved.step)
    found = values(again)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value, err_msg=key)
