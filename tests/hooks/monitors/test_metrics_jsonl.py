import json
import math
import resource

import numpy as np
import pytest

from hookline.hooks.monitors.metrics_jsonl import MetricsJsonl
from hookline.trainer.run.control import Report


def read(run):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    text = (run.directory / "metrics.jsonl").read_text()
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def train(hook, run, step, loss=None):
    hook.on_chunk_end(run, Report(step, "train", {"loss/total": float(step) if loss is None else loss}))


def begun(run):
    hook = MetricsJsonl()
    hook.on_fit_begin(run)
    return hook


def test_each_report_is_one_line_with_step_split_and_values(make_run, tmp_path, monkeypatch):
    run = make_run()
    monkeypatch.chdir(tmp_path)
    run.directory = run.directory.relative_to(tmp_path)
    hook, third = begun(run), np.float32(1) / np.float32(3)
    monkeypatch.chdir("/")  # does not move the file
    hook.on_chunk_end(run, Report(10, "train", {"loss/total": third, "metric/accuracy": np.float32("nan")}))
    hook.on_chunk_end(run, None)
    hook.on_evaluation_end(run, Report(10, "validation", {"loss/total": math.inf}))
    hook.on_evaluation_end(run, Report(20, "test", {"loss/total": 1}))
    run.directory = tmp_path / run.directory
    assert read(run) == [
        {"step": 10, "split": "train", "loss/total": pytest.approx(1 / 3, rel=1e-6), "metric/accuracy": None},
        {"step": 10, "split": "validation", "loss/total": None},
        {"step": 20, "split": "test", "loss/total": 1.0},
    ]
    assert np.float32(read(run)[0]["loss/total"]) == third


def test_resume_drops_lines_of_repeated_steps(make_run):
    run = make_run()
    hook = begun(run)
    for step in (10, 20, 30):
        train(hook, run, step)
    hook.on_evaluation_end(run, Report(20, "test", {"loss/total": 9.0}))  # repeated on resume, even if no step is
    with (run.directory / "metrics.jsonl").open("a") as file:
        file.write('{"step": 20, "split": "tr')  # killed while it wrote

    resumed, run.step = MetricsJsonl(), 20
    run.journal.resumed_at = [20]
    resumed.on_fit_begin(run)
    train(resumed, run, 30, -1.0)
    assert [(line["step"], line["loss/total"]) for line in read(run)] == [(10, 10.0), (20, 20.0), (30, -1.0)]
    assert [path.name for path in run.directory.iterdir()] == ["metrics.jsonl"]


def test_lines_refused_by_a_full_disk_are_written_later_in_order(make_run):
    run = make_run()
    hook, path = begun(run), run.directory / "metrics.jsonl"
    train(hook, run, 1)
    size, before = path.stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, before[1]))  # room for the beginning of a line
    try:
        for step in (2, 3):
            with pytest.raises(OSError, match="File too large|No space"):
                train(hook, run, step)
            assert path.stat().st_size == size
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    train(hook, run, 4)
    assert [line["step"] for line in read(run)] == [1, 2, 3, 4]
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError, match=r"Is a directory: .*metrics\.jsonl"):
        begun(run)


def test_resume_on_a_full_disk_updates_the_file_once_there_is_room(make_run, monkeypatch):
    run = make_run(step=20)
    hook, path = begun(run), run.directory / "metrics.jsonl"
    for step in (20, 30):
        train(hook, run, step)
    before = path.read_text()

    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    resumed, run.journal.resumed_at = MetricsJsonl(), [20]
    with monkeypatch.context() as patch:
        patch.setattr("hookline.hooks.monitors.metrics_jsonl.write_whole", refuse)
        with pytest.raises(OSError, match="No space left"):
            resumed.on_fit_begin(run)
        with pytest.raises(OSError, match="No space left"):
            train(resumed, run, 30, -1.0)
    assert path.read_text() == before
    train(resumed, run, 40)
    assert [(line["step"], line["loss/total"]) for line in read(run)] == [(20, 20.0), (30, -1.0), (40, 40.0)]


def test_lines_lost_before_a_resume_are_reported(make_run):
    hook, run = MetricsJsonl(), make_run(step=20)
    hook.load_state_dict({"reports": 3})
    run.journal.resumed_at = [20]
    with pytest.warns(UserWarning, match="metrics.jsonl has 0 of the 3 reports"):
        hook.on_fit_begin(run)
    assert (read(run), hook.state_dict()) == ([], {"reports": 3})
