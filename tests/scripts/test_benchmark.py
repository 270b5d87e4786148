"""Contenders that do the same work, the figures computed from their speeds, and real measurements."""

import importlib
import json
from pathlib import Path

from hookline.scripts import benchmark
from hookline.scripts.benchmark import as_rows, print_rows, write_chart
from hookline.scripts.benchmarks import worker
from hookline.scripts.benchmarks.training import build
from hookline.scripts.benchmarks.training_hookline import CNN, LENET_5, compose
from hookline.scripts.benchmarks.worker import MODULES, Settings, find_contenders
from tests.support.refusals import assert_one_line, assert_refused


def test_mistakes_are_reported_in_one_line(capsys) -> None:
    for arguments, word in (
        (["what=input", "chart=x.pdf"], ".png"),
        (["what=training", "case=cnn", "contenders=kears*"], "kears*"),
    ):
        assert_one_line(benchmark.main, arguments, word, capsys)


BASELINE = "tf.data, batch by batch"


def test_contenders_run_in_separate_processes_and_missing_ones_are_left_out(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(benchmark, "find_contenders", lambda what: {"scale": [BASELINE, "pytorch"]})
    out, chart = tmp_path / "figures.json", tmp_path / "figures.png"
    small = ["repeats=2", "seconds=0.02", "batch_size=16", "threads=1"]
    assert benchmark.main(["what=input", *small, f"out={out}", f"chart={chart}", f"environments={tmp_path}"]) == 0
    assert "left out 'pytorch': torch is not installed" in capsys.readouterr().out
    assert chart.read_bytes().startswith(b"\x89PNG")
    written = json.loads(out.read_text())
    assert list(written["left_out"]["scale"]) == ["pytorch"]
    (row,) = written["results"]
    assert len(row["speeds"]) == 2
    assert min(row["speeds"]) > 0
    monkeypatch.setattr(worker, "WORKER", Path(__file__).with_name("missing.py"))
    for name, word in (("pytorch", "torch is not installed"), (BASELINE, r"ended: .*missing\.py")):
        assert_refused(word, benchmark.compare, "scale", [name], benchmark.Options("input"))


def test_speeds_are_medians_and_ratios_compare_the_same_turn(capsys, monkeypatch, tmp_path) -> None:
    speeds = {
        "hookline": [200.0, 330.0, 100.0],
        "keras fit": [1.0, 1.0, 1.0],
        "keras fit jit": [100.0, 110.0, 200.0],
        "limit": [400.0, 400.0, 400.0],
    }
    rows = as_rows("a", "steps/s", speeds)
    ours, _, theirs, bound = rows
    assert [ours[key] for key in ("median", "lowest", "highest", "ratio")] == [200.0, 100.0, 330.0, 2.0]
    assert (theirs["median"], theirs["ratio"]) == (110.0, 1.0)
    assert [row["baseline"] for row in rows] == [False, False, True, False]
    assert (ours["of_limit"], bound["of_limit"]) == (0.5, 1.0)
    (lone,) = as_rows("a", "steps/s", {"hookline": [5.0, 7.0, 9.0]})
    assert (lone["ratio"], lone["baseline"], lone["of_limit"]) == (1.0, True, None)
    monkeypatch.setenv("COLUMNS", "120")
    print_rows(rows)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[1:3] == ["a", "contender steps/s times * quartiles limit"]
    assert lines[3] == "hookline 200.0 2.00 1.25 to 2.50 50%"
    write_chart(rows, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_hookline_and_keras_contenders_have_equal_weight_shapes() -> None:
    assert all(find_contenders(what) for what in MODULES)
    for case in (LENET_5, CNN):
        node = dict(compose(Settings(), case, []).config["model"])
        module, _, name = node.pop("_target_").rpartition(".")
        model = getattr(importlib.import_module(module), name)(case.images, 10, **node)
        assert [each.shape for each in model.weights] == [each.shape for each in build(case).weights]
