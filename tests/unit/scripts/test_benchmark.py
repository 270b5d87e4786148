"""The command that times contenders: what it refuses, how it counts, and one real turn."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from scripts import benchmark
from scripts.benchmark import Options, choose, compare, main, parse
from scripts.benchmarks import array_input, process, worker
from scripts.benchmarks.contender import Contender, Done, Settings, find_contenders
from trainer.errors import UserError

ROOT = Path(__file__).resolve().parents[3]


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
        (["what=input", "peak=0"], "Invalid peak: 0. Expected a number above 0."),
        (["what=input", "peak=.inf"], "Invalid peak: inf."),
        (["what=input", "peak=many"], "Invalid peak: 'many'."),
        (["what=input", "out=missing/x.json"], "out=missing/x.json lies in no directory that exists."),
        (["what=input", "chart=missing/x.png"], "chart=missing/x.png lies in no directory that exists."),
        (["what=input", "chart=x.pdf"], "chart=x.pdf received. Expected a file that ends with .png."),
        (["what=input", "environments=missing"], "environments=missing is no directory."),
        (["what=training", "case=lenet5"], "Unknown case 'lenet5'. Did you mean 'lenet_5'"),
        (["what=training", "case=cnn,"], "Unknown case ''. Expected one of: "),
        (["what=training", "case=cnn", "contenders=kears*"], "contenders=kears* matches none. Expected patterns on: "),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments, message, capsys) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_options_are_taken() -> None:
    options = parse(["what=input", "data=a=b.npz", "repeats=3", "seconds=0.5", "threads=1", "batch_size=5"])
    assert options == Options("input", data="a=b.npz", repeats=3, seconds=0.5, threads=1, batch_size=5)
    assert parse(["what=input"]) == Options("input")
    assert parse(["what=training", "peak=19.5"]).peak == 19.5


def test_every_case_has_a_baseline_and_every_contender_a_key_of_its_own() -> None:
    contenders = find_contenders()
    assert len({each.key for each in contenders}) == len(contenders)
    for what, case in {(each.what, each.case) for each in contenders}:
        own = [each for each in contenders if (each.what, each.case) == (what, case)]
        assert any(each.baseline for each in own), (what, case)
        assert len({each.batch_size for each in own}) == 1, (what, case)


def test_cases_and_contenders_are_chosen_by_name() -> None:
    def chosen(**options: str) -> set[tuple[str, str]]:
        return {(each.case, each.name) for each in choose(Options("training", **options))}

    assert {case for case, _ in chosen(case="cnn, bnn")} == {"cnn", "bnn"}
    assert chosen(case="[cnn,bnn]") == chosen(case="cnn,bnn")
    assert chosen(case="cnn", contenders="limit,pytorch*") == {
        ("cnn", "limit"),
        ("cnn", "pytorch"),
        ("cnn", "pytorch compile"),
    }
    assert {each.case for each in choose(Options("input", case=array_input.SCALE))} == {array_input.SCALE}


def test_the_worker_finds_how_much_work_fills_a_turn(monkeypatch) -> None:
    clock, done = [0.0], []

    def work(count: int) -> None:
        done.append(count)
        clock[0] += 5.0 if len(done) == 1 else 0.001 * count  # the first sets up

    monkeypatch.setattr(worker.time, "perf_counter", lambda: clock[0])
    assert worker._calibrate(work, 2.0) == 2000
    assert done[:2] == [1, 1]
    assert max(done) < 1000


def test_a_contender_may_say_which_seconds_count_and_the_loss_is_that_of_the_second_half() -> None:
    done = []

    def work(count: int) -> Done:
        done.append(count)
        return Done(seconds=2.0 * count, loss=1.0 / sum(done))

    assert worker._seconds(work, 3) == 6.0
    done.clear()
    assert worker._loss(work, 5) == 1.0 / 5
    assert done == [2, 3]
    assert worker._loss(work, 0) is None
    assert worker._loss(lambda count: None, 4) is None


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


BASELINE = next(each for each in find_contenders() if each.case == array_input.SCALE and each.baseline)
ELSEWHERE = Contender("input", array_input.SCALE, "another", lambda settings: lambda count: None, environment="torch")


def test_contenders_run_in_processes_of_their_own_and_those_that_cannot_are_named(
    tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.setattr(benchmark, "find_contenders", lambda: [BASELINE, ELSEWHERE])
    out, chart = tmp_path / "figures.json", tmp_path / "figures.png"
    small = ["repeats=2", "seconds=0.02", "batch_size=16", "threads=1"]
    assert main(["what=input", *small, f"out={out}", f"chart={chart}", f"environments={tmp_path}"]) == 0
    printed = capsys.readouterr().out
    assert f"left out 'another': torch is not installed in {tmp_path}." in printed
    assert "turn 2 of 2" in printed
    assert "tf.data, batch by batch *" in printed
    assert chart.read_bytes().startswith(b"\x89PNG")
    written = json.loads(out.read_text())
    assert written["versions"]["tensorflow"] == tf.__version__
    assert written["options"]["batch_size"] == 16
    assert list(written["left_out"][array_input.SCALE]) == ["another"]
    (row,) = written["results"]
    assert len(row["speeds"]) == 2
    assert min(row["speeds"]) > 0


def test_a_case_that_nobody_can_take_part_in_is_an_error(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(UserError, match=r"No contender of .* torch is not installed \(see environments="):
        compare([ELSEWHERE], Options("input"))
    monkeypatch.setattr(process, "WORKER", Path(__file__).with_name("missing.py"))
    with pytest.raises(UserError, match=r"The process of 'input/.*' ended: .*missing\.py"):
        compare([BASELINE], Options("input"))


def test_the_interpreter_of_another_framework_is_that_of_its_environment(tmp_path: Path) -> None:
    python = tmp_path / "torch" / "bin" / "python"
    assert process.interpreter(BASELINE, "") == Path(sys.executable)
    assert process.interpreter(ELSEWHERE, "") is None
    assert process.interpreter(ELSEWHERE, str(tmp_path)) is None
    python.parent.mkdir(parents=True)
    python.touch()
    assert process.interpreter(ELSEWHERE, str(tmp_path)) == python


def test_contenders_are_found_without_any_framework() -> None:
    lines = [
        "import sys",
        "from scripts.benchmarks.contender import find_contenders",
        "import scripts.benchmarks.worker",
        "assert len(find_contenders()) > 50",
        "loaded = {'tensorflow', 'keras', 'numpy', 'yaml', 'hydra', 'matplotlib', 'rich'} & set(sys.modules)",
        "sys.exit(', '.join(loaded) or 0)",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
