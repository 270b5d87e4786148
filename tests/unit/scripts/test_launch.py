"""The launcher, with small programs in the place of training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts import launch as module
from scripts.launch import Options, environments, exit_code, launch, main, parse
from tests.support.workers import is_gone
from trainer.errors import UserError

ME = "import json, os; me = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"


def program(text: str) -> list[str]:
    """Return the command of a program that knows which worker it is as `me`."""
    return [sys.executable, "-c", ME + text]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch) -> None:
    monkeypatch.setattr(module, "LAST_SECONDS", 0.3)


def test_workers_get_the_strategy_and_a_part_of_the_cores(monkeypatch) -> None:
    monkeypatch.setattr(module, "cores", lambda: 8)
    assert parse(["workers=3", "recipe=bnn"]) == Options(
        3, 20.0, ["recipe=bnn", "trainer.strategy=multi_worker", "trainer.threads=2"]
    )
    given = ["recipe=bnn", "trainer.strategy=multi_worker", "trainer.threads=5"]
    assert parse(["grace=0.5", *given, "workers=20"]) == Options(20, 0.5, given)
    assert parse(["workers=20", "recipe=bnn"]).overrides[-1] == "trainer.threads=1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["recipe=bnn"], "workers= received. Expected a whole number"),
        (["workers=0", "recipe=bnn"], "workers=0 received"),
        (["workers=two", "recipe=bnn"], "workers=two received"),
        (["workers=2", "grace=soon", "recipe=bnn"], "grace=soon received"),
        (["workers=2", "grace=-1", "recipe=bnn"], "grace=-1 received"),
        (["workers=2"], "No recipe was given"),
        (["workers=2", "-m", "recipe=bnn"], "'-m' received. Expected key=value"),
        (["workers=2", "--multirun", "recipe=bnn"], "'--multirun' received"),
        (["workers=2", "recipe=bnn", "trainer.strategy=mirrored"], "'trainer.strategy=mirrored' received"),
    ],
)
def test_a_mistake_is_one_line_and_starts_nothing(arguments, message: str, capsys) -> None:
    with pytest.raises(UserError) as error:
        parse(arguments)
    assert message in str(error.value)
    assert main(arguments) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_each_worker_knows_all_addresses_and_gets_its_part_of_the_gpus() -> None:
    found = environments(2, {"CUDA_VISIBLE_DEVICES": "4,5,6,7", "A": "b"})
    tasks = [json.loads(each["TF_CONFIG"]) for each in found]
    assert tasks[0]["cluster"] == tasks[1]["cluster"]
    assert len(set(tasks[0]["cluster"]["worker"])) == 2
    assert [each["task"]["index"] for each in tasks] == [0, 1]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in found] == ["4,5", "6,7"]
    assert [each["A"] for each in found] == ["b", "b"]
    assert "CUDA_VISIBLE_DEVICES" not in environments(2, {})[0]


def test_the_output_of_the_others_has_a_prefix(capfd) -> None:
    text = "import sys; print('out', me, sys.argv[1], flush=True); print('err', me, file=sys.stderr)"
    assert launch(Options(3, 5.0, ["seed=1"]), program(text)) == 0
    lines = capfd.readouterr()
    assert sorted(lines.out.splitlines()) == [
        "[worker 1] err 1",
        "[worker 1] out 1 seed=1",
        "[worker 2] err 2",
        "[worker 2] out 2 seed=1",
        "out 0 seed=1",
    ]
    assert lines.err.splitlines() == ["err 0"]


def test_the_exit_code_is_the_worst() -> None:
    assert launch(Options(3, 5.0, []), program("raise SystemExit([0, 2, 1][me])")) == 2
    assert exit_code(-9) == 137
    assert exit_code(3) == 3


def test_when_one_fails_the_others_get_time_then_sigterm_then_sigkill(tmp_path: Path) -> None:
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
    assert launch(Options(3, 1.0, []), program(text)) == 137
    assert 1.0 < time.monotonic() - begun < 15.0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["0", "2"]


def test_those_who_end_by_themselves_in_time_are_left_alone() -> None:
    text = "import time; time.sleep(0.6 * (me == 0)); raise SystemExit(1)"
    assert launch(Options(2, 10.0, []), program(text)) == 1


def launcher(text: str, pids: Path) -> subprocess.Popen[bytes]:
    """Start a launcher in a process of its own, and return when its two workers have written who they are."""
    write = f"open({str(pids)!r} + f'/{{me}}.part', 'w').write(str(os.getpid()))\n"
    done = f"os.rename({str(pids)!r} + f'/{{me}}.part', {str(pids)!r} + f'/{{me}}')\n"
    command = program(write + text.replace("READY", done))
    code = f"import sys; from scripts.launch import Options, launch; sys.exit(launch(Options(2, 5.0, []), {command!r}))"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=module.ROOT)
    deadline = time.monotonic() + 20.0
    while {each.name for each in pids.iterdir()} != {"0", "1"}:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process


def all_gone(pids: Path) -> bool:
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        if all(is_gone(int(each.read_text())) for each in pids.iterdir()):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends processes with the one that started them")
def test_no_worker_outlives_a_launcher_that_is_killed(tmp_path: Path) -> None:
    process = launcher(
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nREADY\nimport time; time.sleep(60)", tmp_path
    )
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert all_gone(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_goes_to_every_worker_once(tmp_path: Path, number: int) -> None:
    text = f"""
import signal, sys, time
signal.signal({int(number)}, lambda number, frame: sys.exit(128 + number))
READY
time.sleep(60)
"""
    process = launcher(text, tmp_path)
    os.kill(process.pid, number)
    assert process.wait(timeout=20) == 128 + number
    assert all_gone(tmp_path)
