"""A tethered script: all is as without the tether, until the process that holds the other end is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hookline.scripts.sweep.run import TETHER

WAIT = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    return tmp_path / "scripts" / "job.py"


def test_it_is_killed_with_what_it_started_when_the_other_end_closes(script: Path) -> None:
    script.write_text(WAIT)
    read, write = os.pipe()
    command = [sys.executable, str(TETHER), str(read), str(script)]
    with subprocess.Popen(command, pass_fds=(read,), stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        os.kill(child, 0)  # it is there
        os.close(read)
        os.close(write)
        assert process.wait(60) == -signal.SIGKILL
        assert process.stdout.read() == b""  # its child held the other end of this pipe, and is gone, too
