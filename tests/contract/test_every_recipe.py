"""What every recipe must do: run, leave a complete run directory, repeat exactly."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from omegaconf import OmegaConf

from hookline.trainer.run.checkpoint import CheckpointStore
from hookline.trainer.run.results import explain, namespace_of
from tests.support.command import run_small
from tests.support.resumed import check_same, run_cut

CONFIGS = Path(__file__).parents[2] / "configs"
RECIPES = sorted(path.stem for path in (CONFIGS / "recipe").glob("*.yaml"))

STARTED = ("gan", pytest.param("bnn", marks=pytest.mark.long))
"""With two networks, and with one; tests/trainer/run/test_initial_weights.py starts from files, too."""
ABOUT_A_LINE = {"step", "split"}


class FirstRun(NamedTuple):
    recipe: str
    directory: Path
    summary: dict[str, Any]


@pytest.fixture(
    scope="module",
    params=[pytest.param(each, marks=() if each == "center_loss" else pytest.mark.full) for each in RECIPES],
)
def first(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param) / "first"
    return FirstRun(request.param, directory, run_small(request.param, "trainer.placement=device", run_dir=directory))


def test_recipe_leaves_a_complete_run_directory_with_documented_names(first):
    directory, summary = first.directory, first.summary
    for name in ("config.yaml", "overrides.txt", "environment.json", "metrics.jsonl", "summary.json"):
        assert (directory / name).stat().st_size > 0, name
    assert (directory / "checkpoints" / "index.json").exists()
    assert {path.name for path in (directory / "tensorboard").iterdir()} >= {"train", "validation"}
    assert json.loads((directory / "summary.json").read_text()) == json.loads(json.dumps(summary))
    assert OmegaConf.load(directory / "config.yaml").seed == 0
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert {line["split"] for line in lines} == {"train", "validation", "test"}
    assert summary["recipe"] == first.recipe
    assert summary["steps"] == lines[-1]["step"] > 0
    names = {name for line in lines for name in line} - ABOUT_A_LINE
    hooks = OmegaConf.load(directory / "config.yaml").hooks
    objectives = {name.removesuffix("loss/total").rstrip("/") for name in summary["final"] if "loss/total" in name}
    assert objectives
    scopes = {*summary["networks"], *objectives}
    assert [name for name in sorted(names) if namespace_of(name, hooks=hooks, scopes=scopes) is None] == []
    assert {"loss", "metric", "grad_norm", "opt", "time"} <= explain(names, hooks=hooks, scopes=scopes).keys()


@pytest.mark.full
@pytest.mark.parametrize("first", STARTED, indirect=True)
def test_new_run_starts_from_the_weights_of_another(first, tmp_path):
    started = (f"init_from={first.directory}", "optimizer.learning_rate=1e-9")
    again = run_small(first.recipe, *started, run_dir=tmp_path / "again")
    assert again["best"]["value"] == pytest.approx(first.summary["best"]["value"], rel=0.05)
    best, last = (
        CheckpointStore(directory / "checkpoints").load(tag).tensors
        for directory, tag in ((first.directory, "best"), (tmp_path / "again", "last"))
    )
    kernels = [key for key in best if key.startswith("network/") and key.endswith("kernel")]
    assert len({key.split("/")[1] for key in kernels}) == len(first.summary["networks"])
    for key in kernels:
        np.testing.assert_allclose(last[key], best[key], atol=1e-5, err_msg=key)


@pytest.mark.parametrize(
    "first",
    [pytest.param(each, marks=pytest.mark.full if each == "sgan" else pytest.mark.long) for each in RECIPES],
    indirect=True,
)
def test_recipe_repeats_exactly_with_host_placement_and_after_a_cut(first, tmp_path):
    directory, cut = tmp_path / "cut", first.summary["steps"] // 2 + 1
    summary = run_cut(first.recipe, "trainer.placement=host", cuts=[cut], run_dir=directory)
    check_same(directory, summary, first.directory, first.summary)
