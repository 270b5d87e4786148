"""Options: what is taken, and one clear line for what is not."""

from __future__ import annotations

import math

import pytest

from hooks.options import check_choice, check_flag, check_integer, check_number, check_patterns
from tests.support.command import run_small
from trainer.errors import UserError


def refusal(function, *arguments, **options) -> str:
    with pytest.raises(UserError) as caught:
        function(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("value", [0, 1, "true", None, []])
def test_a_flag_is_nothing_but_true_or_false(value):
    assert refusal(check_flag, "keep_best", value) == f"Invalid keep_best: {value!r}. Expected true or false."


@pytest.mark.parametrize("value", [True, False])
def test_a_flag_is_returned(value):
    assert check_flag("keep_best", value) is value


@pytest.mark.parametrize("value", [0, -3, 1.5, 4.0, "4", None, True, math.nan])
def test_an_integer_is_a_whole_number_in_range(value):
    expected = f"Invalid patience: {value!r}. Expected a whole number of at least 1."
    assert refusal(check_integer, "patience", value) == expected


def test_an_integer_may_be_the_end_of_its_range():
    assert [check_integer("bits", value, minimum=2, maximum=8) for value in (2, 8)] == [2, 8]
    assert check_integer("pictures_every", 0, minimum=0) == 0
    for value in (1, 9):
        expected = f"Invalid bits: {value}. Expected a whole number from 2 to 8."
        assert refusal(check_integer, "bits", value, minimum=2, maximum=8) == expected


@pytest.mark.parametrize("value", [-0.1, "60", None, False, math.nan, math.inf, -math.inf])
def test_a_number_is_finite_and_in_range(value):
    expected = f"Invalid every_seconds: {value!r}. Expected a number of at least 0."
    assert refusal(check_number, "every_seconds", value, minimum=0) == expected


def test_a_number_may_be_the_minimum_unless_that_is_left_out():
    assert check_number("every_seconds", 0, minimum=0) == 0.0
    assert isinstance(check_number("every_seconds", 3, minimum=0), float)
    refused = refusal(check_number, "clip", 0, minimum=0, above_minimum=True)
    assert refused == "Invalid clip: 0. Expected a number above 0."
    assert check_number("clip", 1e-9, minimum=0, above_minimum=True) == 1e-9


@pytest.mark.parametrize("value", [-0.01, 1.01])
def test_a_number_between_two_ends_names_both(value):
    assert check_number("fraction", 1, minimum=0, maximum=1) == 1.0
    expected = f"Invalid fraction: {value}. Expected a number in [0, 1]."
    assert refusal(check_number, "fraction", value, minimum=0, maximum=1) == expected
    assert refusal(check_number, "x", 0, minimum=0, maximum=1, above_minimum=True).endswith("in (0, 1].")


def test_a_number_without_range_is_finite():
    assert check_number("shift", -3) == -3.0
    assert refusal(check_number, "shift", math.inf) == "Invalid shift: inf. Expected a finite number."


def test_a_number_says_what_it_was_told_to_expect():
    refused = refusal(check_number, "power", 0, minimum=1, expected="a number above 1, such as 3")
    assert refused == "Invalid power: 0. Expected a number above 1, such as 3."


@pytest.mark.parametrize("value", ["splcing", None, 3, ["splicing"]])
def test_a_choice_is_one_of_the_known_names(value):
    refused = refusal(check_choice, "schedule", value, ("constant", "splicing"))
    assert refused.startswith(f"Unknown schedule '{value}'.")
    assert refused.endswith("Expected one of: constant, splicing.")
    assert ("Did you mean 'splicing'?" in refused) == (value in ("splcing", ["splicing"]))


def test_a_choice_is_returned():
    assert check_choice("schedule", "splicing", ("constant", "splicing")) == "splicing"


@pytest.mark.parametrize("value", ["", [], [3], ["dense", ""], None, 3, True])
def test_patterns_are_texts(value):
    refused = refusal(check_patterns, "layers", value)
    assert refused == f"Invalid layers: {value!r}. Expected a pattern such as '*', or a list of patterns."


def test_one_pattern_stays_one_and_several_become_a_list_of_their_own():
    given = ("dense_1", "conv_*")
    assert check_patterns("layers", "*") == "*"
    assert check_patterns("layers", given) == list(given)


@pytest.mark.parametrize(
    ("hook", "option"), [("early_stopping", "patience=0"), ("checkpoint", "every_seconds=-1"), ("progress", "lines=0")]
)
def test_the_message_says_under_which_hook_the_option_stands(hook: str, option: str, tmp_path):
    name, _, value = option.partition("=")
    refused = refusal(run_small, "baseline", f"hooks.{hook}.{option}", run_dir=tmp_path / "run")
    assert refused.startswith(f"hooks.{hook}: Invalid {name}: {value}. Expected a ")
    assert not (tmp_path / "run").exists()
