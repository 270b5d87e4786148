"""A function's own check gets what the config gives, and defaults for the rest."""

from __future__ import annotations

import pytest

from hookline.trainer.deferred import prechecked, run_precheck
from hookline.trainer.errors import UserError


def refuse(path: str, size: int) -> None:
    raise UserError(f"{path} {size}")


@prechecked(refuse)
def opened(*, path: str, size: int = 3, seed: int = 0) -> int:
    return size + seed


def test_given_arguments_and_defaults_reach_the_check_once_all_are_there() -> None:
    for given, said in (({"path": "here", "seed": 4}, "here 3"), ({"path": "here", "size": 5}, "here 5")):
        with pytest.raises(UserError, match=f"^{said}$"):
            run_precheck(opened, given)
    run_precheck(opened, {"size": 5})  # an argument is still to come
    run_precheck(lambda path: path, {"path": 1})  # no check
    assert opened(path="x") == 3
