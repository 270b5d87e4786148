"""Options of pruning: what they may be, and what they say together."""

from __future__ import annotations

import pytest

from hookline.hooks.prune import Prune
from hookline.hooks.pruning.options import Structure, parse_structure
from hookline.trainer.errors import UserError


def test_a_structure_is_a_name_or_a_name_with_sizes():
    for value, expected in (("channel", Structure("channel")), ({"n_m": [2, 4]}, Structure("n_m", (2, 4)))):
        structure = parse_structure(value)
        assert structure == expected
        assert structure.config == value
        assert structure.own_sparsity == (0.5 if structure.name == "n_m" else None)


def test_wrong_options_are_refused_by_name():
    for arguments, word in (
        ({"structure": "chanel"}, "chanel"),
        ({"structure": {"n_m": [4, 2]}}, "n < m"),
        ({"final_sparsity": {"fc1": 2}}, "fc1"),
        ({"final_sparsity": 0.9, "structure": {"n_m": [2, 4]}}, "contradicts"),
        ({"scope": "global", "structure": {"n_m": [2, 4]}}, "scope"),
        ({"schedule": "splicing", "hysteresis": 0.9}, "hysteresis"),
        ({"schedule": "iterative", "stage_epochs": 1, "stages": [0.5, 1.5]}, "stages"),
    ):
        with pytest.raises(UserError, match=word):
            Prune(**arguments)


def test_the_final_sparsity_is_what_the_options_say_together():
    iterative = {"schedule": "iterative", "stages": [0.5, 0.8], "stage_epochs": 1}
    for arguments, expected in (
        ({}, 0.5),
        ({"final_sparsity": {"fc*": 0.9}}, {"fc*": 0.9}),
        ({"structure": {"n_m": [1, 4]}}, 0.75),
        ({"structure": {"n_m": [1, 3]}, "final_sparsity": 0.6666667}, 1 - 1 / 3),
        (iterative, 0.8),
    ):
        assert Prune(**arguments).settings.final_sparsity == expected
