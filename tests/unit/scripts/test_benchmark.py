"""The command that times contenders: what it refuses, how it counts, and one real turn."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from scripts import benchmark
from scripts.benchmark import Options, Result, as_rows, compare, main, parse, print_rows
from scripts.benchmarks import array_input, worker
from scripts.benchmarks.contender import Contender, Settings, find_contenders
from trainer.errors import UserError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Unknown comparison ''. Expected one of: "),
        (["what=inptu"], "Did you mean 'input'"),
        (["what=input", "repeat=3"], "Unknown option 'repeat'. Did you mean 'repeats'"),
        (["what=input", "repeats=0"], "Invalid repeats: 0. Expected a whole number of at least 1."),
        (["what=input", "batch_size=1.5"], "Invalid batch_size: 1.5."),
        (["what=input", "threads=no"], "Invalid threads: False."),
        (["what=input", "seconds=-1"], "Invalid seconds: -1. Expected a number above 0."),
        (["what=input", "seconds=x"], "Invalid seconds: 'x'."),
        (["what=input", "out=missing/x.json"], "out=missing/x.json lies in no directory that exists."),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments, message, capsys) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_options_are_taken() -> None:
    options = parse(["what=input", "data=a=b.npz", "repeats=3", "seconds=0.5", "threads=1"])
    assert options == Options("input", "a=b.npz", 3, 0.5, 128, 1)
    assert parse(["what=input"]).threads is None


def test_every_case_has_one_baseline_and_every_contender_a_key_of_its_own() -> None:
    contenders = find_contenders()
    assert len({each.key for each in contenders}) == len(contenders)
    for what, case in {(each.what, each.case) for each in contenders}:
        own = [each for each in contenders if (each.what, each.case) == (what, case)]
        assert sum(each.baseline for each in own) == 1, (what, case)


def result(name: str, speeds: list[float], *, case: str = "a", baseline: bool = False) -> Result:
    return Result(Contender("input", case, name, lambda settings: lambda count: None, baseline), speeds)


ROWS = [
    result("ours", [200.0, 330.0, 100.0]),
    result("theirs", [100.0, 110.0, 200.0], baseline=True),
    result("only", [5.0, 7.0, 9.0], case="b", baseline=True),
]


def test_figures_are_medians_and_ratios_are_of_the_same_repeat() -> None:
    ours, theirs, only = as_rows(ROWS)
    assert (ours["median"], ours["lowest"], ours["highest"], ours["ratio"]) == (200.0, 100.0, 330.0, 2.0)
    assert (theirs["median"], theirs["ratio"]) == (110.0, 1.0)
    assert (only["case"], only["unit"], only["ratio"]) == ("b", "batches/s", 1.0)


def test_the_table_says_what_was_compared_with_what(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    print_rows(as_rows(ROWS), Options("input", "mnist.npz", 3), {"python": "3.11", "tensorflow": "2.21"})
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["python 3.11, tensorflow 2.21", "input, mnist.npz, 3 turns of 1 s each, batches of 128"]
    assert " ".join(lines[3].split()) == "a median batches/s lowest to highest times 'theirs'"
    assert " ".join(lines[4].split()) == "ours 200.0 100.0 to 330.0 2.00"


def test_the_worker_finds_how_much_work_fills_a_turn(monkeypatch) -> None:
    clock, done = [0.0], []

    def work(count: int) -> None:
        done.append(count)
        clock[0] += 5.0 if len(done) == 1 else 0.001 * count  # the first sets up

    monkeypatch.setattr(worker.time, "perf_counter", lambda: clock[0])
    assert worker._calibrate(work, 2.0) == 2000
    assert done[:2] == [1, 1]
    assert max(done) < 1000


def test_what_was_prepared_ahead_is_used_up_before_a_turn_counts(monkeypatch) -> None:
    clock, ahead = [0.0], [500]

    def work(count: int) -> None:
        free = min(count, ahead[0])
        ahead[0] -= free
        clock[0] += 0.0001 * free + 0.01 * (count - free)

    monkeypatch.setattr(worker.time, "perf_counter", lambda: clock[0])
    worker._warm_up(work, 100, 0.3)
    assert ahead[0] == 0
    assert worker._seconds(work, 100) == pytest.approx(1.0)
    assert clock[0] < 1.4


@pytest.mark.parametrize("augmented", [False, True])
@pytest.mark.parametrize("by_image", [False, True])
def test_contenders_make_the_same_kind_of_batches(augmented, by_image, monkeypatch) -> None:
    seen = []

    def keep(batch):
        seen.append(tf.nest.flatten(batch(tf.constant(0, tf.int64))))
        return lambda count: None

    monkeypatch.setattr(array_input, "_loop", keep)
    settings = Settings(batch_size=32)
    array_input.ours(settings, placement="device", augmented=augmented)
    array_input.ours(settings, placement="host", augmented=augmented)
    array_input.tf_data(settings, augmented=augmented, by_image=by_image)
    for tensors in seen:
        (images,) = [each.numpy() for each in tensors if each.dtype == tf.float32]
        assert images.shape == (32, 8, 8, 1)
        assert -1.0 <= images.min() < -0.9 < 0.9 < images.max() <= 1.0
        assert any(each.dtype == tf.int64 and each.shape == (32,) for each in tensors)
    np.testing.assert_array_equal(*(tensors[1].numpy() for tensors in seen[:2]))  # our placements give the same bits


def test_the_work_asks_for_batch_after_batch_and_uses_every_tensor() -> None:
    asked = tf.Variable(0, dtype=tf.int64)

    def batch(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return step + tf.zeros([2], tf.int64), asked.assign_add(step) * tf.ones([1, 2], tf.int64)

    work = array_input._loop(batch)
    work(3)
    work(2)
    assert int(asked) == 0 + 1 + 2 + 3 + 4


def test_a_contender_runs_in_a_process_of_its_own(tmp_path: Path, capsys, monkeypatch) -> None:
    (baseline, *_) = [each for each in find_contenders() if each.case == array_input.SCALE and each.baseline]
    monkeypatch.setattr(benchmark, "find_contenders", lambda: [baseline])
    out = tmp_path / "figures.json"
    assert main(["what=input", "repeats=2", "seconds=0.02", "batch_size=16", "threads=1", f"out={out}"]) == 0
    assert "tf.data, batch by batch" in capsys.readouterr().out
    written = json.loads(out.read_text())
    assert written["versions"]["tensorflow"] == tf.__version__
    assert written["options"]["batch_size"] == 16
    (row,) = written["results"]
    assert len(row["speeds"]) == 2
    assert min(row["speeds"]) > 0
    monkeypatch.setattr(benchmark, "WORKER", Path(__file__).with_name("missing.py"))
    with pytest.raises(UserError, match=r"The process of 'input/.*' ended: .*missing\.py"):
        compare([baseline], Options("input"))
