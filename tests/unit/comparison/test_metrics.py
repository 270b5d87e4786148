"""Which metrics are compared, and which of their values are better."""

from __future__ import annotations

import pytest

from hookline.scripts.comparison.runs import Metric, default_metrics, direction_of, parse_metrics
from hookline.trainer.errors import UserError
from tests.support.stored_runs import job


def test_metrics_of_the_test_split_are_compared_or_else_losses():
    assert default_metrics([job()]) == [Metric("test", "metric/accuracy", "max")]
    run = job()
    run.summary["test"].pop("metric/accuracy")  # type: ignore[index]
    assert default_metrics([run]) == [Metric("test", "loss/total", "min")]
    assert default_metrics([]) == []


def test_a_user_names_them_in_full_or_in_short_with_a_split_or_without():
    names = "accuracy, metric/accuracy,validation/loss,train/loss/total"
    assert [metric.label for metric in parse_metrics(names, [job()])] == [
        "test accuracy",
        "validation loss",
        "train loss",
    ]
    assert parse_metrics("[loss]", [job()]) == [Metric("test", "loss/total", "min")]


def test_an_unknown_metric_is_one_line():
    for text, line in (("accurcy", "'metric/accuracy'"), ("validation/x", "validation split 'x'"), ("a,,b", "names")):
        with pytest.raises(UserError, match=line):
            parse_metrics(text, [job()])


def test_directions_are_known_of_losses_of_accuracies_and_of_monitors():
    runs = [job(monitor="metric/map@r", monitor_mode="max"), job(monitor="metric/frechet", monitor_mode="min")]
    names = ("loss/total", "generator/loss/total", "metric/accuracy", "metric/map@r", "metric/frechet", "metric/within")
    assert [direction_of(name, runs) for name in names] == ["min", "min", "max", "max", "min", None]
    runs = [job(monitor="metric/x", monitor_mode="max"), job(monitor="metric/x", monitor_mode="min")]
    assert direction_of("metric/x", runs) is None
