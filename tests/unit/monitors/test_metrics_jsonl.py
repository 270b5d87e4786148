from __future__ import annotations

import json
import math
import resource

import numpy as np
import pytest

from hooks.monitors.metrics_jsonl import MetricsJsonl
from trainer.errors import UserError, WriteError
from trainer.run.control import Report


def read(run):
    return [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]


def test_every_report_is_a_line_with_step_split_and_values(make_run):
    hook, run = MetricsJsonl(), make_run()
    hook.on_fit_begin(run)
    hook.on_chunk_end(run, Report(10, "train", {"loss/total": 0.5, "metric/accuracy": np.float32(0.25)}))
    hook.on_chunk_end(run, None)
    hook.on_evaluation_end(run, Report(10, "validation", {"loss/total": 0.75}))
    hook.on_evaluation_end(run, Report(20, "test", {"loss/total": 1}))
    assert read(run) == [
        {"step": 10, "split": "train", "loss/total": 0.5, "metric/accuracy": 0.25},
        {"step": 10, "split": "validation", "loss/total": 0.75},
        {"step": 20, "split": "test", "loss/total": 1.0},
    ]


def test_a_line_is_readable_before_the_run_ends(make_run):
    hook, run = MetricsJsonl(), make_run()
    hook.on_fit_begin(run)
    hook.on_chunk_end(run, Report(1, "train", {"loss/total": 1.0}))
    assert (run.directory / "metrics.jsonl").read_bytes().endswith(b"}\n")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_values_that_are_not_finite_become_null_and_the_line_stays_valid_json(make_run, value):
    hook, run = MetricsJsonl(), make_run()
    hook.on_fit_begin(run)
    hook.on_chunk_end(run, Report(1, "train", {"loss/total": value, "metric/accuracy": 0.1}))
    text = (run.directory / "metrics.jsonl").read_text()

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    assert json.loads(text, parse_constant=refuse) == {
        "step": 1,
        "split": "train",
        "loss/total": None,
        "metric/accuracy": 0.1,
    }


def test_float32_values_come_back_exactly(make_run):
    hook, run = MetricsJsonl(), make_run()
    hook.on_fit_begin(run)
    value = np.float32(1) / np.float32(3)
    hook.on_chunk_end(run, Report(1, "train", {"loss/total": value}))
    assert np.float32(read(run)[0]["loss/total"]) == value


def test_resume_drops_the_lines_of_steps_that_are_made_again(make_run):
    hook, run = MetricsJsonl(), make_run()
    hook.on_fit_begin(run)
    for step in (10, 20, 30):
        hook.on_chunk_end(run, Report(step, "train", {"loss/total": float(step)}))
    with (run.directory / "metrics.jsonl").open("a") as file:
        file.write('{"step": 20, "split": "tr')  # killed while it wrote

    resumed, run.step = MetricsJsonl(), 20
    resumed.on_resume(run)
    resumed.on_fit_begin(run)
    resumed.on_chunk_end(run, Report(30, "train", {"loss/total": -1.0}))
    assert [(line["step"], line["loss/total"]) for line in read(run)] == [(10, 10.0), (20, 20.0), (30, -1.0)]
    assert [path.name for path in run.directory.iterdir()] == ["metrics.jsonl"]


def test_lines_that_are_lost_before_a_resume_are_told(make_run):
    hook, run = MetricsJsonl(), make_run(step=20)
    hook.load_state_dict({"reports": 3})
    with pytest.warns(UserWarning, match=r"metrics\.jsonl has 0 of the 3 reports until step 20: the others are lost"):
        hook.on_resume(run)
    hook.on_fit_begin(run)
    assert read(run) == []
    assert hook.state_dict() == {"reports": 3}


def test_a_resume_on_a_full_disk_drops_and_adds_lines_once_there_is_room(make_run, monkeypatch):
    run = make_run(step=20)
    path = run.directory / "metrics.jsonl"
    lines = ['{"step": 20, "split": "train"}\n', '{"step": 30, "split": "train"}\n']
    path.write_text("".join(lines))
    hook = MetricsJsonl()
    hook.load_state_dict({"reports": 1})
    hook.on_resume(run)

    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("hooks.monitors.metrics_jsonl.keep_lines_until", refuse)
        with pytest.raises(WriteError, match=r"metrics\.jsonl: No space left on device"):
            hook.on_fit_begin(run)
        with pytest.raises(WriteError, match="its lines wait for that"):
            hook.on_chunk_end(run, Report(30, "train", {"loss/total": 3.0}))
        assert path.read_text() == "".join(lines)
    hook.on_chunk_end(run, Report(40, "train", {"loss/total": 4.0}))
    assert [line["step"] for line in read(run)] == [20, 30, 40]
    run.step = 30  # back to a checkpoint
    hook.load_state_dict({"reports": 2})
    hook.on_resume(run)
    hook.on_fit_begin(run)
    assert [line["step"] for line in read(run)] == [20, 30]


def test_an_unwritable_place_is_one_clear_line(make_run):
    run = make_run()
    (run.directory / "metrics.jsonl").mkdir()
    with pytest.raises(UserError, match=r"Cannot write .*metrics\.jsonl: Is a directory\. Expected a directory"):
        MetricsJsonl().on_fit_begin(run)


def test_a_change_of_the_working_directory_does_not_move_the_file(make_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hook, run = MetricsJsonl(), make_run()
    run.directory = run.directory.relative_to(tmp_path)
    hook.on_fit_begin(run)
    monkeypatch.chdir("/")
    hook.on_chunk_end(run, Report(1, "train", {"loss/total": 1.0}))
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 1


def test_lines_that_a_full_disk_did_not_take_come_whole_and_in_order_once_it_does(make_run):
    run, hook = make_run(), MetricsJsonl()
    hook.on_fit_begin(run)
    hook.on_chunk_end(run, Report(1, "train", {"loss/total": 1.0}))
    size = (run.directory / "metrics.jsonl").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, before[1]))  # room for the beginning of a line
    try:
        for step in (2, 3):
            with pytest.raises(WriteError, match="metrics.jsonl: .* its lines wait for that"):
                hook.on_chunk_end(run, Report(step, "train", {"loss/total": float(step)}))
            assert (run.directory / "metrics.jsonl").stat().st_size == size
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    hook.on_chunk_end(run, Report(4, "train", {"loss/total": 4.0}))
    assert [line["step"] for line in read(run)] == [1, 2, 3, 4]
