"""The results table: its commands compose, its numbers are right, finished runs are kept and failed ones repeated."""

import io
import json
from contextlib import redirect_stdout
from copy import deepcopy
from pathlib import Path

import pytest
import yaml

from hookline.scripts import reproduce
from hookline.scripts.reproduce import Options, Session
from hookline.scripts.reproduction.table import FILE, TABLE, read_results, render
from hookline.scripts.reproduction.targets import DATA, commands_of, read_targets, runs_of
from hookline.scripts.sweep import run
from hookline.trainer.config.command import Command, open_composer, typed, with_values
from hookline.trainer.config.schema import validate
from tests.support.refusals import assert_one_line
from tests.support.stored_runs import config_of, write_run

ROOT = Path(__file__).resolve().parents[2]
OURS = read_targets()
FAKE = ROOT / "tests" / "support" / "fake_measured.py"
ACCURACY = {"run": "bnn", "metric": "metric/accuracy", "as": "percent"}
TARGETS = {
    "first": {
        "title": "a binary network",
        "recipe": "bnn",
        "data": "digits",
        "seeds": [0, 1, 2],
        "runs": {"bnn": ["recipe=bnn"], "twin": ["recipe=baseline"]},
        "measures": {"accuracy": ACCURACY, "error": {**ACCURACY, "as": "error"}, "twin": {**ACCURACY, "run": "twin"}},
        "goals": [
            {"measure": "accuracy", "at_least": 90.5, "source": "Somebody 2016"},
            {"measure": "error", "at_most": 8.5, "source": "Somebody 2016"},
            {"measure": "accuracy", "at_least": "twin"},
        ],
    },
    "second": {
        "title": "fewer weights",
        "recipe": "frozen_mask",
        "data": "digits",
        "seeds": [0],
        "runs": {"pruned": ["recipe=frozen_mask", "init_from={twin}"], "twin": {"of": "first", "variant": "twin"}},
        "measures": {
            "error": {"run": "pruned", "metric": "metric/accuracy", "as": "error"},
            "times": {"run": "pruned", "summary": "hooks.prune.total.times_fewer", "as": "number"},
        },
    },
    "third": {
        "title": "a larger network",
        "recipe": "bnn",
        "data": "MNIST",
        "needs": ["mnist"],
        "seeds": [0],
        "runs": {"bnn": ["recipe=bnn", "data=mnist", "data.path={mnist}"]},
        "measures": {"accuracy": ACCURACY},
    },
}


def write_targets(path, content=None):
    path.write_text(yaml.safe_dump(TARGETS if content is None else content, sort_keys=False))
    return path


def reproduced(directory, only="*", content=None) -> tuple[int, list[str]]:
    """Run a session in a directory; return its exit code and output. `content` is that of the targets file."""
    targets = write_targets(directory / "targets.yaml", content)
    options = Options(f"{directory}/out", only=only, results=f"{directory}/rows/results.json", targets=str(targets))
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as said:
        patch.setattr(run, "TRAIN", FAKE)
        return Session(options).make(), said.getvalue().splitlines()


def rows_in(directory: Path) -> dict:
    return {row["name"]: row for row in json.loads((directory / "rows" / "results.json").read_text())["rows"]}


def started(out: Path, name: str = "") -> list[str]:
    """Return the commands of all processes, in the order of their jobs."""
    lines = "".join(log.read_text() for log in sorted(out.rglob("*.log"))).splitlines()
    return [line for line in lines if line.startswith("$ ") and name in line]


def test_published_table_agrees_with_results_and_targets():
    found = read_results(FILE)
    assert found
    table = FILE.with_name(TABLE).read_text(encoding="utf-8")
    assert table == render(found)
    assert "/tmp" not in table + FILE.read_text()
    assert "/home" not in table + FILE.read_text()
    for row in found:
        if "not_run" not in row:
            assert row["commands"] == commands_of(OURS[row["name"]], row["seeds"])
    recipes = {path.stem for path in (ROOT / "configs" / "recipe").glob("*.yaml")}
    unmeasured = {"multi_label", "regression", "segmentation", "bop", "fine_tuning", "weight_clustering"}
    assert recipes - {target.recipe for target in OURS.values()} == {"gan", *unmeasured}  # the baseline in rows of sgan


def test_every_key_of_every_target_composes():
    """Check, per recipe, a few command lines that cover every choice (data=mnist) and every key (trainer.epochs)."""
    runs = {name: each for target in OURS.values() for name, (each, _) in runs_of(target, target.seeds[:1]).items()}
    seen: set[tuple[str, str]] = set()
    chosen = []
    for variant in sorted(runs.values(), key=lambda variant: -len(variant.overrides)):
        recipe = next(text for text in variant.overrides if text.startswith("recipe="))
        keys = {text.partition("=")[0] if "." in text.partition("=")[0] else text for text in variant.overrides}
        if new := {(recipe, key) for key in keys} - seen:
            seen |= new
            chosen.append(variant)
    with open_composer(Command(())) as composer:
        for each in chosen:
            texts = each.filled(dict.fromkeys(DATA, "somewhere"), lambda other: "somewhere")
            validate(typed(with_values(composer.compose(texts), [])))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, list[str]]:
    """Return a directory in which every possible row was made, and the output of the session."""
    directory = tmp_path_factory.mktemp("made")
    code, lines = reproduced(directory)
    assert code == 0
    return directory, lines


def test_row_is_the_mean_over_its_seeds_and_appears_in_the_table(made):
    directory, lines = made
    names = {f"first/{variant}_{seed}" for variant in ("bnn", "twin") for seed in (0, 1, 2)} | {"second/pruned_0"}
    assert {str(path.parent.relative_to(directory / "out")) for path in directory.glob("out/*/*/summary.json")} == names
    overrides = (directory / "out" / "second" / "pruned_0" / "overrides.txt").read_text().splitlines()
    assert overrides == ["recipe=frozen_mask", f"init_from={directory}/out/first/twin_0", "seed=0"]
    row = rows_in(directory)["first"]
    accuracy, error, twin = row["measures"]
    assert accuracy["values"] == {"0": 90.0, "1": 91.0, "2": 92.0}
    assert [accuracy[key] for key in ("mean", "low", "high")] == [91.0, 90.0, 92.0]
    assert [error[key] for key in ("mean", "low", "high")] == [9.0, 8.0, 10.0]
    assert [goal["reached"] for goal in row["goals"]] == [True, False, True]
    assert row["goals"][2]["figure"] == twin["mean"] == 86.0
    assert (row["seeds"], row["bytes"], row["threads"]) == ([0, 1, 2], 2048, 2)
    assert row["seconds"] == {"bnn": 3.0, "twin": 3.0}
    assert "0123456789abcdef" in row["environment"]["commits"]
    assert rows_in(directory)["second"]["measures"][1]["mean"] == 10.0
    assert "third: not run: needs mnist=<path>, which was not given" in lines
    table = (directory / "rows" / "RESULTS.md").read_text()
    line = next(line for line in table.splitlines() if line.startswith("| `first`"))
    for cell in ("accuracy 91.0 % (90.0 to 92.0)", "at least 90.5 %: Somebody 2016", "2.00 KiB", "3 s, 2 threads"):
        assert cell in line
    assert "yes; no; yes" in line


def test_finished_runs_are_not_repeated_but_the_table_is_rewritten(made):
    directory, _ = made
    before, results = started(directory / "out"), (directory / "rows" / "results.json").read_bytes()
    table = (directory / "rows" / "RESULTS.md").read_text()
    (directory / "rows" / "RESULTS.md").write_text("of an earlier version")
    assert reproduced(directory)[0] == 0
    assert started(directory / "out") == before
    assert (directory / "rows" / "results.json").read_bytes() == results
    assert (directory / "rows" / "RESULTS.md").read_text() == table
    (directory / "rows" / "RESULTS.md").write_text("changed by hand")
    assert reproduce.main([f"results={directory}/rows/results.json", "render=true"]) == 0
    assert (directory / "rows" / "RESULTS.md").read_text() == table


def test_failed_run_does_not_stop_the_others_and_is_repeated(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_FAILS", "twin_0,bnn_1")
    fewer = deepcopy(TARGETS)
    fewer["first"]["seeds"] = [0, 1]
    code, lines = reproduced(tmp_path, "first,second", fewer)
    assert code == 1
    assert any(" failed " in line and "first/bnn_1: Error: The loss is NaN." in line for line in lines)
    assert "left out: second/pruned_0, which begins from first/twin_0" in lines
    assert sum("] completed " in line for line in lines) == 2
    assert not (tmp_path / "rows" / "results.json").exists()
    monkeypatch.delenv("FAKE_FAILS")
    write_run(tmp_path / "out" / "first" / "twin_0", config_of(0), {"status": "failed"}, ["recipe=baseline", "seed=0"])
    assert reproduced(tmp_path, "first,second", content=fewer)[0] == 0
    assert (tmp_path / "out" / "first" / "twin_0_try2" / "summary.json").exists()  # the first directory contains files
    assert set(rows_in(tmp_path)) == {"first", "second"}


def test_run_is_repeated_if_the_run_it_starts_from_was_repeated(tmp_path):
    assert reproduced(tmp_path, "second")[0] == 0
    changed = deepcopy(TARGETS)
    changed["first"]["runs"]["twin"].append("trainer.epochs=3")
    assert reproduced(tmp_path, "second", content=changed)[0] == 0
    overrides = (tmp_path / "out" / "second" / "pruned_0_try2" / "overrides.txt").read_text().splitlines()
    assert overrides[1] == f"init_from={tmp_path}/out/first/twin_0_try2"


def test_mistake_is_reported_in_one_line_and_list_writes_nothing(tmp_path, capsys):
    own, results = write_targets(tmp_path / "targets.yaml"), f"results={tmp_path}/r.json"
    for arguments, word in (
        (["only=bnm"], "'bnn'"),
        (["seeds=1,1"], "different whole numbers"),
        ([f"mnist={tmp_path}/nowhere.npz", "only=bnn"], "nowhere.npz"),
        ([f"targets={tmp_path}/nowhere.yaml"], "nowhere.yaml"),
    ):
        assert_one_line(reproduce.main, arguments, word, capsys)
    before = sorted(tmp_path.rglob("*"))
    assert reproduce.main([f"targets={own}", f"out={tmp_path}/out", results, "--list"]) == 0
    assert "  python train.py -m --jobs 1 recipe=baseline seed=0,1,2" in capsys.readouterr().out.splitlines()
    assert sorted(tmp_path.rglob("*")) == before
