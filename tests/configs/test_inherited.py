"""Values that files set for another part than the one that is built: left out with a line; typed ones are refused."""

from __future__ import annotations

import pytest

from hookline.trainer.config.command import parse_command
from hookline.trainer.config.preflight import preflight
from hookline.trainer.errors import UserError
from hookline.trainer.run.early import check_early


@pytest.mark.parametrize(
    ("arguments", "said", "node", "left"),
    [
        ("recipe=baseline optimizer._target_=keras.optimizers.Adamax",
         "optimizer.amsgrad=false (configs/optimizer/adam.yaml:7) left out", "optimizer", {"amsgrad"}),
        ("recipe=baseline task._target_=hookline.recipes.retrieval.retrieval",
         "task.label_smoothing=0.0", "task", {"label_smoothing"}),
        ("recipe=baseline schedule._target_=keras.optimizers.schedules.PiecewiseConstantDecay",
         "schedule.warmup_fraction=0.0", "schedule", {"final_fraction", "warmup_steps", "warmup_fraction"}),
        ("recipe=attention data=image_folder data.path=.",
         "data.train_examples=6000 (configs/recipe/attention.yaml", "data", {"train_examples"}),
    ],
)  # fmt: skip
def test_what_a_replaced_part_left_behind_is_left_out_with_a_line(arguments, said, node, left):
    with pytest.warns(UserWarning, match="left out: ") as shown:
        (job,) = preflight(parse_command(arguments.split()))
    (line,) = [str(each.message) for each in shown]
    assert said in line
    assert not left & job.config[node].keys()
    assert job.config[node]["_target_"] in line


def test_what_the_user_typed_and_a_mistake_in_a_recipe_are_refused(tmp_path):
    recipe = tmp_path / "recipe" / "mine.yaml"
    recipe.parent.mkdir()
    recipe.write_text("# @package _global_\n# Mine\ndefaults: [baseline, _self_]\ndata: {test_fracton: 0.1}\n")
    for arguments, name in (
        ("recipe=baseline optimizer._target_=keras.optimizers.Adamax optimizer.amsgrad=false", "amsgrad"),
        ("recipe=attention data=image_folder data.path=. data.train_examples=6000", "train_examples"),
        (f"recipe=mine --config-dir {tmp_path}", "test_fracton"),
    ):
        (job,) = preflight(parse_command(arguments.split()))
        with pytest.raises(UserError, match=f"Unknown argument '{name}'"):
            check_early(job, directories=False)
