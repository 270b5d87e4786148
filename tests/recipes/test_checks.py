"""Options are checked in one way: names that exist, whole numbers and numbers in their range."""

import math

from hookline.recipes import check_choice, check_number, check_whole
from tests.support.refusals import assert_refused


def test_options_out_of_range_are_refused_by_their_name() -> None:
    check_choice("data.fit", "crop", ("crop", "stretch"))
    assert_refused("data.fit 'crp'.*'crop'", check_choice, "data.fit", "crp", ("crop", "stretch"))
    for value in (1, 5):
        check_whole("data.threads", value, 1, 5)
    for value in (0, 6, 2.0, True, "2", None):
        assert_refused(f"data.threads={value!r} received", check_whole, "data.threads", value, 1, 5)
    assert check_number("share", 1, 0, 1, open_below=True) == 1.0
    for value in (0, 1.1, math.nan, math.inf, -1, True, "1", None):
        assert_refused(f"share={value} received", check_number, "share", value, 0, 1, open_below=True)
    assert check_number("alpha", 0, 0) == 0.0
