"""What tells configs apart, and the names it gets."""

from __future__ import annotations

from trainer.comparison.settings import (
    MISSING,
    choose_columns,
    differing,
    ignored_keys,
    shorten_keys,
    show_setting,
    spread_settings,
    without_parts,
)

PRUNE = {"_target_": "hooks.prune.Prune", "final_sparsity": 0.5}


def test_settings_have_dotted_keys_and_a_hook_has_one_of_its_own():
    settings = spread_settings([{"seed": 1, "model": {"units": [4]}, "hooks": {"prune": PRUNE}}, {"hooks": {}}])
    assert settings == {
        "model.units": [[4], MISSING],
        "hooks.prune": [True, MISSING],
        "hooks.prune._target_": ["hooks.prune.Prune", MISSING],
        "hooks.prune.final_sparsity": [0.5, MISSING],
    }


def test_a_hook_that_was_removed_is_not_there():
    settings = spread_settings([{"hooks": {"prune": PRUNE}}, {"hooks": {"prune": None}}, {"hooks": {"prune": {}}}])
    assert settings["hooks.prune"] == [True, MISSING, True]
    assert settings["hooks.prune.final_sparsity"] == [0.5, MISSING, MISSING]


def test_a_mapping_with_the_same_keys_is_opened_and_another_is_one_value():
    def spread(*values):
        return spread_settings([{"hooks": {"prune": {"final_sparsity": value}}} for value in values])

    same = spread({"a": 1, "b": 2}, {"a": 1, "b": 3})
    assert differing(same) == ["hooks.prune.final_sparsity.b"]
    assert differing(spread({"a": 1}, {"b": 1})) == ["hooks.prune.final_sparsity"]
    assert spread({"a": 1}, 0.5)["hooks.prune.final_sparsity"] == [{"a": 1}, 0.5]
    assert spread({}, {})["hooks.prune.final_sparsity"] == [{}, {}]


def test_seed_and_place_tell_no_runs_apart_and_threads_do_only_when_a_user_gave_them():
    assert {"seed", "run_dir", "trainer.threads"} <= ignored_keys([["recipe=bnn", "seed=1"]])
    assert "trainer.threads" not in ignored_keys([["recipe=bnn"], ["trainer.threads=2"]])
    configs = [{"seed": seed, "trainer": {"threads": seed}} for seed in (1, 2)]
    assert differing(spread_settings(configs, ignored_keys([[]]))) == []
    assert differing(spread_settings(configs)) == ["trainer.threads"]


def columns(configs, *overrides, recipes=None):
    settings = {"recipe": recipes or ["bnn"] * len(configs), **spread_settings(configs)}
    return choose_columns(settings, overrides)


def test_columns_are_what_users_set_with_the_recipe_first():
    configs = [{"optimizer": {"learning_rate": rate, "beta": 1 - rate}} for rate in (0.1, 0.2)]
    assert columns(configs, ["optimizer.learning_rate=0.1", "recipe=a"], recipes=["a", "b"]) == [
        "recipe",
        "optimizer.learning_rate",
    ]


def test_what_nobody_set_is_shown_only_where_it_is_needed_to_tell_groups_apart():
    configs = [{"a": {"x": x, "y": y}} for x, y in ((1, 1), (2, 1), (2, 2))]
    assert columns(configs, ["a.x=1"]) == ["a.x", "a.y"]
    assert columns(configs[:2], ["a.x=1"]) == ["a.x"]
    assert columns(configs[:2]) == ["a.x"]


def test_of_what_nobody_set_targets_come_before_hooks_and_hooks_before_their_arguments():
    parts = {"data": {"size": 1}, "hooks": {"prune": PRUNE}, "model": {"_target_": "a.b"}}
    other = {"data": {"size": 2}, "hooks": {"prune": {**PRUNE, "final_sparsity": 0.9}}, "model": {"_target_": "a.c"}}
    assert columns([parts, other]) == ["model._target_"]
    assert columns([parts, {**other, "model": parts["model"]}]) == ["hooks.prune.final_sparsity"]
    assert columns([parts, {**parts, "data": other["data"], "hooks": {}}]) == ["hooks.prune"]


def test_the_choice_of_a_group_is_shown_by_its_target_and_added_hooks_by_their_presence():
    configs = [{"model": {"_target_": f"m.{name}", name: 1}} for name in ("mlp", "cnn")]
    assert columns(configs, ["model=mlp"]) == ["model._target_"]
    configs = [{"hooks": {"prune": PRUNE}}, {"hooks": {}}]
    for override in ("+hooks=prune", "hooks.prune=null", "~hooks.prune"):
        assert columns(configs, [override]) == ["hooks.prune"]
    configs = [{"hooks": {"prune": {**PRUNE, "final_sparsity": {"dense": share}}}} for share in (0.5, 0.9)]
    assert columns(configs, ["hooks.prune.final_sparsity={dense:0.5}"]) == ["hooks.prune.final_sparsity.dense"]


def test_of_a_hook_that_only_some_have_the_hook_alone_differs():
    settings = spread_settings([{"hooks": {"prune": PRUNE}}, {"hooks": {}}])
    assert without_parts(differing(settings), settings) == ["hooks.prune"]
    other = {**PRUNE, "final_sparsity": 0.9}
    settings = spread_settings([{"hooks": {"prune": PRUNE}}, {"hooks": {}}, {"hooks": {"prune": other}}])
    assert without_parts(differing(settings), settings) == ["hooks.prune", "hooks.prune.final_sparsity"]


def test_names_are_as_short_as_they_can_be():
    keys = ["recipe", "optimizer.learning_rate", "data.seed", "model.seed", "model._target_", "hooks.prune"]
    assert shorten_keys(keys) == ["recipe", "learning_rate", "data.seed", "model.seed", "model", "prune"]
    assert shorten_keys(["model.size"], taken=("size",)) == ["model.size"]
    assert shorten_keys(["hooks.prune", "hooks.frozen_mask.prune"]) == ["hooks.prune", "frozen_mask.prune"]


def test_values_are_shown_as_on_the_command_line():
    assert show_setting("hooks.prune", True) == "on"
    assert show_setting("model.bias", True) == "true"
    assert show_setting("hooks.prune", MISSING) == "-"
    assert show_setting("model._target_", "recipes.models.mlp.mlp") == "mlp"
    assert show_setting("trainer.steps", None) == "null"
    assert show_setting("model.units", [4, 8]) == "[4,8]"
