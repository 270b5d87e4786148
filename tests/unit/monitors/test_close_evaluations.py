from __future__ import annotations

from hookline.hooks.monitors.console import describe_close

CLOSE = [
    ([179, 178, 177, 100], 180, 2),  # two examples away
    ([179, 178, 176, 100], 180, None),  # three: then the best stands out of all but one
    ([180, 180, 180], 180, 2),  # that of all right has an error, too
    ([144, 139, 139], 180, 2),  # a standard error is 5.4 examples
    ([144, 138, 138], 180, None),
    ([9900, 9899, 9899], 10000, None),  # a difference of nothing
    ([900, 892, 892], 1000, 2),
]


def test_evaluations_within_a_standard_error_or_two_examples_are_counted():
    for counts, examples, close in CLOSE:
        values = [count / examples for count in counts]
        text = describe_close("metric/accuracy", values, max(values), examples)
        assert text is None if close is None else f"{close} other evaluations lie as near" in text
    text = describe_close("metric/accuracy", [179 / 180, 178 / 180, 178 / 180], 179 / 180, 180)
    assert text.startswith("180 examples: one is 0.0056 of accuracy, its standard error 0.0078")
    assert describe_close("loss/total", [0.1234] * 3, 0.1234, 180) is None  # no share of the examples
