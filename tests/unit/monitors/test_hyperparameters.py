"""What the HPARAMS tab is told of a run."""

from __future__ import annotations

import pytest
from tensorboard.plugins.hparams import metadata, plugin_data_pb2

from hooks.monitors.hyperparameters import end_summary, hyperparameters, reached_values, start_summary
from trainer.config.command import Command
from trainer.config.preflight import preflight


def of(*overrides):
    (job,) = preflight(Command(overrides))
    return hyperparameters(job.recipe, job.config, job.overrides)


def test_every_run_shows_what_tells_most_runs_apart():
    assert of("recipe=baseline", "seed=3") == {
        "recipe": "baseline",
        "hooks": "none",
        "data": "digits",
        "model": "mlp",
        "optimizer": "Adam",
        "schedule": "cosine",
        "learning_rate": 0.003,
        "batch_size": 64,
        "epochs": 100,
        "seed": 3,
    }


def test_technique_hooks_are_named_with_what_the_recipe_changed_of_their_options():
    found = of("recipe=frozen_mask")
    assert found["hooks"] == "frozen_mask prune"
    assert {key: found[key] for key in found if key.startswith("hooks.")} == {
        "hooks.prune.final_sparsity": 0.9,
        "hooks.frozen_mask.masks": "hook",
        "hooks.frozen_mask.hook": "prune",
    }


def test_what_the_command_line_set_is_shown_but_not_where_the_run_lies():
    found = of(
        "recipe=frozen_mask",
        "hooks.prune.schedule=one_shot",
        "hooks.prune.final_sparsity={dense_1: 0.9}",
        "model.units=[8,8]",
        "optimizer.learning_rate=0.1",
        "hooks.early_stopping.patience=3",
        "run_dir=elsewhere",
        "+augment=flip",
        "debug=true",
        "optimizer._target_=keras.optimizers.AdamW",
    )
    assert found["optimizer"] == "AdamW"
    assert found["hooks.prune.schedule"] == "one_shot"
    assert found["hooks.prune.final_sparsity.dense_1"] == 0.9
    assert found["model.units"] == "[8,8]"
    assert found["learning_rate"] == 0.1
    assert found["hooks.early_stopping.patience"] == 3
    assert not {"run_dir", "debug", "optimizer.learning_rate", "optimizer._target_", "model.dropout"} & set(found)
    assert all(isinstance(value, bool | int | float | str) for value in found.values())


def test_a_config_without_the_usual_parts_shows_what_there_is():
    assert hyperparameters("mine", {"optimizer": {"learning_rate": 1.0}, "trainer": {"epochs": None}}, []) == {
        "recipe": "mine",
        "hooks": "none",
        "learning_rate": 1.0,
    }


def test_a_hook_of_the_users_own_shows_all_its_options():
    config = {"hooks": {"noise": {"_target_": "my_hooks.Noise", "stddev": 0.1}}}
    assert hyperparameters("a", config, []) == {"recipe": "a", "hooks": "noise", "hooks.noise.stddev": 0.1}


def test_records_are_those_of_the_plugin():
    (value,) = start_summary({"on": True, "rate": 0.1, "count": 3, "name": "x"}, 5.0).value
    assert (value.tag, value.metadata.plugin_data.plugin_name) == (metadata.SESSION_START_INFO_TAG, "hparams")
    start = metadata.parse_session_start_info_plugin_data(value.metadata.plugin_data.content)
    assert start.start_time_secs == 5.0
    fields = {name: each.WhichOneof("kind") for name, each in start.hparams.items()}
    assert fields == {"on": "bool_value", "rate": "number_value", "count": "number_value", "name": "string_value"}
    assert start.hparams["count"].number_value == 3


@pytest.mark.parametrize(("status", "expected"), [("completed", 1), ("stopped", 1), ("failed", 2)])
def test_the_end_says_whether_it_went_well(status, expected):
    (value,) = end_summary(status, 6.0).value
    assert value.tag == metadata.SESSION_END_INFO_TAG
    content = plugin_data_pb2.HParamsPluginData.FromString(value.metadata.plugin_data.content)
    assert (content.session_end_info.status, content.session_end_info.end_time_secs) == (expected, 6.0)


def test_best_values_and_those_of_the_test_are_what_a_run_reached(summary):
    assert reached_values(summary) == {
        "best_validation/accuracy": 0.9703,
        "best_validation/loss": 0.1334,
        "test/accuracy": 0.9722,
        "test/loss": 0.1111,
    }
    assert reached_values({"status": "failed", "final": {"metric/accuracy": 1.0}, "best": {}, "test": {}}) == {}
