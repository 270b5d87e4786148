"""Contenders do the same work, all of it; how it is counted, the figures that come of it, and one real turn."""

import importlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from hookline.recipes.models.lenet import lenet_5, lenet_300_100
from hookline.scripts import benchmark
from hookline.scripts.benchmark import as_rows, print_rows, write_chart
from hookline.scripts.benchmarks import contender as module
from hookline.scripts.benchmarks import inputs, training_hookline
from hookline.scripts.benchmarks.contender import Contender, Settings, find_contenders
from hookline.scripts.benchmarks.training import build
from hookline.scripts.benchmarks.training_hookline import CNN, DIGITS, LENET_5, compose, products
from hookline.trainer.errors import UserError
from tests.support.refusals import assert_one_line


def test_mistakes_are_one_line(capsys) -> None:
    for arguments, word in (
        (["what=inptu"], "'input'"),
        (["what=input", "peak=.inf"], "peak: inf"),
        (["what=input", "chart=x.pdf"], ".png"),
        (["what=training", "case=cnn", "contenders=kears*"], "kears*"),
    ):
        assert_one_line(benchmark.main, arguments, word, capsys)


BASELINE = next(each for each in find_contenders() if each.case == inputs.SCALE and each.baseline)
ELSEWHERE = Contender("input", inputs.SCALE, "another", lambda settings: lambda count: None, environment="torch")


def test_contenders_run_in_processes_of_their_own(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(benchmark, "find_contenders", lambda: [BASELINE, ELSEWHERE])
    out, chart = tmp_path / "figures.json", tmp_path / "figures.png"
    small = ["repeats=2", "seconds=0.02", "batch_size=16", "threads=1"]
    assert benchmark.main(["what=input", *small, f"out={out}", f"chart={chart}", f"environments={tmp_path}"]) == 0
    assert "left out 'another': torch is not installed" in capsys.readouterr().out
    assert chart.read_bytes().startswith(b"\x89PNG")
    written = json.loads(out.read_text())
    assert list(written["left_out"][inputs.SCALE]) == ["another"]
    (row,) = written["results"]
    assert len(row["speeds"]) == 2
    assert min(row["speeds"]) > 0
    monkeypatch.setattr(module, "WORKER", Path(__file__).with_name("missing.py"))
    for contender, word in ((ELSEWHERE, "torch is not installed"), (BASELINE, r"ended: .*missing\.py")):
        with pytest.raises(UserError, match=word):
            benchmark.compare([contender], benchmark.Options("input"))


def result(name: str, speeds: list[float], *, products: int | None = None, **more) -> SimpleNamespace:
    contender = Contender("training", "a", name, lambda settings: lambda count: None, **more)
    return SimpleNamespace(contender=contender, settings=Settings(batch_size=10), speeds=speeds, products=products)


def test_figures_are_medians_and_ratios_are_of_the_same_turn(capsys, monkeypatch, tmp_path) -> None:
    results = [
        result("ours", [200.0, 330.0, 100.0]),
        result("slow", [1.0, 1.0, 1.0], baseline=True),
        result("theirs", [100.0, 110.0, 200.0], baseline=True),
        result("limit", [400.0, 400.0, 400.0], limit=True, products=1000),
    ]
    rows = as_rows(results, peak=8e6)
    ours, _, theirs, bound = rows
    assert [ours[key] for key in ("median", "lowest", "highest", "ratio")] == [200.0, 100.0, 330.0, 2.0]
    assert (theirs["median"], theirs["ratio"]) == (110.0, 1.0)
    assert [row["baseline"] for row in rows] == [False, False, True, False]
    assert (ours["of_limit"], bound["of_limit"]) == (0.5, 1.0)
    assert ours["use"] == pytest.approx(2 * 1000 * 2000.0 / 8e6)  # a product is two operations
    (lone,) = as_rows([result("only", [5.0, 7.0, 9.0])], peak=1.0)
    assert (lone["ratio"], lone["baseline"], lone["of_limit"], lone["use"]) == (1.0, True, None, None)
    monkeypatch.setenv("COLUMNS", "120")
    print_rows(rows)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[2] == "ours 200.0 2.00 1.25 to 2.50 50% 50.0%"
    write_chart(rows, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_our_runs_and_keras_train_the_same_models_and_products_are_counted(monkeypatch) -> None:
    lenet = 24 * 24 * 500 + 64 * 25_000 + 400_000 + 5000
    assert products(lenet_300_100(DIGITS, 10)) == 3 * (784 * 300 + 300 * 100 + 1000) - 784 * 300
    assert products(lenet_5(DIGITS, 10)) == 3 * lenet - 24 * 24 * 500
    convolutions = 1024 * 9 * 3 * 24 + 256 * 9 * 24 * 48 + 64 * 9 * 48 * 96 + 16 * 9 * 96 * 128 + 1280
    assert products(build(CNN)) == 3 * convolutions - 1024 * 9 * 3 * 24
    monkeypatch.setattr(training_hookline, "pixels", lambda *given: {})  # that nothing reads here
    for case in (LENET_5, CNN):
        node = dict(compose(Settings(), case, []).config["model"])
        module, _, name = node.pop("_target_").rpartition(".")
        model = getattr(importlib.import_module(module), name)(case.images, 10, **node)
        assert [each.shape for each in model.weights] == [each.shape for each in build(case).weights]
