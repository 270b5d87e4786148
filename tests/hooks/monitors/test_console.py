import io
import os
import subprocess
import sys

import pytest

from hookline.hooks.monitors.console import LastingStream, is_terminal


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Broken(io.StringIO):
    calls = 0

    def write(self, text: str) -> int:
        self.calls += 1
        raise BrokenPipeError(32, "pipe")


def test_broken_closed_or_missing_stream_is_dropped_for_good():
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
def test_is_terminal_respects_term_ci_and_no_color(monkeypatch, name, value, shown):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv(name, value)
    assert is_terminal(LastingStream(Terminal())) is shown
    assert not is_terminal(LastingStream(io.StringIO()))


def test_process_exits_cleanly_after_the_reader_closes_the_pipe():
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
