"""What the HPARAMS tab is told of a run."""

from __future__ import annotations

import pytest

from hookline.hooks.monitors.dashboard.hyperparameters import hyperparameters, reached_values
from hookline.trainer.config.command import Command
from hookline.trainer.config.preflight import preflight


def of(*overrides):
    (job,) = preflight(Command(overrides))
    return hyperparameters(job.recipe, job.config, job.overrides)


def test_every_run_shows_what_tells_most_runs_apart():
    usual = {"recipe": "baseline", "hooks": "none", "data": "digits", "model": "mlp", "optimizer": "Adam"}
    numbers = {"learning_rate": 0.003, "batch_size": 64, "epochs": 100, "seed": 3}
    assert of("recipe=baseline", "seed=3") == {**usual, "schedule": "cosine", **numbers}
    few = {"optimizer": {"learning_rate": 1.0}, "trainer": {"epochs": None}}
    assert hyperparameters("mine", few, []) == {"recipe": "mine", "hooks": "none", "learning_rate": 1.0}
    own = {"hooks": {"noise": {"_target_": "my_hooks.Noise", "stddev": 0.1}}}
    assert hyperparameters("a", own, []) == {"recipe": "a", "hooks": "noise", "hooks.noise.stddev": 0.1}


def test_what_was_changed_is_shown_but_not_where_the_run_lies():
    changed = ("hooks.prune.final_sparsity={dense_1: 0.9}", "model.units=[8,8]", "optimizer.learning_rate=0.1")
    other = ("run_dir=elsewhere", "+augment=flip", "debug=true", "optimizer._target_=keras.optimizers.AdamW")
    found = of("recipe=frozen_mask", "hooks.early_stopping.patience=3", *changed, *other)
    expected = {"hooks": "frozen_mask prune", "hooks.frozen_mask.hook": "prune", "optimizer": "AdamW"}
    expected |= {"hooks.prune.final_sparsity.dense_1": 0.9, "model.units": "[8,8]", "learning_rate": 0.1}
    assert found.items() >= {**expected, "hooks.early_stopping.patience": 3}.items()
    assert not {"run_dir", "debug", "optimizer.learning_rate", "optimizer._target_", "model.dropout"} & set(found)
    assert all(isinstance(value, bool | int | float | str) for value in found.values())


def test_best_values_and_those_of_the_test_are_what_a_run_reached(summary):
    best = {"summary/best_validation/accuracy": 0.9703, "summary/best_validation/loss": 0.1334}
    assert reached_values(summary) == pytest.approx(
        {**best, "summary/test/accuracy": 0.9722, "summary/test/loss": 0.1111}
    )
    assert reached_values({"status": "failed", "final": {"metric/accuracy": 1.0}, "best": {}, "test": {}}) == {}
