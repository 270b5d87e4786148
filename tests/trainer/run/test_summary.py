"""summary.json: stable keys, valid JSON, never half written."""

from __future__ import annotations

import json

from hookline.trainer.run.control import Best, Journal
from hookline.trainer.run.summary import build_summary, write_summary
from hookline.trainer.run.times import HOOKS, Times
from tests.support.runs import toy_run
from tests.trainer.run.test_run import Diary

KEYS = (
    "recipe status stop_reason steps epochs seconds images_per_second final best test hooks params bytes networks "
    "run_dir input digest resumed_at rolled_back started_from warnings time_to_first_step peak_memory_bytes "
    "precision replicas"
)


def test_keys_are_the_documented_ones_and_nan_is_null(tmp_path) -> None:
    run = toy_run(tmp_path, [Diary()])
    run.best = Best("metric/accuracy", "max", 0.97, 6, values={"metric/accuracy": 0.97})
    run.step, run.journal = 6, Journal(resumed_at=[2], final={"loss/total": float("nan")})
    run.times = Times(train_seconds=5.0, timed_steps=50, first_step_seconds=1.0, before=60.0)
    run.times.spent[HOOKS + "diary"] = 0.25
    run.times.start.parts["step"] = 3.5
    test = {"weights": "best", "metric/accuracy": 0.96}
    summary = build_summary(run, {"status": "completed", "stop_reason": None, "test": test, "digest": "0a"})
    assert set(summary) == set(KEYS.split())
    plain = {"epochs": 1.5, "images_per_second": 160.0, "steps": 6, "digest": "0a", "test": test, "resumed_at": [2]}
    assert {key: summary[key] for key in plain} == plain
    assert summary["seconds"] >= 60.0
    best = {"monitor": "metric/accuracy", "mode": "max", "value": 0.97, "step": 6, "values": run.best.values}
    assert summary["best"] == best
    assert summary["time_to_first_step"] == {"seconds": 3.5, "step": 3.5}
    assert (summary["hooks"], summary["replicas"]["count"]) == ({"diary": {"host_seconds": 0.25}}, 1)
    network = summary["networks"]["model"]
    assert (network["params"], network["bytes"]) == (summary["params"], summary["bytes"])
    assert {"layer", "macs", "output"} <= network["layers"][0].keys()
    write_summary(tmp_path, summary)
    read = json.loads((tmp_path / "summary.json").read_text(), parse_constant=lambda name: 1 / 0)
    assert (read["final"], read["test"]) == ({"loss/total": None}, test)
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
