"""Histograms computed on the host, and what the HPARAMS tab shows."""

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.plugins.histogram import summary_v2
from tensorboard.util import tensor_util

from hookline.hooks.monitors.records import histogram, histogram_summary, hyperparameters, reached_values
from hookline.trainer.config.command import Command
from hookline.trainer.config.preflight import preflight


def test_histogram_matches_tensorboard() -> None:
    for values in (np.random.default_rng(0).normal(size=1000), np.full(7, 0.25), np.array([-1.0, 1.0])):
        (value,) = summary_v2.histogram_pb("weights", values).value
        np.testing.assert_allclose(histogram(values), tensor_util.make_ndarray(value.tensor), atol=1e-12)
    (value,) = histogram_summary({"weights/dense": np.ones([2, 3])}).value
    assert (value.tag, value.metadata.plugin_data.plugin_name) == ("weights/dense", "histograms")


def test_histogram_skips_nonfinite_values_and_accepts_other_dtypes() -> None:
    parts = histogram(np.array([np.nan, 1.0, np.inf, 2.0, -np.inf]))
    assert (parts[:, 2].sum(), parts[0, 0], parts[-1, 1]) == (2, 1.0, 2.0)
    assert histogram(np.full(3, np.nan)).shape == histogram(np.zeros([0])).shape == (0, 3)
    for dtype in (tf.bfloat16, tf.float16, tf.int8, tf.bool):
        parts = histogram(tf.cast(tf.constant([0, 0, 1]), dtype).numpy())
        assert (parts[0, 2], parts[-1, 2]) == (2, 1)
    assert histogram(np.full(100, 60_000.0, np.float16))[-1].tolist() == [60_000.0, 60_000.0, 100.0]
    for ends in ([1.0, np.nextafter(np.float32(1.0), np.float32(2.0))], [-3e38, 3e38]):
        parts = histogram(np.array(ends, np.float32))
        assert (parts[0, 2], parts[-1, 2]) == (1, 1)


def of(*overrides):
    (job,) = preflight(Command(overrides))
    return hyperparameters(job.recipe, job.config, job.overrides)


def test_every_run_shows_the_usual_hyperparameters():
    usual = {"recipe": "baseline", "hooks": "none", "data": "digits", "model": "mlp", "optimizer": "Adam"}
    numbers = {"learning_rate": 0.003, "batch_size": 64, "epochs": 100, "seed": 3}
    assert of("recipe=baseline", "seed=3") == {**usual, "schedule": "cosine", **numbers}
    few = {"optimizer": {"learning_rate": 1.0}, "trainer": {"epochs": None}}
    assert hyperparameters("mine", few, []) == {"recipe": "mine", "hooks": "none", "learning_rate": 1.0}
    own = {"hooks": {"noise": {"_target_": "my_hooks.Noise", "stddev": 0.1}}}
    assert hyperparameters("a", own, []) == {"recipe": "a", "hooks": "noise", "hooks.noise.stddev": 0.1}


def test_overrides_are_shown_except_run_dir_and_debug():
    changed = ("hooks.prune.final_sparsity={dense_1: 0.9}", "model.units=[8,8]", "optimizer.learning_rate=0.1")
    other = ("run_dir=elsewhere", "+augment=flip", "debug=true", "optimizer._target_=keras.optimizers.AdamW")
    found = of("recipe=frozen_mask", "hooks.early_stopping.patience=3", *changed, *other)
    expected = {"hooks": "frozen_mask prune", "hooks.frozen_mask.hook": "prune", "optimizer": "AdamW"}
    expected |= {"hooks.prune.final_sparsity.dense_1": 0.9, "model.units": "[8,8]", "learning_rate": 0.1}
    assert found.items() >= {**expected, "hooks.early_stopping.patience": 3}.items()
    assert not {"run_dir", "debug", "optimizer.learning_rate", "optimizer._target_", "model.dropout"} & set(found)
    assert all(isinstance(value, bool | int | float | str) for value in found.values())


def test_reached_values_are_the_best_validation_and_test_values(summary):
    best = {"summary/best_validation/accuracy": 0.9703, "summary/best_validation/loss": 0.1334}
    assert reached_values(summary) == pytest.approx(
        {**best, "summary/test/accuracy": 0.9722, "summary/test/loss": 0.1111}
    )
    assert reached_values({"status": "failed", "final": {"metric/accuracy": 1.0}, "best": {}, "test": {}}) == {}
