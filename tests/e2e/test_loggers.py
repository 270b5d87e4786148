"""Runs that are killed and resumed are one run at Weights & Biases and at MLflow, each step once."""

import json
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from hookline.hooks.monitors.mlflow import _allowed

ROOT = Path(__file__).resolve().parents[2]
BLOCK = 32768


def killed_and_resumed(folder, *overrides, steps=400, kills_after=5):
    limits = ["trainer.epochs=null", f"trainer.steps={steps}"]
    own = ["recipe=bnn", *limits, "hooks.tensorboard=null", "hooks.early_stopping=null"]
    command = [sys.executable, str(ROOT / "train.py")]
    run = subprocess.Popen([*command, *own, f"run_dir={folder / 'run'}", *overrides], cwd=folder)
    metrics = folder / "run" / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text().count("validation") > kills_after):
        assert run.poll() is None
        time.sleep(0.02)
    run.send_signal(signal.SIGKILL)
    run.wait()
    subprocess.run([*command, f"resume={folder / 'run'}"], cwd=folder, check=True)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return {
        (f"{line['split']}/{name}", line["step"]): value
        for line in lines
        for name, value in line.items()
        if name not in ("step", "split") and value is not None
    }


def records(content):
    """Yield the records of a .wandb file: a log of LevelDB, whose first block begins with 7 bytes of W&B's own."""
    at, record = 7, b""
    while at + 7 <= len(content):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        record += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""


def test_a_killed_run_is_one_run_of_wandb(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is an extra, not among the test requirements")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    # W&B has written a part by then: of what it was given, its file lacks the end
    expected = killed_and_resumed(tmp_path, "+hooks=wandb", steps=3000, kills_after=80)
    subprocess.run([sys.executable, str(ROOT / "scripts/export.py"), "run=run"], cwd=tmp_path, check=True)
    sent, ids, artifacts = {}, set(), set()
    for path in sorted(tmp_path.glob("wandb/offline-run-*/*.wandb")):
        for data in records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            ids |= {record.run.run_id} if record.HasField("run") else set()
            artifacts |= {entry.path for entry in record.artifact.manifest.contents}
            items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            step = int(items.pop("_step", -1))
            for name, value in items.items():
                if not name.startswith(("_", "pictures/")):
                    assert (name, step) not in sent
                    sent[name, step] = json.loads(value)
    assert len(ids) == 1
    assert artifacts == {"model.keras"}
    assert sent == pytest.approx(expected)


def test_a_killed_run_is_one_run_of_mlflow(tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is an extra, not among the test requirements")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{free.getsockname()[1]}"
    places = ["--backend-store-uri", f"sqlite:///{tmp_path}/store.db"]
    places += ["--artifacts-destination", str(tmp_path / "files")]
    command = [sys.executable, "-m", "mlflow", "server", *places, "--port", uri.rpartition(":")[2], "--workers", "1"]
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        while True:
            assert server.poll() is None
            try:
                urllib.request.urlopen(f"{uri}/health", timeout=5)
                break
            except OSError:
                time.sleep(0.2)
        expected = killed_and_resumed(tmp_path, "+hooks=mlflow", f"hooks.mlflow.tracking_uri={uri}")
        client = mlflow.MlflowClient(uri)
        (experiment,) = [each for each in client.search_experiments() if each.name == "hookline"]
        subprocess.run([sys.executable, str(ROOT / "scripts/export.py"), "run=run"], cwd=tmp_path, check=True)
        (run,) = client.search_runs([experiment.experiment_id])
        assert [each.path for each in client.list_artifacts(run.info.run_id, "export")] == ["export/model.keras"]
        points = [each for name in run.data.metrics for each in client.get_metric_history(run.info.run_id, name)]
        assert len({(each.key, each.step) for each in points}) == len(points)
        sent = {(each.key, each.step): each.value for each in points}
        assert sent == pytest.approx({(_allowed(name), step): value for (name, step), value in expected.items()})
        assert run.info.status == "FINISHED"
        assert run.data.params["learning_rate"] == "0.003"
        assert "config.yaml" in {each.path for each in client.list_artifacts(run.info.run_id)}
    finally:
        server.terminate()
        server.wait()
