from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from hookline.hooks.monitors.console import LastingStream, describe_close, is_terminal


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Broken(io.StringIO):
    calls = 0

    def write(self, text: str) -> int:
        self.calls += 1
        raise BrokenPipeError(32, "pipe")


def test_a_broken_closed_or_missing_stream_is_dropped_once_and_for_all():
    target, closed = Broken(), io.StringIO()
    closed.close()
    for stream in (LastingStream(target), LastingStream(closed), LastingStream(None)):
        for _ in range(3):
            assert stream.write("text") == 4
            stream.flush()
    assert target.calls == 1
    raw = io.BytesIO()
    stream = LastingStream(io.TextIOWrapper(raw, encoding="ascii"))
    stream.write("kernel ━ é")
    stream.flush()
    assert raw.getvalue() == b"kernel ? ?"


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        *(("TERM", "xterm-256color", True), ("TERM", "dumb", False), ("CI", "true", False), ("CI", "false", True)),
        *(("NO_COLOR", "1", False), ("NO_COLOR", "", True)),
    ],
)
def test_a_terminal_knows_control_sequences_and_wants_them(monkeypatch, name, value, shown):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv(name, value)
    assert is_terminal(LastingStream(Terminal())) is shown
    assert not is_terminal(LastingStream(io.StringIO()))


def test_a_process_ends_well_after_its_reader_has_left():
    program = (
        "import sys\n"
        "from hookline.hooks.monitors.console import open_console\n"
        "console = open_console()\n"
        "[console.print('x' * 100) for line in range(2000)]\n"
        "print('a later print of somebody else')\n"
        "sys.stderr.write('reached the end')\n"
    )
    read, write = os.pipe()
    with subprocess.Popen([sys.executable, "-c", program], stdout=write, stderr=subprocess.PIPE, text=True) as process:
        os.close(write)
        os.read(read, 10)
        os.close(read)
        _, errors = process.communicate(timeout=60)
    assert (errors, process.returncode) == ("reached the end", 0)


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
