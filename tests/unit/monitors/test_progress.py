from __future__ import annotations

import io
import re
import sys
import threading

import pytest

from hooks.monitors import progress_lines
from hooks.monitors.progress import Progress
from trainer.errors import UserError
from trainer.run.control import Best, Report

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")

    def use() -> Terminal:  # called inside the test: pytest sets standard output anew before it
        stream = Terminal()
        monkeypatch.setattr(sys, "stdout", stream)
        return stream

    return use


def advance(hook, run, step, evaluate=True):
    """Tell the hook of a chunk that ends at `step`, with a report, and of an evaluation."""
    run.train_seconds += 0.01 * (step - run.step)
    run.timed_steps += step - run.step
    run.step = step
    hook.on_chunk_end(
        run, Report(step, "train", {"loss/total": 1 / step, "metric/accuracy": 0.5, "opt/learning_rate": 1})
    )
    if evaluate:
        report = Report(step, "validation", {"loss/total": 2 / step, "metric/accuracy": 0.9 + step / 1e6})
        run.best.update(report)
        hook.on_evaluation_end(run, report)


def test_plain_lines_say_position_speed_time_left_and_metrics(make_run, capsys):
    hook, run = Progress(), make_run()
    hook.on_fit_begin(run)
    advance(hook, run, 10)
    advance(hook, run, 20)
    first, *lines = capsys.readouterr().out.splitlines()
    assert "bnn" in first
    assert str(run.directory) in first
    assert len(lines) == 2
    assert lines[1].startswith("step 20/100, epoch 2.0/10.0, 6,400 images/s, 0:0")
    assert "left, train loss 0.0500 accuracy 0.5000, validation loss 0.1000 accuracy 0.9000" in lines[1]
    assert lines[1].endswith("best accuracy 0.9000 at step 20")


def test_the_queue_is_shown_where_there_is_one(make_run, capsys):
    hook, run = Progress(), make_run(queue=(3, 8))
    hook.on_fit_begin(run)
    advance(hook, run, 10)
    run.queue = None
    advance(hook, run, 20)
    first, second = capsys.readouterr().out.splitlines()[1:]
    assert "images/s, queue 3/8, " in first
    assert "queue" not in second


def test_plain_lines_hold_no_control_characters_and_are_not_wrapped(make_run, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "20")
    hook, run = Progress(), make_run()
    hook.on_fit_begin(run)
    for step in range(10, 101, 10):
        advance(hook, run, step)
    hook.on_fit_end(run, {})
    output = capsys.readouterr().out
    assert not CONTROL.search(output)
    assert all(line.startswith(("step ", "bnn: step ")) for line in output.splitlines())


@pytest.mark.parametrize(("epochs", "lines", "most"), [(1000, 50, 50), (1000, 7, 7), (5, 50, 5)])
@pytest.mark.parametrize("evaluate", [True, False])
def test_plain_lines_are_bounded_by_epochs_and_by_the_argument(make_run, capsys, epochs, lines, most, evaluate):
    hook, run = Progress(lines=lines), make_run(total_steps=epochs * 10)
    hook.on_fit_begin(run)
    for step in range(2, run.total_steps + 1, 2):
        advance(hook, run, step, evaluate=evaluate and step % 10 == 0)
    hook.on_fit_end(run, {})
    printed = capsys.readouterr().out.splitlines()[1:]
    assert most // 2 <= len(printed) <= most + 1
    assert f"step {run.total_steps}/{run.total_steps}" in printed[-1]


def test_a_slow_epoch_prints_by_the_clock(make_run, capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress_lines.time, "monotonic", lambda: clock[0])
    hook, run = Progress(), make_run(total_steps=1000, steps_per_epoch=1000.0)
    hook.on_fit_begin(run)
    for step in range(10, 501, 10):
        clock[0] += 10.0
        advance(hook, run, step, evaluate=False)
    printed = capsys.readouterr().out.splitlines()[1:]
    assert [line.split("/")[0] for line in printed][:3] == ["step 30", "step 60", "step 90"]
    assert len(printed) == 16
    assert "16:10 left" in printed[0]  # 970 steps of one second
    assert "8:40 left" in printed[-1]


def test_the_last_step_is_printed_once(make_run, capsys):
    hook, run = Progress(), make_run(total_steps=10)
    hook.on_fit_begin(run)
    advance(hook, run, 10)
    hook.on_exception(run, RuntimeError())
    hook.on_fit_end(run, {})
    assert capsys.readouterr().out.count("step 10/10") == 1


def test_the_place_of_an_exception_is_printed(make_run, capsys):
    hook, run = Progress(), make_run()
    hook.on_fit_begin(run)
    advance(hook, run, 3)
    hook.on_exception(run, RuntimeError())
    assert "step 3/100" in capsys.readouterr().out


def test_time_left_counts_from_where_a_resumed_run_began(make_run, capsys, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(progress_lines.time, "monotonic", lambda: clock[0])
    hook, run = Progress(), make_run(step=50)
    hook.on_fit_begin(run)
    clock[0] += 300.0  # the first step compiles; that says nothing about the others
    advance(hook, run, 51, evaluate=False)
    assert " left," not in capsys.readouterr().out
    clock[0] += 18.0
    advance(hook, run, 60)
    assert "1:20 left" in capsys.readouterr().out


def test_metrics_are_shown_beside_a_monitored_loss(make_run, capsys):
    hook, run = Progress(), make_run(best=Best("loss/total", "min"))
    hook.on_fit_begin(run)
    advance(hook, run, 10)
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.endswith("validation loss 0.2000 accuracy 0.9000, best loss 0.2000 at step 10")


def test_an_unknown_speed_is_not_shown(make_run, capsys):
    hook, run = Progress(), make_run()
    hook.on_fit_begin(run)
    run.step = 1
    hook.on_exception(run, RuntimeError())
    assert capsys.readouterr().out.splitlines()[-1] == "step 1/100, epoch 0.1/10.0"


def test_the_bar_draws_position_and_metrics_and_gives_the_terminal_back(make_run, terminal):
    hook, run, terminal = Progress(), make_run(), terminal()
    threads = set(threading.enumerate())
    hook.on_fit_begin(run)
    (drawing,) = set(threading.enumerate()) - threads
    advance(hook, run, 40)
    hook.on_fit_end(run, {})
    drawing.join(timeout=5)
    assert not drawing.is_alive()
    assert sys.stdout is terminal
    output = terminal.getvalue()
    assert "step 40/100, epoch 4.0/10.0, 6,400 images/s" in output
    assert "validation loss 0.0500 accuracy 0.9000" in output
    assert "\x1b[?25l" not in output  # a process that is killed could not show the cursor again


def test_the_bar_gives_the_terminal_back_after_an_exception(make_run, terminal):
    hook, run, terminal = Progress(), make_run(), terminal()
    hook.on_fit_begin(run)
    hook.on_exception(run, KeyboardInterrupt())
    assert sys.stdout is terminal
    assert terminal.getvalue().endswith("\n")
    length = len(terminal.getvalue())
    hook.on_fit_end(run, {})
    assert len(terminal.getvalue()) == length


def test_output_of_others_appears_above_the_bar(make_run, terminal):
    hook, run, terminal = Progress(), make_run(), terminal()
    hook.on_fit_begin(run)
    sys.stdout.write("a word from elsewhere\n")
    hook.on_fit_end(run, {})
    assert "a word from elsewhere" in terminal.getvalue()


def test_plain_overrides_the_terminal(make_run, terminal):
    hook, run, terminal = Progress(mode="plain"), make_run(), terminal()
    hook.on_fit_begin(run)
    advance(hook, run, 10)
    hook.on_fit_end(run, {})
    assert not CONTROL.search(terminal.getvalue())


@pytest.mark.parametrize("mode", ["plain", "bar"])
def test_a_reader_that_left_does_not_end_the_run(make_run, terminal, monkeypatch, mode):
    def refuse(text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    hook, run, terminal = Progress(mode=mode), make_run(), terminal()
    hook.on_fit_begin(run)
    monkeypatch.setattr(terminal, "write", refuse)
    for step in range(10, 101, 10):
        advance(hook, run, step)
    hook.on_fit_end(run, {})
    assert run.step == 100


def test_a_second_fit_begins_anew(make_run, capsys):
    hook = Progress()
    for _ in range(2):
        run = make_run(total_steps=10)
        hook.on_fit_begin(run)
        advance(hook, run, 10)
        hook.on_fit_end(run, {})
    assert capsys.readouterr().out.count("step 10/10") == 2


def test_no_edge_is_asked_for_and_no_state_is_kept():
    assert Progress().next_step(3) is None
    assert Progress().state_dict() == {}


@pytest.mark.parametrize("arguments", [{"every_seconds": 0}, {"lines": 0}, {"lines": 1.5}, {"every_seconds": "often"}])
def test_bad_arguments_are_named(arguments):
    with pytest.raises(UserError, match=f"^Invalid {next(iter(arguments))}: "):
        Progress(**arguments)
