"""Keys lead through mappings and lists, also where a name holds dots."""

from __future__ import annotations

from typing import Any

import pytest

from trainer.config.paths import follow, is_part, lookup

TREE = {
    "model": {"units": [256, [8, 9]]},
    "hooks": {"prune": {"share": {"dense_.*": 0.9, "dense": 0.5, 3: 0.1}, "power": None}},
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.units", [256, [8, 9]]),
        ("model.units.0", 256),
        ("model.units.1.1", 9),
        ("hooks.prune.share.dense_.*", 0.9),
        ("hooks.prune.share.dense", 0.5),
        ("hooks.prune.share.3", 0.1),
        ("hooks.prune.power", None),
    ],
)
def test_a_key_leads_to_its_value(key: str, value: Any) -> None:
    passed, rest = follow(TREE, key)
    assert rest is None
    assert passed[-1][1] == lookup(TREE, key) == value
    assert ".".join(name for name, _ in passed) == key


@pytest.mark.parametrize(
    ("key", "passed", "left"),
    [
        ("modl.units", [], "modl.units"),
        ("model.units.2", ["model", "units"], "2"),
        ("model.units.0.3", ["model", "units", "0"], "3"),
        ("hooks.prune.share.dens", ["hooks", "prune", "share"], "dens"),
        ("hooks.prune.power.x", ["hooks", "prune", "power"], "x"),
        ("hooks.", ["hooks"], ""),
        ("", [], ""),
        (".", [], "."),
    ],
)
def test_what_leads_nowhere_says_how_far_it_goes(key: str, passed: list[str], left: str) -> None:
    found, rest = follow(TREE, key)
    assert ([name for name, _ in found], rest) == (passed, left)
    assert lookup(TREE, key) is None


def test_of_several_names_that_fit_the_longest_counts() -> None:
    assert lookup({"a": {"b": 1}, "a.b": 2}, "a.b") == 2


def test_parts_are_what_sections_hold_by_name() -> None:
    assert is_part("hooks.prune")
    assert is_part("augment.flip")
    assert not any(map(is_part, ("hooks", "hooks.", "hooks.prune.power", "trainer.epochs")))
