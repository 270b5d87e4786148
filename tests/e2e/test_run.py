"""A run as a user starts it: run to its end, interrupted, and with bad input."""

import json
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from hookline.train import main
from hookline.trainer.errors import UserError
from hookline.trainer.run.checkpoint import CheckpointStore
from hookline.trainer.run.results import read_summary
from tests.support.refusals import assert_one_line
from tests.support.workers import ROOT, wait_until

LISTENING = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell starts with it ignored
from hookline import train
sys.exit(train.main(sys.argv[1:]))
"""


@pytest.mark.filterwarnings("ignore:The hook .bnn_rounding.. 295 steps:UserWarning")  # few on purpose
def test_binary_network_learns_the_digits_in_a_few_epochs(tmp_path, capsys):
    given = ("trainer.epochs=15", "trainer.evaluate_every_epochs=3", "trainer.compile=off", "hooks.pictures=null")
    code = main(["recipe=bnn", *given, f"run_dir={tmp_path / 'run'}"])
    summary = read_summary(tmp_path / "run")
    assert code == 0
    assert summary["status"] == "completed"
    assert summary["test"]["metric/accuracy"] >= 0.93
    assert summary["hooks"]["bnn_rounding"]["kind"] == "BNN"
    assert summary["bytes"]["deployed"] < 0.3 * summary["bytes"]["float32"]
    assert f"{summary['test']['metric/accuracy']:.3f}" in capsys.readouterr().out
    tensors = CheckpointStore(tmp_path / "run" / "checkpoints").load("last").tensors
    kernel = tensors["network/model/dense_2/kernel"]  # latent, not its signs
    assert np.abs(kernel).max() <= 1.0
    assert len(np.unique(kernel)) > 100
    assert tensors["optimizer/model/iteration"] == summary["steps"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.full
def test_interruption_is_recorded_in_the_run_directory(tmp_path):
    directory = tmp_path / "run"
    command = [sys.executable, "-c", LISTENING, "recipe=bnn", "trainer.epochs=100000", "trainer.compile=off"]
    command += ["hooks.early_stopping=null", f"run_dir={directory}"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            metrics = directory / "metrics.jsonl"
            wait_until(lambda: process.poll() is not None or (metrics.exists() and metrics.stat().st_size), 120)
            assert process.poll() is None, process.communicate()
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert re.fullmatch(rf"Ended by SIGINT after step \d+ of \d+\. Resume with: .* resume={directory}\n", errors)
    assert read_summary(directory)["status"] == "interrupted"
    for line in (directory / "metrics.jsonl").read_text().splitlines():
        json.loads(line)


@pytest.mark.full
def test_mistake_found_while_building_is_reported_in_one_line(tmp_path, monkeypatch, capfd):
    def unreadable(splits):
        raise UserError("Row 17 cannot be read. Fix it.")

    monkeypatch.chdir(tmp_path)
    given = ["recipe=bnn", "trainer.epochs=1", "trainer.compile=off"]
    assert_one_line(main, [*given, "trainer.monitor=metric/acuracy"], "'metric/accuracy'", capfd)
    monkeypatch.setattr("hookline.trainer.run.build_run.data_fingerprint", unreadable)
    assert_one_line(main, given, "Row 17 cannot be read. Fix it.", capfd)
    assert list(tmp_path.iterdir()) == []
