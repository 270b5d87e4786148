"""The time to the first step: from when the process began, part by part."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainer.run import start_time
from trainer.run.start_time import StartTime, process_began

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not tell")
def test_the_process_began_when_it_was_started() -> None:
    code = "import time; time.sleep(0.3); from trainer.run.start_time import process_began; print(process_began())"
    before = time.monotonic()
    began = float(subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True).stdout)
    assert before - 0.05 < began < time.monotonic() - 0.3


def test_now_is_taken_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_time.Path, "read_text", lambda self: "nothing of use")
    assert time.monotonic() - process_began() < 1.0


def test_parts_follow_one_another() -> None:
    began = time.monotonic() - 10.0
    started = StartTime(began)
    started.end("import", began + 4.0)
    started.end("build", began + 7.0)
    started.split("build", 2.0, "trace")
    started.end("step", began + 8.5)
    assert list(started.summary()) == ["seconds", "import", "build", "trace", "step"]
    assert started.summary() == pytest.approx({"seconds": 8.5, "import": 4.0, "build": 1.0, "trace": 2.0, "step": 1.5})


def test_a_run_that_nobody_timed_begins_now() -> None:
    started = StartTime()
    started.end("import")
    assert 0 <= started.summary()["seconds"] < 1.0
