"""What every recipe must do: run, leave a whole run directory, repeat exactly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tests.support.command import run_small

CONFIGS = Path(__file__).parents[2] / "configs"
RECIPES = sorted(path.stem for path in (CONFIGS / "recipe").glob("*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_leaves_a_whole_run_directory_and_repeats_exactly(recipe: str, tmp_path) -> None:
    first = run_small(recipe, run_dir=tmp_path / "first")
    directory = tmp_path / "first"
    for name in ("config.yaml", "overrides.txt", "environment.json", "metrics.jsonl", "summary.json"):
        assert (directory / name).stat().st_size > 0, name
    assert (directory / "checkpoints" / "index.json").exists()
    assert {path.name for path in (directory / "tensorboard").iterdir()} >= {"train", "validation"}
    assert json.loads((directory / "summary.json").read_text()) == json.loads(json.dumps(first))
    assert OmegaConf.load(directory / "config.yaml").seed == 0
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert {line["split"] for line in lines} == {"train", "validation", "test"}
    assert first["recipe"] == recipe
    assert first["steps"] == lines[-1]["step"] > 0
    second = run_small(recipe, run_dir=tmp_path / "second")
    assert second["test"] == first["test"]
    assert run_small(recipe, "seed=1", run_dir=tmp_path / "third")["final"] != first["final"]


@pytest.mark.parametrize("recipe", RECIPES)
def test_host_placement_gives_the_same_run(recipe: str, tmp_path) -> None:
    device = run_small(recipe, "trainer.placement=device", run_dir=tmp_path / "device")
    host = run_small(recipe, "trainer.placement=host", run_dir=tmp_path / "host")
    totals = [name for name in device["final"] if name.endswith("loss/total")]  # one for each objective
    assert totals
    assert {name: host["final"][name] for name in totals} == {name: device["final"][name] for name in totals}
    assert host["test"] == device["test"]


@pytest.mark.parametrize("recipe", RECIPES)
def test_new_run_starts_from_the_weights_of_another(recipe: str, tmp_path) -> None:
    first = run_small(recipe, run_dir=tmp_path / "first")
    again = run_small(
        recipe, f"init_from={tmp_path / 'first'}", "optimizer.learning_rate=1e-9", run_dir=tmp_path / "again"
    )
    assert again["best"]["value"] == pytest.approx(first["best"]["value"], rel=0.05)
