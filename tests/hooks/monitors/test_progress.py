import io
import re
import sys
import threading
from types import ModuleType

import pytest
from rich.console import Console

from hookline.hooks.monitors import progress
from hookline.hooks.monitors.progress import Progress, Status
from hookline.trainer.run.control import Report
from hookline.trainer.run.times import Times
from tests.hooks.monitors.test_console import Terminal

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


def advance(hook, run, step, evaluate=True):
    """Report a chunk that ends at `step` to the hook, and by default an evaluation."""
    run.times.train_seconds += 0.01 * (step - run.step)
    run.times.timed_steps += step - run.step
    run.step = step
    values = {"loss/total": 1 / step, "metric/accuracy": 0.5, "opt/learning_rate": 1}
    hook.on_chunk_end(run, Report(step, "train", values))
    if evaluate:
        report = Report(step, "validation", {"loss/total": 2 / step, "metric/accuracy": 0.9 + step / 1e6})
        run.best.update(report)
        hook.on_evaluation_end(run, report)


def begun(run, **options):
    hook = Progress(**options)
    hook.on_fit_begin(run)
    return hook


def test_plain_lines_show_position_speed_time_left_and_metrics(make_run, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "20")
    run = make_run(times=Times())
    hook = begun(run)
    advance(hook, run, 10)
    advance(hook, run, 20)
    output = capsys.readouterr().out
    assert not CONTROL.search(output)
    first, _, line = output.splitlines()  # not wrapped
    assert str(run.directory) in first
    assert line.startswith("step 20/100, epoch 2.0/10.0, 6,400 examples/s, 0:0")
    assert "left, train loss 0.0500 accuracy 0.5000, validation loss 0.1000 accuracy 0.9000" in line
    assert line.endswith("best accuracy 0.9000 at step 20")


def test_bar_leaves_room_for_its_text(make_run, monkeypatch):
    monkeypatch.setattr(Status, "speed", lambda self: "7,715 examples/s, waiting for data 7 %, 0:27 left")
    console = Console(file=io.StringIO(), width=90)
    with console.capture() as captured:
        console.print(progress.draw(Status(make_run()), 90))
    assert captured.get().splitlines()[0].rstrip().endswith(" left")


def test_notebook_updates_one_bar_in_place(make_run, capsys, monkeypatch):
    class ZMQInteractiveShell:
        update = staticmethod(lambda data, raw: drawn.append(data["text/plain"]))

    drawn, ipython, display = [], ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = ZMQInteractiveShell
    display.display = lambda data, raw, display_id: ZMQInteractiveShell.update(data, raw) or ZMQInteractiveShell
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    run = make_run()
    hook = begun(run)
    advance(hook, run, 20)
    hook.on_fit_end(run, {})
    assert len(drawn) == 2  # at the beginning and at the end; updates in between come too soon
    assert "step 20/100" in drawn[-1]
    assert not CONTROL.search(drawn[-1])
    assert not capsys.readouterr().out


def test_bar_shows_position_and_metrics_and_restores_stdout(make_run, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    run, terminal, threads = make_run(), Terminal(), set(threading.enumerate())
    monkeypatch.setattr(sys, "stdout", terminal)
    hook = begun(run)
    (drawing,) = set(threading.enumerate()) - threads
    advance(hook, run, 40)
    sys.stdout.write("a word from elsewhere\n")
    hook.on_fit_end(run, {})
    drawing.join(timeout=5)
    assert not drawing.is_alive()
    assert sys.stdout is terminal
    output = terminal.getvalue()
    for text in (
        "step 40/100, epoch 4.0/10.0, 6,400 examples/s",
        "loss 0.0500 accuracy 0.9000",
        "a word from elsewhere",
    ):
        assert text in output
    assert "\x1b[?25l" not in output  # a killed process could not show the cursor again
    hook.on_fit_end(run, {})
    assert terminal.getvalue() == output
    run = make_run()
    advance(begun(run, mode="plain"), run, 10)
    assert not CONTROL.search(terminal.getvalue()[len(output) :])


class Story:
    """A fake run and clock: a step takes 0.1 s of training time; the rest of the given seconds goes elsewhere."""

    def __init__(self, run, patch) -> None:
        self.now, self.run = 1000.0, run
        patch.setattr(progress.time, "monotonic", lambda: self.now)
        self.left = Status(run)

    def train(self, steps: int, seconds: float):
        self.run.step += steps
        self.run.times.train_seconds += 0.1 * steps
        self.now += seconds
        self.left.take(None)
        return self.left.seconds_left()

    def evaluate(self, seconds: float):
        self.now += seconds
        self.left.take(Report(self.run.step, "validation", {}))
        return self.left.seconds_left()


def test_time_left_extrapolates_steps_and_evaluations_so_far(make_run, monkeypatch):
    story = Story(make_run(total_steps=100), monkeypatch)  # 10 per epoch
    assert story.left.seconds_left() is story.train(1, 60.0) is None  # the first step compiles
    assert story.train(9, 0.9) == pytest.approx(9.0)  # 90 steps; the cost of an evaluation is not known yet
    assert story.evaluate(5.0) == pytest.approx(9.0 + 9 * 5.0)
    assert story.train(10, 1.0) == pytest.approx(8.0 + 8 * 5.0)
    story.train(80, 8.0)
    assert story.evaluate(5.0) == 0.0


def test_time_left_of_a_resumed_run_counts_only_steps_since_the_resume(make_run, monkeypatch):
    story = Story(make_run(total_steps=100, step=50, times=Times(train_seconds=1e6)), monkeypatch)
    story.train(1, 60.0)
    story.train(9, 0.9)
    assert story.evaluate(2.0) == pytest.approx(4.0 + 4 * 2.0)
