"""A function's own check gets what the config gives, and defaults for the rest."""

from __future__ import annotations

import pytest

from trainer.errors import UserError
from trainer.precheck import prechecked, run_precheck


def refuse(path: str, size: int) -> None:
    raise UserError(f"{path} {size}")


@prechecked(refuse)
def opened(*, path: str, size: int = 3, seed: int = 0) -> int:
    return size + seed


def test_given_arguments_and_defaults_reach_the_check() -> None:
    with pytest.raises(UserError, match=r"^here 3$"):
        run_precheck(opened, {"path": "here", "seed": 4})
    with pytest.raises(UserError, match=r"^here 5$"):
        run_precheck(opened, {"path": "here", "size": 5})


def test_the_function_itself_is_left_as_it_is() -> None:
    assert opened(path="x") == 3


def test_nothing_is_checked_where_an_argument_is_still_to_come() -> None:
    run_precheck(opened, {"size": 5})


def test_a_function_without_a_check_passes() -> None:
    run_precheck(lambda path: path, {"path": 1})
