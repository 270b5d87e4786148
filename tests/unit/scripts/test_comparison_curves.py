"""Curves: reading them, averaging them over seeds, drawing them."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from scripts.comparison import chart
from scripts.comparison.curves import average, read_curves, tail
from tests.support.stored_runs import config_of, summary_of, write_run
from trainer.comparison.comparison import compare
from trainer.comparison.find import find_runs


def test_curves_are_read_by_split_and_damaged_lines_are_counted(tmp_path):
    path = write_run(tmp_path / "a", losses=(1.0, 0.5))
    text = (path / "metrics.jsonl").read_text()
    more = '3\n{"step": "x", "split": "train"}\n{"step": Infinity, "split": "train"}\n'
    more += '{"step": 30, "split": "train", "loss/cross_entropy": null}\n{"step": 4'
    (path / "metrics.jsonl").write_text(text + more)
    found = read_curves(path, ["loss/cross_entropy", "none"])
    assert found.values == {
        ("train", "loss/cross_entropy"): {10: 1.0, 20: 0.5},
        ("validation", "loss/cross_entropy"): {10: 1.0, 20: 0.5},
    }
    assert found.damaged == 3  # the line that was cut off at the end is not: the run was killed, or goes on


def test_a_mean_goes_as_far_as_all_curves_do():
    long, short = {1: 1.0, 2: 2.0, 3: 9.0, 4: 8.0}, {1: 3.0, 2: 2.0}
    band = average([long, short])
    np.testing.assert_array_equal(band.steps, [1, 2])
    np.testing.assert_allclose(band.mean, [2.0, 2.0])
    np.testing.assert_allclose(band.deviation, [2**0.5, 0.0])
    assert tail(long, band) == {2: 2.0, 3: 9.0, 4: 8.0}
    assert tail(short, band) == {}


def test_a_lone_curve_has_no_band_and_curves_without_a_shared_step_no_mean():
    np.testing.assert_array_equal(average([{1: 1.0, 5: 2.0}]).deviation, [0.0, 0.0])
    band = average([{1: 1.0, 3: 1.0}, {2: 1.0}])
    assert band.steps.size == band.mean.size == 0
    assert tail({1: 1.0, 3: 1.0}, band) == {1: 1.0, 3: 1.0}


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were drawn."""
    figures = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *a, **k: (figures.append(figure), save(figure, *a, **k)))
    return figures


def comparison_of(tmp_path, groups=1, seeds=2, losses=(1.0, 0.5)):
    for group in range(groups):
        for seed in range(seeds):
            run_losses = losses[: len(losses) - seed]
            write_run(
                tmp_path / f"{group}_{seed}", config_of(seed, group + 1), summary_of(loss=group + 1), losses=run_losses
            )
    return compare(find_runs([str(tmp_path)]).runs)


def test_each_group_is_a_line_with_a_band_and_single_runs_behind_it(tmp_path, drawn):
    comparison = comparison_of(tmp_path, groups=2, losses=(1.0, 0.5, 0.25, 0.2))
    assert chart.write_chart(comparison, tmp_path / "a.png") == []
    accuracy, loss = drawn[0].axes
    assert loss.get_title(loc="left") == "loss/cross_entropy: solid validation, dashed training"
    assert [text.get_text() for text in loss.get_legend().get_texts()] == [
        "learning_rate=1 (n=2)",
        "learning_rate=2 (n=2)",
    ]
    lines = [(line.get_linestyle(), list(line.get_xdata())) for line in loss.get_lines()[:3]]
    assert lines == [("-", [10, 20, 30]), ("-", [30, 40]), ("-", [])]
    assert {line.get_linestyle() for line in loss.get_lines()} == {"-", "--"}
    assert len(loss.collections) == 4  # a band for each group and split
    assert loss.get_yscale() == "log"
    assert accuracy.get_yscale() == "linear"


def test_losses_below_zero_have_no_logarithm(tmp_path, drawn):
    chart.write_chart(comparison_of(tmp_path, losses=(1.0, -0.5, -1.0)), tmp_path / "a.png")
    assert drawn[0].axes[1].get_yscale() == "linear"


def test_more_groups_than_colours_are_told_of(tmp_path, drawn):
    notes = chart.write_chart(comparison_of(tmp_path, groups=11, seeds=1), tmp_path / "a.png")
    assert notes == ["The chart shows the first 10 of 11 groups."]
    assert len(drawn[0].axes[1].get_legend().get_texts()) == 10
