"""The command that takes a recipe's hooks away in turn: its variants, its jobs, its table, and one that trains."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest

import train
from scripts import ablate
from scripts.ablation.jobs import is_made, run_missing
from scripts.ablation.possible import _reasons
from scripts.ablation.variants import variants_of
from trainer.errors import UserError
from trainer.sweep.record import Sweep, SweepJob

HOOKS = ("progress", "final_table", "pictures", "projector", "tensorboard")
SMALL = ["model.units=[8,8]", "trainer.epochs=1", "trainer.compile=off", *(f"hooks.{name}=null" for name in HOOKS)]
FAKE = Path(__file__).resolve().parents[2] / "support" / "fake_training.py"
NEEDED = "The hook 'frozen_mask' follows the masks of 'prune'"


def test_each_technique_hook_is_taken_away_alone_and_monitors_stay():
    variants = variants_of(["recipe=frozen_mask", "+hooks=ema"], seed=3)
    assert [variant.name for variant in variants] == ["whole", "without prune", "without frozen_mask", "without ema"]
    assert variants[0].job(3) == ["recipe=frozen_mask", "+hooks=ema", "seed=3"]
    assert variants[3].job(4) == ["recipe=frozen_mask", "+hooks=ema", "hooks.ema=null", "seed=4"]
    (job,) = train.check(variants[3].job(4))
    assert "ema" not in job.config["hooks"]
    assert {"prune", "nan_guard", "tensorboard"} <= set(job.config["hooks"])


def test_what_was_set_for_a_hook_goes_with_it():
    overrides = ["recipe=frozen_mask", "hooks.prune.final_sparsity=0.9", "hooks.frozen_mask.layers=dense_1"]
    (_, without_prune, without_mask) = variants_of(overrides, seed=0)
    assert without_prune.overrides == ("recipe=frozen_mask", "hooks.frozen_mask.layers=dense_1", "hooks.prune=null")
    assert without_mask.overrides == ("recipe=frozen_mask", "hooks.prune.final_sparsity=0.9", "hooks.frozen_mask=null")
    own = ["recipe=baseline", "+hooks.mine._target_=hooks.ema.Ema", "+hooks.mine.decay=0.9"]
    assert variants_of(own, seed=0)[1].overrides == ("recipe=baseline",)


def test_a_variant_that_the_config_forbids_has_the_reason():
    """The value of another key that refers to the hook: nothing needs to be built to see it."""
    (_, variant) = variants_of(["recipe=bnn", "trainer.monitor=${hooks.bnn_rounding.kernel_quantizer}"], seed=0)
    assert "kernel_quantizer" in (variant.reason or "")


def test_a_hook_that_another_one_needs_is_found_by_building_the_run():
    variants = variants_of(["recipe=frozen_mask", *SMALL], seed=0)
    without_prune, without_mask = _reasons([variant.job(0) for variant in variants[1:]])
    assert without_mask is None
    assert without_prune is not None
    assert without_prune.startswith(NEEDED)


@pytest.fixture
def trained(monkeypatch):
    """Jobs that write a run at once instead of training; those with seed=13 fail, seed=14 is interrupted.

    Returns a function: the run directories below a directory, in the order in which their jobs stand.
    """
    monkeypatch.setattr(ablate, "run_missing", partial(run_missing, script=FAKE))

    def directories(out: Path) -> list[str]:
        return [job["run"] for job in jobs_in(out) if (out / job["run"]).exists()]

    return directories


def jobs_in(out: Path) -> list[dict]:
    return json.loads((out / "sweep.json").read_text())["jobs"]


def test_jobs_are_recorded_and_none_is_made_twice(tmp_path):
    out, lines = tmp_path / "out", []
    jobs = {"a": ["recipe=bnn", "seed=0"], "b": ["recipe=bnn", "seed=13"]}
    assert run_missing(out, jobs, lines.append, script=FAKE) == 1
    said = "\n".join(lines)
    assert "completed   a" in said
    assert "failed      b: Error: The loss is NaN. (exit code 1" in said
    assert [(job["number"], job["run"], job["status"], job["exit_code"]) for job in jobs_in(out)] == [
        (1, "a", "completed", 0),
        (2, "b", "failed", 1),
    ]
    began = (out / "a" / "summary.json").stat().st_mtime_ns
    lines.clear()
    assert run_missing(out, {**jobs, "c": ["recipe=bnn", "seed=2"]}, lines.append, script=FAKE) == 1
    assert lines[0].startswith("2 of 3 jobs to run")
    assert (out / "a" / "summary.json").stat().st_mtime_ns == began
    assert is_made(out, ["recipe=bnn", "seed=2"])
    assert not is_made(out, ["recipe=bnn", "seed=13"])
    assert not is_made(tmp_path / "elsewhere", ["recipe=bnn", "seed=2"])


def test_a_job_that_was_interrupted_is_made_later(tmp_path):
    jobs = {"a": ["recipe=bnn", "seed=14"], "b": ["recipe=bnn", "seed=0"]}
    assert run_missing(tmp_path / "out", jobs, lambda line: None, script=FAKE) == 130
    assert [job["status"] for job in jobs_in(tmp_path / "out")] == ["interrupted", "completed"]


@pytest.mark.parametrize("record", [None, "{", {"run": "a", "overrides": ["recipe=other"]}])
def test_a_directory_of_something_else_is_refused(tmp_path, record):
    (tmp_path / "file").write_text("")
    if isinstance(record, dict):
        Sweep(tmp_path, [SweepJob(1, record["overrides"], record["run"])]).write()
    elif record is not None:
        (tmp_path / "sweep.json").write_text(record)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError, match="holds files, but no|cannot be read as a sweep|holds other runs"):
        run_missing(tmp_path, {"a": ["recipe=bnn"]}, lambda line: None, script=FAKE)
    assert sorted(tmp_path.iterdir()) == before


def ablation(monkeypatch, tmp_path, *arguments):
    asked = []

    def reasons(jobs):
        asked.append(jobs)
        return [f"{NEEDED}." if "hooks.prune=null" in job else None for job in jobs]

    monkeypatch.setattr(ablate, "reasons_against", reasons)
    return ablate.main([*arguments, f"out={tmp_path}/out"]), asked


def test_the_table_compares_every_variant_with_the_whole(tmp_path, trained, capfd, monkeypatch):
    code, asked = ablation(monkeypatch, tmp_path, "recipe=frozen_mask", "seeds=0,2,13")
    said = capfd.readouterr().out
    assert code == 1
    assert len(asked[0]) == 3
    rows = {
        line[:20].strip(): line.split()[1:] for line in said.splitlines() if line.startswith(("whole ", "without "))
    }
    assert rows["whole"][:3] == ["2", "of", "3"]
    assert "-0.1000 ± 0.0000, better in 0 of 2" in " ".join(rows["without frozen_mask"])
    assert set(rows["without prune"][1:]) == {"-"}
    assert f"without prune: cannot run. {NEEDED}.\n" in said
    assert "Best by validation: hooks=whole" in said
    assert "In no average, not at their end: 2 runs\n  job 3: failed (exit code 1), recipe=frozen_mask seed=13" in said
    assert not any(name.startswith("without_prune") for name in trained(tmp_path / "out"))
    made = [(tmp_path / "out" / name).stat().st_mtime_ns for name in trained(tmp_path / "out")]
    code, asked = ablation(monkeypatch, tmp_path, "recipe=frozen_mask", "seeds=0,2")
    assert code == 0
    assert [(tmp_path / "out" / name).stat().st_mtime_ns for name in trained(tmp_path / "out")] == made
    assert len(asked[0]) == 1  # what has been run can run


def test_a_whole_that_cannot_run_is_the_users_mistake(tmp_path, trained, capfd, monkeypatch):
    monkeypatch.setattr(ablate, "reasons_against", lambda jobs: ["No such data."] * len(jobs))
    assert ablate.main(["recipe=bnn", f"out={tmp_path}/out"]) == 2
    assert capfd.readouterr().err == "Error: No such data.\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["recipe=bnn", "seed=1"], "Expected seeds=0,1,2"),
        (["recipe=bnn", "run_dir=a"], "Expected seeds=0,1,2 and out=<directory>"),
        (["recipe=bnn", "-m"], "'-m' received"),
        (["recipe=bnn", "seeds=1,1"], "Expected different whole numbers"),
        (["recipe=bnn", "seeds=a"], "Expected different whole numbers"),
        (["recipe=bnn", "seeds=1", "seeds=2"], "Expected seeds=<value>, once"),
        (["recipe=bnn", "out="], "Expected out=<value>, once"),
        (["recipe=bnnn"], "Unknown recipe 'bnnn'. Did you mean 'bnn'"),
        (["recipe=baseline"], "recipe=baseline has no technique hook"),
        ([], "No recipe was given"),
    ],
)
def test_a_mistake_is_one_line(capfd, monkeypatch, tmp_path, arguments, line):
    monkeypatch.chdir(tmp_path)
    assert ablate.main(arguments) == 2
    captured = capfd.readouterr()
    assert line in captured.err
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_runs_lie_by_recipe_where_nothing_else_is_said():
    assert ablate.parse(["recipe=[bnn,frozen_mask]"]).out == Path("runs/ablations/bnn+frozen_mask")
    assert ablate.parse(["recipe=bnn", "out=a"]).out == Path("a")


def test_an_ablation_trains_and_shows_what_a_hook_is_worth(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(ablate, "reasons_against", lambda jobs: [None] * len(jobs))
    assert ablate.main(["recipe=bnn", "seeds=1", *SMALL, f"out={tmp_path}/out", "metrics=accuracy"]) == 0
    said = capfd.readouterr().out
    assert "completed   without_bnn_rounding_seed_1" in said
    whole, without = (line for line in said.splitlines() if line.startswith(("whole ", "without ")))
    assert whole.split()[1] == without.split()[2] == "1"
    assert re.search(r"[+-]?0\.\d+, (better in [01] of 1|better in 0 of 1, equal in 1)", without)
