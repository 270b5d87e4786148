"""The options of an export: a value of another type is one clear line."""

from __future__ import annotations

import pytest

from trainer.errors import UserError
from trainer.export.options import ExportOptions


@pytest.mark.parametrize("values", [{}, {"int8": True}, {"tolerance": 0}, {"tolerance": 0.05, "int8": False}])
def test_values_of_their_types_are_taken(values):
    options = ExportOptions(**values)
    assert {name: getattr(options, name) for name in values} == values


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"int8": 1}, "Invalid int8: 1. Expected true or false."),
        ({"int8": None}, "Invalid int8: None. Expected true or false."),
        ({"int8": "yes"}, "Invalid int8: 'yes'. Expected true or false."),
        ({"tolerance": True}, "Invalid tolerance: True. Expected a number."),
        ({"tolerance": "0.1"}, "Invalid tolerance: '0.1'. Expected a number."),
        ({"tolerance": -0.1}, "Invalid tolerance: -0.1. Expected a number from 0 on, such as 0.02."),
        ({"tolerance": float("nan")}, "Invalid tolerance: nan. Expected a number from 0 on, such as 0.02."),
    ],
)
def test_others_are_one_line(values, message: str):
    with pytest.raises(UserError) as caught:
        ExportOptions(**values)
    assert str(caught.value) == message


def test_what_is_not_at_its_default_is_named():
    assert ExportOptions().changed == []
    assert ExportOptions(int8=True, tolerance=0.1).changed == ["tolerance", "int8"]
