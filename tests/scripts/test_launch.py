"""The launcher, with small programs instead of training."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hookline.scripts import launch as module
from hookline.scripts.launch import Options, environments, launch, main, parse
from tests.support.refusals import assert_one_line
from tests.support.workers import is_gone, wait_until

ME = "import json, os; me = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"


@pytest.fixture
def program(tmp_path_factory, monkeypatch) -> Callable[[str], Path]:
    """Return a function that replaces training by a program, in which `me` is the index of the worker."""

    def write(text: str) -> Path:
        path = tmp_path_factory.mktemp("program") / "program.py"
        path.write_text(ME + text)
        monkeypatch.setattr(module, "TRAIN", path)
        return path

    return write


@pytest.fixture(autouse=True)
def short_waits(monkeypatch) -> None:
    monkeypatch.setattr(module, "LAST_SECONDS", 0.3)


def test_workers_get_the_strategy_and_a_share_of_the_cores(monkeypatch, capsys):
    monkeypatch.setattr(module, "usable_cores", lambda: 8)
    own = ["recipe=bnn", "trainer.strategy=multi_worker", "trainer.threads=2"]
    assert parse(["workers=3", "recipe=bnn"]) == Options(3, 20.0, own)
    assert parse(["grace=0.5", *own, "workers=20"]) == Options(20, 0.5, own)
    assert parse(["workers=20", "recipe=bnn"]).overrides[-1] == "trainer.threads=1"
    for arguments, word in (
        (["recipe=bnn"], "workers="),
        (["workers=0", "recipe=bnn"], "workers: 0"),
        (["workers=2", "grace=-1", "recipe=bnn"], "grace: -1"),
        (["workers=2", "-m", "recipe=bnn"], "'-m'"),
        (["workers=2", "recipe=bnn", "trainer.strategy=mirrored"], "trainer.strategy=mirrored"),
    ):
        assert_one_line(main, arguments, word, capsys)


def test_each_worker_gets_all_addresses_and_its_share_of_the_gpus():
    found = environments(2, {"CUDA_VISIBLE_DEVICES": "4,5,6,7", "A": "b"})
    tasks = [json.loads(each["TF_CONFIG"]) for each in found]
    assert tasks[0]["cluster"] == tasks[1]["cluster"]
    assert len(set(tasks[0]["cluster"]["worker"])) == 2
    assert [each["task"]["index"] for each in tasks] == [0, 1]
    assert [(each["CUDA_VISIBLE_DEVICES"], each["A"]) for each in found] == [("4,5", "b"), ("6,7", "b")]
    assert "CUDA_VISIBLE_DEVICES" not in environments(2, {})[0]


def test_other_workers_print_with_prefix_and_worst_exit_code_is_returned(program, capfd):
    # One write per line: an unbuffered print writes a line in parts, which could interleave.
    text = "import sys; sys.stdout.write(f'out {me} {sys.argv[1]}\\n'); sys.stderr.write(f'err {me}\\n')"
    program(text)
    assert launch(Options(2, 5.0, ["seed=1"])) == 0
    lines = capfd.readouterr()
    assert sorted(lines.out.splitlines()) == ["[worker 1] err 1", "[worker 1] out 1 seed=1", "out 0 seed=1"]
    assert lines.err.splitlines() == ["err 0"]
    program("raise SystemExit([0, 2, 1][me])")
    assert launch(Options(3, 5.0, [])) == 2
    text = "import time; time.sleep(0.6 * (me == 0)); raise SystemExit(1)"
    program(text)
    assert launch(Options(2, 10.0, [])) == 1  # a worker that ends within the grace period is not killed


def test_after_failure_others_get_grace_period_then_sigterm_then_sigkill(program, tmp_path):
    text = f"""
import signal, sys, time
if me == 1: sys.exit(3)
def note(number, frame):
    open({str(tmp_path)!r} + f'/{{me}}', 'w').close()
    if me == 2: sys.exit(0)
signal.signal(signal.SIGTERM, note)
time.sleep(60) if me == 2 else [time.sleep(1) for _ in range(60)]
"""
    begun = time.monotonic()
    program(text)
    assert launch(Options(3, 1.0, [])) == 137
    assert 1.0 < time.monotonic() - begun < 15.0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["0", "2"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_worker_outlives_a_killed_or_terminated_launcher(program, tmp_path, number):
    """Start a launcher in a separate process, and end it once its two workers have written their process ids."""
    killed = number == signal.SIGKILL
    handler = "signal.SIG_IGN" if killed else "lambda number, frame: sys.exit(128 + number)"
    text = f"""
import signal, sys, time
signal.signal({int(signal.SIGTERM if killed else number)}, {handler})
open({str(tmp_path)!r} + f'/{{me}}.part', 'w').write(str(os.getpid()))
os.rename({str(tmp_path)!r} + f'/{{me}}.part', {str(tmp_path)!r} + f'/{{me}}')
time.sleep(60)
"""
    code = "import sys; from pathlib import Path; from hookline.scripts import launch; "
    code += f"launch.TRAIN = Path({str(program(text))!r}); sys.exit(launch.launch(launch.Options(2, 5.0, [])))"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=Path(module.__file__).parents[1])
    wait_until(lambda: {each.name for each in tmp_path.iterdir()} == {"0", "1"}, 20.0)
    os.kill(process.pid, number)
    assert process.wait(timeout=20) == (-number if killed else 128 + number)
    workers = [int(Path(each).read_text()) for each in tmp_path.iterdir()]
    wait_until(lambda: all(map(is_gone, workers)), 5.0)
