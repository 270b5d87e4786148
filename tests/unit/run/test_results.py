from __future__ import annotations

import pytest

from trainer.run.results import format_bytes, format_seconds, format_value, metric_rows, short_name


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0.0000"),
        (0.97224, "0.9722"),
        (-0.5, "-0.5000"),
        (0.0001234, "0.0001234"),
        (123456.0, "1.235e+05"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
    ],
)
def test_values_keep_four_digits(value, text):
    assert format_value(value) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (13508, "13.19 KiB"),
        (5 * 2**20, "5.00 MiB"),
        (2**31, "2.00 GiB"),
    ],
)
def test_sizes_are_in_binary_units(count, text):
    assert format_bytes(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (83.4, "1:23"), (3661, "1:01:01")])
def test_durations_read_like_a_clock(seconds, text):
    assert format_seconds(seconds) == text


def test_names_are_short_for_people():
    assert short_name("metric/accuracy") == "accuracy"
    assert short_name("loss/total") == "loss"
    assert short_name("generator/metric/modes") == "generator/modes"
    assert short_name("generator/loss/total") == "generator/loss"


@pytest.fixture
def summary():
    return {
        "final": {"loss/total": 0.0512, "loss/center": 0.01, "metric/accuracy": 0.9981, "opt/learning_rate": 0.001},
        "best": {"step": 1080, "values": {"loss/total": 0.1334, "metric/accuracy": 0.9703}},
        "test": {"weights": "best", "loss/total": 0.1111, "metric/accuracy": 0.9722},
    }


def test_rows_hold_metrics_and_the_total_loss_of_each_split(summary):
    assert metric_rows(summary) == [("accuracy", 0.9981, 0.9703, 0.9722), ("loss", 0.0512, 0.1334, 0.1111)]


def test_rows_hold_those_of_each_objective_among_several():
    final = {"g/loss/total": 1.0, "g/loss/gan": 1.0, "d/loss/total": 2.0, "g/opt/rate": 3.0}
    test = {"d/loss/total": 4.0, "g/metric/modes": 8.0}
    assert metric_rows({"final": final, "test": test}) == [
        ("g/modes", None, None, 8.0),
        ("g/loss", 1.0, None, None),
        ("d/loss", 2.0, None, 4.0),
    ]


def test_rows_leave_out_what_a_failed_run_lacks(summary):
    best = {"monitor": "metric/accuracy", "value": None, "step": 0, "values": {}}
    assert metric_rows(summary | {"best": best, "test": {}}) == [
        ("accuracy", 0.9981, None, None),
        ("loss", 0.0512, None, None),
    ]
    assert metric_rows({"status": "failed"}) == []
