"""What tells configs apart, and the names it gets."""

from __future__ import annotations

from hookline.trainer.config.settings import choose_columns, differing, spread_settings


def test_a_mapping_with_the_same_keys_is_opened_and_another_is_one_value():
    def spread(*values):
        return spread_settings([{"hooks": {"prune": {"final_sparsity": value}}} for value in values])

    same = spread({"a": 1, "b": 2}, {"a": 1, "b": 3})
    assert differing(same) == ["hooks.prune.final_sparsity.b"]
    assert differing(spread({"a": 1}, {"b": 1})) == ["hooks.prune.final_sparsity"]
    assert spread({"a": 1}, 0.5)["hooks.prune.final_sparsity"] == [{"a": 1}, 0.5]
    assert spread({}, {})["hooks.prune.final_sparsity"] == [{}, {}]


def columns(configs, *overrides, recipes=None):
    settings = {"recipe": recipes or ["bnn"] * len(configs), **spread_settings(configs)}
    return choose_columns(settings, overrides)


def test_what_nobody_set_is_shown_only_to_tell_groups_apart():
    configs = [{"a": {"x": x, "y": y}} for x, y in ((1, 1), (2, 1), (2, 2))]
    assert columns(configs, ["a.x=1"]) == ["a.x", "a.y"]
    assert columns(configs[:2], ["a.x=1"]) == ["a.x"]
    assert columns(configs[:2]) == ["a.x"]
