"""A small tree of configs, so that the names listed in messages do not change with every new hook."""

import shutil
from pathlib import Path

import pytest

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
FILES = {
    "hooks/default": "defaults: [progress, checkpoint]\n",
    "hooks/progress": "# Show progress\nprogress:\n  _target_: hookline.hooks.monitors.progress.Progress\n"
    "  every_seconds: 0.5\n",
    "hooks/checkpoint": "checkpoint:\n  _target_: hookline.hooks.monitors.checkpoint.Checkpoint\n  keep_best: true\n"
    "  every: 10\n",
    "hooks/bnn_rounding": "bnn_rounding:\n  _target_: hookline.hooks.bnn_rounding.BnnRounding\n"
    "  layers: .*\n  quantizer: ste_sign\n  clip: 1.0\n  scale: null\n  skip: [first, last]\n",
    "hooks/center_loss": "center_loss:\n  _target_: hookline.hooks.center_loss.CenterLoss\n  weight: 0.01\n",
    "augment/flip": "# Mirror\nflip:\n  _target_: hookline.recipes.augment.translation.Flip\n  probability: 0.5\n",
    "augment/crop": "crop:\n  _target_: hookline.recipes.augment.translation.Crop\n  padding: 4\n  border: reflect\n",
    "augment/both": "# Two\ndefaults: [crop, flip, _self_]\ncrop: {padding: 2}\n",
    "data/digits": "_target_: hookline.recipes.data.digits.digits\ntest_fraction: 0.2\n",
    "data/mnist": "_target_: hookline.recipes.data.keras_dataset.keras_dataset\nname: mnist\npath: null\n",
    "model/mlp": "_target_: hookline.recipes.models.mlp.mlp\nunits: [256, 256]\nactivation: tanh\n",
    "model/cnn": "_target_: hookline.recipes.models.cnn.plain_cnn\nfilters: 32\n",
    "recipe/baseline": "# @package _global_\n# The float twin\ntrainer: {epochs: 60}\n",
    "recipe/bnn": "# @package _global_\n# A binary network\ndefaults: [baseline, /hooks/bnn_rounding, _self_]\n",
    "recipe/prune": "# @package _global_\ndefaults:\n  - _self_\n  - override /model: cnn\ntrainer: {epochs: 5}\n",
}


@pytest.fixture(scope="session")
def tree(tmp_path_factory):
    """The project's root config, trainer, optimizers and schedules, with hooks, data, models and recipes for tests."""
    directory = tmp_path_factory.mktemp("tree") / "configs"
    kept = {"train.yaml", "task", "trainer", "optimizer", "schedule"}
    shutil.copytree(CONFIGS, directory, ignore=lambda path, names: {*names} - kept if Path(path) == CONFIGS else set())
    for name, text in FILES.items():
        path = directory / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return directory
