"""A sweep that is ended gracefully, at once, or by SIGKILL, and what is left of it each time."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.scripts.sweep.conftest import FAKE
from tests.support.workers import ROOT, is_gone, wait_until

SWEEP = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell starts with it ignored
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and one under nohup with this one
sys.path.insert(0, sys.argv[1])
from hookline.scripts.sweep import run
from hookline.trainer.config.command import parse_command
from hookline.scripts.sweep.command import run_command
run.TRAIN = Path(sys.argv[2])
sys.exit(run_command(parse_command(["-m", *sys.argv[3:]])))
"""


ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@contextmanager
def sweeping(directory: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a sweep in a separate process; yield it once two jobs of seed 15 or 16 are waiting for a signal."""
    command = [sys.executable, "-c", SWEEP, str(ROOT), str(FAKE), *arguments, "--sweep", "s"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=directory, stdout=pipe, stderr=pipe, text=True, env=ENVIRONMENT) as process:
        try:
            wait_until(lambda: process.poll() is not None or len(list(directory.glob("s/*/ready"))) == 2)
            assert process.poll() is None, process.communicate()
            yield process
        finally:
            process.kill()
            for pid in pids(directory):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def pids(directory: Path) -> list[int]:
    """Return the process ids of the jobs, from their logs."""
    return [
        int(found) for log in directory.glob("s/*.log") for found in re.findall(r"^pid (\d+)$", log.read_text(), re.M)
    ]


def statuses(directory: Path) -> list[str]:
    return [job["status"] for job in json.loads((directory / "s/sweep.json").read_text())["jobs"]]


def test_signal_ends_running_jobs_gracefully_and_starts_no_others(tmp_path: Path) -> None:
    with sweeping(tmp_path, "recipe=bnn", "seed=15", "trainer.batch_size=8,9,10", "--jobs", "2") as process:
        process.send_signal(signal.SIGHUP)
        out, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (128 + signal.SIGHUP, "")
    assert statuses(tmp_path) == ["interrupted", "interrupted", "waiting"]
    assert all(f"heard {signal.SIGTERM}" in (tmp_path / f"s/0{job}.log").read_text() for job in (1, 2))
    assert "Run what is missing: python train.py -m --sweep s\n" in out
    assert all(map(is_gone, pids(tmp_path)))


def test_second_signal_ends_jobs_that_ignore_the_first(tmp_path: Path) -> None:
    with sweeping(tmp_path, "recipe=bnn", "seed=16", "trainer.batch_size=8,9,10", "--jobs", "2") as process:
        process.send_signal(signal.SIGINT)
        wait_until(lambda: all("heard" in path.read_text() for path in tmp_path.glob("s/*.log")))
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130
    assert statuses(tmp_path) == ["interrupted", "interrupted", "waiting"]
    assert all(map(is_gone, pids(tmp_path)))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_no_process_is_left_when_the_sweep_is_killed(tmp_path: Path) -> None:
    with sweeping(tmp_path, "recipe=bnn", "seed=15,16", "--jobs", "2") as process:
        jobs = pids(tmp_path)
        (left,) = re.findall(r"^left (\d+)$", (tmp_path / "s/02.log").read_text(), re.MULTILINE)
        assert len(jobs) == 2
        assert not any(map(is_gone, jobs))
        assert [os.getsid(pid) for pid in jobs] == jobs  # Ctrl-C on the terminal reaches the sweep only
        process.kill()
        process.communicate(timeout=30)
        wait_until(lambda: all(map(is_gone, [*jobs, int(left)])), seconds=10)
    assert statuses(tmp_path) == ["running", "running"]
    assert not list(tmp_path.glob("s/*/summary.json"))  # killed, not asked to end
