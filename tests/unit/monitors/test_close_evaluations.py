from __future__ import annotations

import pytest

from hooks.monitors.close_evaluations import describe_close


def shares(*counts: int, of: int) -> list[float]:
    return [count / of for count in counts]


@pytest.mark.parametrize(
    ("counts", "examples", "close"),
    [
        ([179, 178, 177, 100], 180, 2),  # two examples away
        ([179, 178, 176, 100], 180, None),  # three: then the best stands out of all but one
        ([180, 180, 180], 180, 2),  # that of all right has an error, too
        ([144, 139, 139], 180, 2),  # a standard error is 5.4 examples
        ([144, 138, 138], 180, None),
        ([9900, 9899, 9899], 10000, None),  # a difference of nothing
        ([990, 988, 988], 1000, None),
        ([900, 892, 892], 1000, 2),
    ],
)
def test_evaluations_within_a_standard_error_or_two_examples_are_counted(counts, examples, close):
    values = shares(*counts, of=examples)
    text = describe_close("metric/accuracy", values, max(values), examples)
    assert (text is None) if close is None else (text is not None and f"{close} other evaluations lie as near" in text)


def test_the_line_says_what_an_example_is_and_what_helps():
    text = describe_close("metric/accuracy", shares(179, 178, 178, of=180), 179 / 180, 180)
    assert text is not None
    assert text.startswith("180 examples: one is 0.0056 of accuracy, its standard error 0.0078, and 2 other")
    settings = "trainer.monitor=loss/total trainer.monitor_mode=min"
    assert text.endswith(f"let a loss decide, {settings}, or hold out more.")


def test_what_is_no_share_of_the_examples_is_left_alone():
    assert describe_close("loss/total", [0.1234, 0.1234, 0.1234], 0.1234, 180) is None
    assert describe_close("metric/map@r", [0.9291, 0.9291, 0.9291], 0.9291, 180) is None
