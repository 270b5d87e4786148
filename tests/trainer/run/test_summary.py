"""summary.json: stable keys, valid JSON, never half written."""

from __future__ import annotations

import json
from pathlib import Path

from hookline.trainer.run.control import Best, Run
from hookline.trainer.run.network_summary import NetworkSummary, Row, Size
from hookline.trainer.run.summary import build_summary, write_summary

ROW = Row("dense", "Dense", (6,), 60, 1.0, 32, 7.5, 0.0, 60, {"32-bit x 1-bit": 60})
KEYS = (
    "recipe status stop_reason steps epochs seconds images_per_second final best test hooks params bytes networks "
    "run_dir input digest resumed_at rolled_back warnings time_to_first_step peak_memory_bytes precision replicas"
)


def test_keys_are_the_documented_ones_and_nan_is_null(tmp_path) -> None:
    best = Best("metric/accuracy", "max", 0.97, 40, values={"metric/accuracy": 0.97})
    run = Run(Path("runs/x"), "bnn", {}, {}, 10, 100, 12.5, "", best, step=51, train_seconds=5.0, timed_steps=50)
    as_given = {
        "precision": {"compute": "float16", "loss_scale": 32768.0, "overflow_steps": 1},
        "replicas": {"strategy": "none", "count": 1, "examples": 16},
        "hooks": {"bnn_rounding": {"bits": 1}},
        "test": {"weights": "best", "metric/accuracy": 0.96},
        "digest": "0a",
    }
    networks = {"generator": NetworkSummary("BWN", (ROW,), Size(60, 60, 240, 30))}
    networks["classifier"] = NetworkSummary("full precision", (), Size(40, 30, 160, 20))
    others = {"memory": {"host": 5000, "device": None}, "start": {"seconds": 3.5}, "verdict": {"placement": "host"}}
    summary = build_summary(
        run,
        status="completed",
        reason=None,
        seconds=6.0,
        size=Size(100, 90, 400, 50),
        networks=networks,
        final={"loss/total": float("nan")},
        **as_given,
        **others,
    )
    assert set(summary) == set(KEYS.split())
    assert summary.items() >= {"epochs": 4.08, "images_per_second": 100.0, "steps": 51}.items()
    assert {key: summary[key] for key in as_given} == as_given
    assert [summary[key] for key in ("peak_memory_bytes", "time_to_first_step", "input")] == list(others.values())
    assert summary["bytes"] == {"float32": 400, "deployed": 50}
    generator = summary["networks"]["generator"]
    assert [row["layer"] for row in generator.pop("layers")] == ["dense"]
    assert generator == {
        "params": {"total": 60, "trainable": 60},
        "bytes": {"float32": 240, "deployed": 30},
        "kind": "BWN",
        "macs": {"total": 60, "by_precision": {"32-bit x 1-bit": 60}, "uncounted": []},
    }
    values = {"metric/accuracy": 0.97}
    assert summary["best"] == {"monitor": "metric/accuracy", "value": 0.97, "step": 40, "values": values}
    write_summary(tmp_path, summary)
    read = json.loads((tmp_path / "summary.json").read_text(), parse_constant=lambda name: 1 / 0)
    assert (read["final"], read["test"]) == ({"loss/total": None}, as_given["test"])
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
