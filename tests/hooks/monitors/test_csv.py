import csv

from hookline.hooks.monitors.csv import CSV
from hookline.trainer.run.control import Report


def rows(run):
    return list(csv.DictReader((run.directory / "metrics.csv").read_text().splitlines()))


def test_late_metrics_get_a_column_and_repeated_steps_one_row(make_run):
    run, hook = make_run(), CSV()
    hook.on_fit_begin(run)
    hook.on_chunk_end(run, None)
    for step in (10, 20, 30):
        hook.on_chunk_end(run, Report(step, "train", {"loss/total": step / 3}))
    hook.on_evaluation_end(run, Report(20, "test", {"loss/total": 9.0}))  # repeated on resume, even if no step is
    assert hook.state_dict() == {}  # as at a checkpoint: rows are on disk
    assert [float(row["loss/total"]) for row in rows(run)] == [10 / 3, 20 / 3, 10.0, 9.0]

    run.step, run.journal.resumed_at, resumed = 20, [20], CSV()
    resumed.on_fit_begin(run)
    resumed.on_chunk_end(run, Report(30, "train", {"loss/total": -1.0}))
    resumed.on_evaluation_end(run, Report(30, "validation", {"loss/total": 2.0, "metric/accuracy": 0.5}))
    resumed.on_fit_end(run, {})
    assert [(row["step"], row["split"], row["loss/total"], row["metric/accuracy"]) for row in rows(run)[1:]] == [
        ("20", "train", str(20 / 3), ""),
        ("30", "train", "-1.0", ""),
        ("30", "validation", "2.0", "0.5"),
    ]
    another = CSV()
    run.journal.resumed_at = []
    another.on_fit_begin(run)
    another.on_fit_end(run, {})
    assert rows(run) == []
