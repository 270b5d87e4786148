"""Real processes: Python run to its end, and runs of several workers."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_python(*arguments, code=0, cwd=ROOT, **options):
    """Run Python with arguments to its end, and check its exit code; return what it printed on both streams."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, **options)
    assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr


def wait_until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Launched:
    def __init__(self, *overrides, log, workers=2):
        self._log = log
        command = [sys.executable, str(ROOT / "scripts" / "launch.py"), f"workers={workers}", *overrides]
        with log.open("w") as file:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)

    @property
    def text(self):
        return self._log.read_text()

    def workers(self):
        return children(self.process.pid)

    def wait_for(self, condition, seconds=90.0):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.text
            assert self.process.poll() is None, self.text
            time.sleep(0.05)

    def end(self, seconds=90.0):
        return self.process.wait(timeout=seconds)


def children(process):
    return sorted(int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split())


def is_gone(process):
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def kill(process, number=signal.SIGKILL):
    os.kill(process, number)
    return time.monotonic()
