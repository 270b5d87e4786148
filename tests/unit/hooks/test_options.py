"""Options: what is taken, and one clear line for what is not."""

from __future__ import annotations

import math

import pytest

from hookline.hooks.options import check_choice, check_flag, check_integer, check_number, check_patterns
from hookline.trainer.errors import UserError
from tests.support.command import run_small


def test_what_is_no_value_of_an_option_is_refused_by_its_name():
    for check, values, options in (
        (check_flag, (0, "true", None), {}),
        (check_integer, (0, 1.5, 4.0, "4", None, True, math.nan, 9), {"maximum": 8}),
        (check_number, (-0.1, 1.01, "60", None, False, math.nan, math.inf), {"minimum": 0, "maximum": 1}),
        (check_number, (0,), {"minimum": 0, "above_minimum": True}),
        (check_patterns, ("", [], [3], ["dense", ""], None, True), {}),
    ):
        for value in values:
            with pytest.raises(UserError, match="^Invalid given: .* Expected "):
                check("given", value, **options)
    for value in ("splcing", None, ["splicing"]):
        with pytest.raises(UserError, match="^Unknown given .*constant, splicing"):
            check_choice("given", value, ("constant", "splicing"))


def test_values_at_the_ends_of_their_range_are_returned():
    assert check_flag("given", False) is False
    assert [check_integer("bits", value, minimum=2, maximum=8) for value in (2, 8)] == [2, 8]
    assert isinstance(check_number("given", 0, minimum=0, maximum=1), float)
    assert check_number("given", 1e-9, minimum=0, above_minimum=True) == 1e-9
    assert check_choice("given", "splicing", ("constant", "splicing")) == "splicing"
    assert check_patterns("layers", "*") == "*"
    assert check_patterns("layers", ("dense_1", "conv_*")) == ["dense_1", "conv_*"]


def test_the_message_says_under_which_hook_the_option_stands(tmp_path):
    with pytest.raises(UserError, match="^hooks.early_stopping: Invalid patience: 0"):
        run_small("baseline", "hooks.early_stopping.patience=0", run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
