"""The command that makes the results table: what it takes, shows and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts import reproduce
from tests.support.reproduction import write_targets


@pytest.fixture
def place(tmp_path: Path) -> dict[str, str]:
    write_targets(tmp_path / "targets.yaml")
    (tmp_path / "damaged.json").write_text("{")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    return {"here": str(tmp_path), "own": f"{tmp_path}/targets.yaml"}


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["onyl=bnn"], "Did you mean 'only'?"),
        (["only=bnm"], "Did you mean 'bnn'?"),
        (["only=bnn,zzz*"], "Unknown target 'zzz*'"),
        (["seeds=0,x"], "seeds=0,x received"),
        (["seeds="], "seeds= received"),
        (["seeds=1,1"], "Expected different whole numbers"),
        (["jobs=0"], "jobs=0 received"),
        (["jobs=true"], "jobs=True received"),
        (["list=3"], "Invalid list: 3"),
        (["out="], "out= received"),
        (["mnist={here}/nowhere.npz", "only=bnn"], "nowhere.npz is no file that exists"),
        (["mnist={here}"], "is no file that exists"),
        (["clothing={own}"], "is no folder that exists"),
        (["targets={here}/nowhere.yaml"], "cannot be read: No such file"),
        (["results={here}/damaged.json"], "damaged.json cannot be read: it is damaged."),
        (["results={here}/damaged.json", "render=true"], "damaged.json cannot be read: it is damaged."),
        (["results={here}/none.json", "--render"], "none.json holds no rows"),
        (["results={here}/no/none.json"], "/no is no folder"),
        (["out={here}/used", "results={here}/r.json", "only=bnn"], "holds files, but no sweep.json"),
        (["out={here}/used", "results={here}/r.json", "--list"], "holds files, but no sweep.json"),
        (["out={own}/under", "results={here}/r.json", "only=bnn"], "cannot be made"),
        (["out={own}", "results={here}/r.json", "only=bnn"], "cannot be read"),
    ],
)
def test_a_mistake_is_one_line(place: dict[str, str], capsys, arguments: list[str], word: str):
    assert reproduce.main([each.format(**place) for each in arguments]) == 2
    out, err = capsys.readouterr()
    assert word in err
    assert err.count("\n") == 1
    assert out == ""


def test_own_targets_are_composed_before_the_first_run(place: dict[str, str], capsys):
    text = Path(place["own"]).read_text().replace("recipe=baseline", "recipe=basline")
    Path(place["own"]).write_text(text)
    arguments = [f"targets={place['own']}", f"out={place['here']}/out", f"results={place['here']}/r.json", "only=first"]
    assert reproduce.main(arguments) == 2
    assert "Error: first/twin_0: " in capsys.readouterr().err
    assert not (Path(place["here"]) / "out" / "sweep.json").exists()


def test_the_list_shows_commands_and_what_is_left_and_writes_nothing(place: dict[str, str], capsys):
    arguments = [f"targets={place['own']}", f"out={place['here']}/out", f"results={place['here']}/r.json", "--list"]
    assert reproduce.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "first: a binary network (digits)" in lines
    assert "  0 of 6 runs done, time unknown left" in lines
    assert "  python train.py -m --jobs 1 recipe=baseline seed=0,1,2" in lines
    assert "  not run: needs mnist=<path>, which was not given" in lines
    assert not (Path(place["here"]) / "out").exists()
    assert not (Path(place["here"]) / "r.json").exists()


def test_patterns_choose_in_the_order_of_the_file(place: dict[str, str]):
    targets = reproduce.read_targets(Path(place["own"]))
    assert [each.name for each in reproduce.chosen("third,f*", targets)] == ["first", "third"]
    assert len(reproduce.chosen("", targets)) == 3


def test_options():
    options = reproduce.parse(["seeds=[2,0]", "only=a,b", "--list", "jobs=2"])
    assert (options.seeds, options.only, options.list, options.jobs) == ((2, 0), "a,b", True, 2)
    assert reproduce.parse([]).results.endswith("recipes/results.json")


def test_data_that_is_not_given_alone_leaves_its_reason(place: dict[str, str], capsys):
    arguments = [f"targets={place['own']}", f"out={place['here']}/out", f"results={place['here']}/r.json", "only=third"]
    assert reproduce.main(arguments) == 0
    assert "third: not run: needs mnist=<path>, which was not given" in capsys.readouterr().out
    (row,) = json.loads((Path(place["here"]) / "r.json").read_text())["rows"]
    assert row["not_run"] == "needs mnist=<path>, which was not given"


def test_the_table_is_made_again_from_the_results_alone(place: dict[str, str], capsys):
    test_data_that_is_not_given_alone_leaves_its_reason(place, capsys)
    table = Path(place["here"]) / "RESULTS.md"
    before = table.read_text()
    table.write_text("changed by hand")
    assert reproduce.main([f"results={place['here']}/r.json", "render=true"]) == 0
    assert table.read_text() == before


def test_help_shows_the_options(capsys):
    assert reproduce.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in vars(reproduce.Options()))
