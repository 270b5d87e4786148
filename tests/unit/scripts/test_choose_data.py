"""Values of a run's data that an evaluation changes: a mistake is one line, and the run's own stay as they are."""

from __future__ import annotations

import pytest

from scripts.evaluation.choose_data import check_data, data_config, is_data
from trainer.errors import UserError

STORED = {"_target_": "recipes.data.digits.digits", "seed": 0, "test_fraction": 0.2, "path": None}


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("data.seed=4", "seed", 4),
        ("data.path=a=b", "path", "a=b"),
        ("data.path=", "path", None),
        ("data.path=[1,2]", "path", [1, 2]),
        ("data.test_fraction=0.5", "test_fraction", 0.5),
    ],
)
def test_a_value_is_read_as_yaml_and_the_stored_config_stays(override: str, key: str, value: object):
    before = dict(STORED)
    assert data_config([override], STORED, []) == {**STORED, key: value}
    assert before == STORED


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.path", "'data.path' received. Expected data.path=<value>."),
        ("data.path=[1", "'data.path=[1' is no value. Expected such as data.path=<value>."),
        ("data.path=2024-13-45", "'data.path=2024-13-45' is no value."),
        ("data.sed=1", "Unknown key of the run's data 'sed'. Did you mean 'seed'?"),
        ("data", "Unknown key of the run's data 'data'."),
    ],
)
def test_what_is_no_value_of_the_runs_data_is_refused(override: str, message: str):
    with pytest.raises(UserError) as caught:
        data_config([override], STORED, [])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("argument", "expected"),
    [("data=mnist", True), ("+data.source=1", True), ("data.path=a", True), ("database=a", False), ("run=data", False)],
)
def test_arguments_about_data_are_told_from_others(argument: str, expected: bool):
    assert is_data(argument) == expected


def test_data_of_another_shape_is_refused_with_both_shapes():
    class Images:
        name, input_shape = "mine", (8, 8, 1)

    with pytest.raises(UserError) as caught:
        check_data(Images(), (28, 28, 1), (), None)  # type: ignore[arg-type]
    assert "'mine' has inputs of shape [8, 8, 1], and the network takes [28, 28, 1]" in str(caught.value)
