"""summary.json: stable keys, valid JSON, never half written."""

from __future__ import annotations

import json
from pathlib import Path

from trainer.run.control import Best, Run
from trainer.run.network_summary import NetworkSummary, Row
from trainer.run.size import Size
from trainer.run.summary import build_summary, write_summary

ROW = Row("dense", "Dense", (6,), 60, 1.0, 32, 7.5, 0.0, 60, {"32-bit x 1-bit": 60})


def summary() -> dict:
    best = Best("metric/accuracy", "max", 0.97, 40, values={"metric/accuracy": 0.97})
    run = Run(Path("runs/x"), "bnn", {}, {}, 10, 100, 12.5, "", best, step=51, train_seconds=5.0, timed_steps=50)
    return build_summary(
        run,
        status="completed",
        reason=None,
        seconds=6.0,
        size=Size(100, 90, 400, 50),
        networks={
            "generator": NetworkSummary("BWN", (ROW,), Size(60, 60, 240, 30)),
            "classifier": NetworkSummary("full precision", (), Size(40, 30, 160, 20)),
        },
        final={"loss/total": float("nan")},
        test={"weights": "best", "metric/accuracy": 0.96},
        hooks={"bnn_rounding": {"bits": 1}},
        digest="0a",
        verdict={"placement": "host", "waiting_share": 0.4, "parts": None, "advice": None},
        precision={"compute": "float16", "loss_scale": 32768.0, "overflow_steps": 1},
        replicas={"strategy": "none", "count": 1, "examples": 16},
        memory={"host": 5000, "device": None},
        start={"seconds": 3.5, "import": 2.5, "step": 1.0},
    )


def test_keys_are_the_documented_ones() -> None:
    assert set(summary()) == {
        *("recipe", "status", "stop_reason", "steps", "epochs", "seconds", "images_per_second", "final", "best"),
        *("test", "hooks", "params", "bytes", "networks", "run_dir", "input"),
        *("digest", "resumed_at", "rolled_back", "warnings"),
        *("time_to_first_step", "peak_memory_bytes", "precision", "replicas"),
    }
    assert summary()["time_to_first_step"] == {"seconds": 3.5, "import": 2.5, "step": 1.0}
    assert summary()["peak_memory_bytes"] == {"host": 5000, "device": None}
    assert summary()["precision"] == {"compute": "float16", "loss_scale": 32768.0, "overflow_steps": 1}
    assert summary()["input"] == {"placement": "host", "waiting_share": 0.4, "parts": None, "advice": None}
    assert summary()["epochs"] == 4.08
    assert summary()["images_per_second"] == 100.0
    assert summary()["bytes"] == {"float32": 400, "deployed": 50}
    generator, classifier = (summary()["networks"][name] for name in ("generator", "classifier"))
    assert generator["params"] == {"total": 60, "trainable": 60}
    assert generator["bytes"] == {"float32": 240, "deployed": 30}
    assert generator["kind"] == "BWN"
    assert generator["macs"] == {"total": 60, "by_precision": {"32-bit x 1-bit": 60}, "uncounted": []}
    assert [row["layer"] for row in generator["layers"]] == ["dense"]
    assert set(classifier) == {"params", "bytes", "kind", "macs", "layers"}
    assert summary()["best"] == {
        "monitor": "metric/accuracy",
        "value": 0.97,
        "step": 40,
        "values": {"metric/accuracy": 0.97},
    }


def test_file_is_valid_json_and_nan_becomes_null(tmp_path) -> None:
    write_summary(tmp_path, summary())
    read = json.loads((tmp_path / "summary.json").read_text(), parse_constant=lambda name: 1 / 0)
    assert read["final"] == {"loss/total": None}
    assert read["test"]["metric/accuracy"] == 0.96
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
