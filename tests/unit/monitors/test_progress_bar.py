from __future__ import annotations

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from hooks.monitors.progress_bar import ProgressBar, draw, fit, fold
from hooks.monitors.progress_status import ProgressStatus
from trainer.run.control import Report

TEXTS = [("step 4/9", 2), ("epoch 1.0/2.0", 4), ("", 3), ("0:31 left", 1)]


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (40, "step 4/9, epoch 1.0/2.0, 0:31 left"),
        (34, "step 4/9, epoch 1.0/2.0, 0:31 left"),
        (33, "step 4/9, 0:31 left"),
        (18, "0:31 left"),
        (1, "0:31 left"),
    ],
)
def test_what_matters_least_is_left_out_first(width, expected):
    assert fit(TEXTS, width) == expected


def test_groups_stand_on_one_line_or_on_lines_of_their_own():
    groups = [["train", "loss 0.5000", "accuracy 0.9000"], ["best accuracy 0.91", "at step 20"]]
    one = "train loss 0.5000 accuracy 0.9000, best accuracy 0.91 at step 20"
    assert fold(groups, len(one)) == [one]
    assert fold(groups, len(one) - 1) == ["train loss 0.5000 accuracy 0.9000", "best accuracy 0.91 at step 20"]
    assert fold(groups, 20) == ["train loss 0.5000", "  accuracy 0.9000", "best accuracy 0.91", "  at step 20"]
    assert fold([["a" * 30]], 20) == ["a" * 19 + "…"]


@pytest.fixture
def status(make_run) -> ProgressStatus:
    run = make_run(step=40, train_seconds=4.0, timed_steps=40, waited_seconds=1.0, queue=(3, 8))
    status = ProgressStatus(run)
    losses = {f"network_{index}/loss/total": 1.0 for index in range(6)}
    status.take(Report(40, "train", {"loss/total": 0.5, "metric/accuracy": 0.75, **losses}))
    return status


@pytest.mark.parametrize("width", [8, 20, 40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal_and_the_step_is_there(status, width):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    drawing = draw(status, width - 1)
    console.print(drawing)
    lines = console.file.getvalue().rstrip("\n").splitlines()
    assert [cell_len(line) for line in lines] == drawing.cells
    assert max(drawing.cells) < width
    if width >= 20:
        assert "step 40/100" in lines[0]
    if width >= 40:
        assert lines[0][:10].strip("━─") == ""
        assert all(f"network_{index}/loss 1.0000" in console.file.getvalue() for index in range(6))
    if width == 200:
        assert lines[0].endswith("step 40/100, epoch 4.0/10.0, 640 images/s, waiting 25 %, queue 3/8")


def test_a_terminal_that_gets_narrower_has_all_folded_lines_erased(status):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, color_system=None, width=120, height=24)
    bar = ProgressBar(console, status, every_seconds=1000.0)
    bar.begin()
    drawn = re.sub(r"\x1b\[\?25l", "", stream.getvalue()).splitlines()
    console.width = 40
    stream.seek(0)
    stream.truncate()
    bar._live.refresh()
    folded = sum(-(-len(line.rstrip()) // 40) for line in drawn)
    assert folded >= 5
    assert stream.getvalue().count("\x1b[2K") == folded
    bar.end()
