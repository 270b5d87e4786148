"""Options of pruning: what they may be, and one clear line where they are not."""

from __future__ import annotations

import re

import pytest

from hooks.prune import Prune
from hooks.pruning.options import Structure, parse_structure
from trainer.errors import UserError


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("unstructured", Structure("unstructured")),
        ("channel", Structure("channel")),
        ({"n_m": [2, 4]}, Structure("n_m", (2, 4))),
        ({"block": [4, 1]}, Structure("block", (4, 1))),
    ],
)
def test_a_structure_is_a_name_or_a_name_with_sizes(value, expected):
    structure = parse_structure(value)
    assert structure == expected
    assert structure.config == value
    assert structure.own_sparsity == (0.5 if structure.name == "n_m" else None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"structure": "chanel"}, "Unknown structure 'chanel'. Did you mean 'channel'?"),
        ({"structure": "n_m"}, "Expected two whole numbers above 0, such as structure={n_m: [2, 4]}."),
        ({"structure": {"n_m": [4, 2]}}, "Expected to keep fewer than all: n < m"),
        ({"structure": {"n_m": [2]}}, "Expected two whole numbers above 0"),
        ({"structure": {"block": [0, 4]}}, "Expected two whole numbers above 0"),
        ({"structure": {"channel": [2, 4]}}, "Expected structure=channel, without sizes."),
        ({"structure": {"n_m": [2, 4], "block": [4, 4]}}, "Invalid structure"),
        ({"structure": 3}, "Invalid structure: 3."),
        ({"final_sparsity": 1.2}, "Invalid final_sparsity: 1.2. Expected the share of entries to prune, in [0, 1]"),
        ({"final_sparsity": -0.1}, "Invalid final_sparsity: -0.1."),
        ({"final_sparsity": True}, "Invalid final_sparsity: True."),
        ({"final_sparsity": "much"}, "Invalid final_sparsity: 'much'."),
        ({"final_sparsity": float("nan")}, "Invalid final_sparsity: nan."),
        ({"final_sparsity": {}}, "Expected sparsities by layer pattern"),
        ({"final_sparsity": {"fc1": 2}}, "Invalid final_sparsity of fc1: 2."),
        (
            {"final_sparsity": 0.9, "structure": {"n_m": [2, 4]}},
            "contradicts structure={'n_m': [2, 4]}, which prunes 0.5",
        ),
        ({"final_sparsity": {"*": 0.6}, "structure": {"n_m": [2, 4]}}, "contradicts structure="),
        ({"scope": "globl"}, "Unknown scope 'globl'. Did you mean 'global'?"),
        ({"scope": "global", "structure": {"n_m": [2, 4]}}, "scope=global has no meaning with n_m"),
        ({"scope": "global", "final_sparsity": {"*": 0.5}}, "scope=global takes one sparsity for all layers"),
        ({"criterion": "l3"}, "Unknown criterion 'l3'."),
        ({"schedule": "splicing", "hysteresis": 0.9}, "Invalid hysteresis: 0.9."),
        ({"hysteresis": 2.0}, "hysteresis=2.0 has no effect with schedule=polynomial"),
        ({"stages": [0.5]}, "stages=[0.5] has no effect with schedule=polynomial"),
        ({"schedule": "iterative", "stages": [], "stage_epochs": 1}, "Invalid stages: []."),
        ({"schedule": "iterative", "stages": "0.5", "stage_epochs": 1}, "Invalid stages: '0.5'."),
        ({"schedule": "iterative", "stages": [0.5, 1.5], "stage_epochs": 1}, "Invalid stages: 1.5."),
        (
            {"schedule": "iterative", "stages": [0.5, 0.8], "stage_epochs": 1, "final_sparsity": 0.9},
            "final_sparsity=0.9 is not the last of stages, 0.8.",
        ),
        ({"begin_epoch": 3, "end_epoch": 1}, "end_epoch=1.0 is before begin_epoch=3.0."),
        ({"layers": []}, "Invalid layers: []."),
    ],
)
def test_a_wrong_option_is_one_clear_line(arguments, message):
    with pytest.raises(UserError, match=re.escape(message)) as error:
        Prune(**arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, 0.5),
        ({"final_sparsity": 0.9}, 0.9),
        ({"final_sparsity": 1}, 1.0),
        ({"final_sparsity": {"fc*": 0.9}}, {"fc*": 0.9}),
        ({"structure": {"n_m": [1, 4]}}, 0.75),
        ({"structure": {"n_m": [1, 3]}, "final_sparsity": 0.6666667}, 1 - 1 / 3),
        ({"schedule": "iterative", "stages": [0.5, 0.8], "stage_epochs": 1}, 0.8),
        ({"schedule": "iterative", "stages": [0.5, 0.8], "stage_epochs": 1, "final_sparsity": 0.8}, 0.8),
    ],
)
def test_the_final_sparsity_is_what_the_options_say_together(arguments, expected):
    assert Prune(**arguments).settings.final_sparsity == expected
