from __future__ import annotations

from hookline.trainer.run.results import metric_rows


def test_rows_hold_metrics_and_the_total_loss_of_each_split_and_objective():
    summary = {
        "final": {"loss/total": 0.0512, "loss/center": 0.01, "metric/accuracy": 0.9981, "opt/learning_rate": 0.001},
        "best": {"step": 1080, "values": {"loss/total": 0.1334, "metric/accuracy": 0.9703}},
        "test": {"weights": "best", "loss/total": 0.1111, "metric/accuracy": 0.9722},
    }
    assert metric_rows(summary) == [("accuracy", 0.9981, 0.9703, 0.9722), ("loss", 0.0512, 0.1334, 0.1111)]
    failed = summary | {"best": {"value": None, "values": {}}, "test": {}}
    assert metric_rows(failed) == [("accuracy", 0.9981, None, None), ("loss", 0.0512, None, None)]
    assert metric_rows({"status": "failed"}) == []
    final = {"g/loss/total": 1.0, "g/loss/gan": 1.0, "d/loss/total": 2.0, "g/opt/rate": 3.0}
    rows = metric_rows({"final": final, "test": {"d/loss/total": 4.0, "g/metric/modes": 8.0}})
    assert rows == [("g/modes", None, None, 8.0), ("g/loss", 1.0, None, None), ("d/loss", 2.0, None, 4.0)]
