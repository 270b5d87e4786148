"""What users read when something of theirs is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from hookline.trainer.errors import UserError


def refusal(function: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """Return the one line with which a function refuses its arguments."""
    with pytest.raises(UserError) as caught:
        function(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_refused(message: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Check that a function refuses its arguments in one line that a regular expression is found in."""
    found = refusal(function, *arguments, **options)
    assert re.search(message, found), found


def assert_one_line(main: Callable[..., int], arguments: Any, word: str, capture: pytest.CaptureFixture[str]) -> None:
    """Check that a command ends with exit code 2 and one line of errors, which holds a word."""
    assert main(arguments) == 2, arguments
    error = capture.readouterr().err
    assert word in error, error
    assert error.count("\n") == 1
