from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from hooks.monitors.console import LastingStream, is_terminal, open_console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Broken(io.StringIO):
    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error
        self.calls = 0

    def write(self, text: str) -> int:
        self.calls += 1
        raise self.error


def test_text_reaches_the_stream():
    target = io.StringIO()
    stream = LastingStream(target)
    assert stream.write("hello") == 5
    stream.flush()
    assert target.getvalue() == "hello"


@pytest.mark.parametrize("error", [BrokenPipeError(32, "pipe"), OSError(5, "terminal gone"), OSError(28, "disk full")])
def test_a_broken_stream_is_dropped_once_and_for_all(error):
    target = Broken(error)
    stream = LastingStream(target)
    for _ in range(3):
        assert stream.write("text") == 4
        stream.flush()
    assert target.calls == 1


def test_a_closed_or_missing_stream_takes_text_silently():
    closed = io.StringIO()
    closed.close()
    for stream in (LastingStream(closed), LastingStream(None)):
        stream.write("text")
        stream.flush()
        assert not stream.isatty()


def test_letters_that_the_stream_lacks_do_not_fail():
    raw = io.BytesIO()
    stream = LastingStream(io.TextIOWrapper(raw, encoding="ascii"))
    stream.write("kernel ━ é")
    stream.flush()
    assert raw.getvalue() == b"kernel ? ?"


@pytest.mark.parametrize(("term", "shown"), [("xterm-256color", True), ("dumb", False), ("", False)])
def test_a_terminal_must_know_control_sequences(monkeypatch, term, shown):
    monkeypatch.setenv("TERM", term)
    assert is_terminal(LastingStream(Terminal())) is shown
    assert not is_terminal(LastingStream(io.StringIO()))


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        *[("CI", "true", False), ("CI", "1", False), ("CI", "false", True), ("CI", "", True)],
        *[("NO_COLOR", "1", False), ("NO_COLOR", "", True)],
    ],
)
def test_a_log_of_ci_and_who_wants_no_colour_get_plain_text(monkeypatch, name, value, shown):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv(name, value)
    assert is_terminal(LastingStream(Terminal())) is shown


def test_the_cursor_is_never_hidden(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stdout", Terminal())
    console = open_console()
    assert not console.show_cursor(False)
    assert sys.stdout.getvalue() == ""


def test_a_quiet_console_prints_nothing(capsys):
    open_console("quiet").print("text")
    assert capsys.readouterr().out == ""


def test_console_on_a_pipe_is_plain_even_when_colour_is_forced(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    open_console().print("[bold] 12 :smile:", style="bold red")
    assert capsys.readouterr().out == "[bold] 12 :smile:\n"


def test_console_can_be_forced_both_ways(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert open_console().is_terminal
    assert not open_console("plain").is_terminal
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert open_console("bar").is_terminal


def test_a_process_goes_on_and_ends_well_after_its_reader_has_left():
    program = (
        "import sys, time\n"
        "from hooks.monitors.console import open_console\n"
        "console = open_console()\n"
        "for line in range(2000):\n"
        "    console.print('x' * 100)\n"
        "print('a later print of somebody else')\n"
        "sys.stderr.write('went on to the end')\n"
    )
    read, write = os.pipe()
    with subprocess.Popen([sys.executable, "-c", program], stdout=write, stderr=subprocess.PIPE, text=True) as process:
        os.close(write)
        os.read(read, 10)
        os.close(read)
        _, errors = process.communicate(timeout=60)
    assert errors == "went on to the end"
    assert process.returncode == 0
