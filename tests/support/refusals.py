"""Check the messages that users read when something is refused."""

import re

import pytest

from hookline.trainer.errors import UserError


def refusal(function, *arguments, **options):
    with pytest.raises(UserError) as caught:
        function(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_refused(message, function, *arguments, **options):
    found = refusal(function, *arguments, **options)
    assert re.search(message, found), found


def assert_one_line(main, arguments, word, capture, *, quiet=True):
    assert main(arguments) == 2, arguments
    shown, error = capture.readouterr()
    assert word in error, error
    assert (error.startswith("Error: "), error.count("\n")) == (True, 1), error
    assert not (quiet and shown), shown
