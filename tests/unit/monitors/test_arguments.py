from __future__ import annotations

import pytest

from hooks.monitors.arguments import check_flag, check_integer, check_number
from trainer.errors import UserError


@pytest.mark.parametrize("value", [0, -3, 1.5, "4", None, True])
def test_integer_refuses_what_is_no_integer_in_range(value):
    with pytest.raises(UserError, match=r"hooks\.early_stopping\.patience received .* integer of at least 1"):
        check_integer("early_stopping", "patience", value, minimum=1)


def test_integer_accepts_the_minimum():
    assert check_integer("early_stopping", "patience", 1, minimum=1) == 1


@pytest.mark.parametrize("value", [-0.1, "60", None, False, float("nan"), float("inf")])
def test_number_refuses_what_is_no_finite_number_in_range(value):
    with pytest.raises(UserError, match=r"hooks\.checkpoint\.every_seconds received .* number of at least 0"):
        check_number("checkpoint", "every_seconds", value, minimum=0)


def test_number_accepts_the_minimum_unless_it_is_excluded():
    assert check_number("checkpoint", "every_seconds", 0, minimum=0) == 0.0
    with pytest.raises(UserError, match="above 0"):
        check_number("checkpoint", "every_epochs", 0, minimum=0, exclusive=True)


@pytest.mark.parametrize("value", [0, 1, "true", None])
def test_flag_refuses_what_is_not_true_or_false(value):
    with pytest.raises(UserError, match=r"hooks\.checkpoint\.keep_best received .* true or false"):
        check_flag("checkpoint", "keep_best", value)


def test_flag_accepts_both_values():
    assert check_flag("checkpoint", "keep_best", True) is True
    assert check_flag("checkpoint", "keep_best", False) is False
