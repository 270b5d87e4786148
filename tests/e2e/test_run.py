"""A run as a user starts it: its end, an interruption, a divergence, a sweep."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hookline.train import main
from hookline.trainer.run.checkpoint import CheckpointStore

ROOT = Path(__file__).parents[2]
LISTENING = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell starts with it ignored
from hookline import train
sys.exit(train.main(sys.argv[1:]))
"""
SMALL = ("trainer.epochs=3", "trainer.compile=off", "model.units=[32,32]")


def wait_for_content(path, process):
    deadline = time.monotonic() + 120
    while not path.exists() or not path.stat().st_size:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.2)


def summary_of(directory):
    return json.loads((directory / "summary.json").read_text())


@pytest.mark.filterwarnings("ignore:The hook .bnn_rounding.. 295 steps:UserWarning")  # few on purpose
def test_binary_network_learns_the_digits_in_a_few_epochs(tmp_path, capsys):
    code = main(["recipe=bnn", "trainer.epochs=15", "trainer.compile=off", f"run_dir={tmp_path / 'run'}"])
    summary = summary_of(tmp_path / "run")
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


def test_diverging_run_stops_before_a_variable_is_spoilt(tmp_path, capfd):
    code = main(["recipe=baseline", *SMALL, "optimizer.learning_rate=1e30", f"run_dir={tmp_path / 'run'}"])
    assert code == 1
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert line.startswith("Error: NaN or infinity at step ")
    assert "This update was withheld" in line
    summary = summary_of(tmp_path / "run")
    assert summary["status"] == "failed"
    assert summary["test"] == {}


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.full
def test_interruption_leaves_a_run_directory_that_says_so(tmp_path):
    directory = tmp_path / "run"
    command = [sys.executable, "-c", LISTENING, "recipe=bnn", "trainer.epochs=100000", "trainer.compile=off"]
    command += ["hooks.early_stopping=null", f"run_dir={directory}"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            wait_for_content(directory / "metrics.jsonl", process)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert re.fullmatch(rf"Ended by SIGINT after step \d+ of \d+\. Resume with: .* resume={directory}\n", errors)
    assert summary_of(directory)["status"] == "interrupted"
    for line in (directory / "metrics.jsonl").read_text().splitlines():
        json.loads(line)
