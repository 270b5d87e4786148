"""What is built from a config."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.config.command import parse_command
from hookline.trainer.config.preflight import preflight
from hookline.trainer.run import build_run as module
from hookline.trainer.run.blueprint import from_config
from tests.support.refusals import assert_refused

SMALL = ("model.units=[4]", "trainer.compile=off")


def config_of(recipe, *overrides, epochs="2"):
    (job,) = preflight(parse_command((f"recipe={recipe}", *SMALL, f"trainer.epochs={epochs}", *overrides)))
    return job.config


def built(recipe, *overrides, epochs="2"):
    """Return a run whose step is not traced."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_trace_loop", lambda trainers, *_: SimpleNamespace(trainer=trainers[0]))
        return module.build_run(from_config(config_of(recipe, *overrides, epochs=epochs)))


def test_hook_of_both_kinds_is_built_once():
    given = ("+hooks=center_loss", "hooks.center_loss.warm_up_epochs=1")
    parts = built("baseline", *given)
    assert sorted(hook.name for hook in parts.hooks) == sorted(config_of("baseline", *given)["hooks"])
    assert {hook.name for hook in parts.trainer.hooks} == {"fused_batch_norm", "nan_guard", "center_loss"}
    assert "nan_guard" in {hook.name for hook in parts.host_hooks}
    assert (parts.best.since, parts.total_steps) == (20, 40)


def test_augmentations_use_the_scale_of_the_data(tmp_path):
    images = np.full((60, 4, 4), 255, np.uint8)
    np.savez(tmp_path / "own.npz", inputs=images, targets=np.arange(60) % 3)
    own = ("data=arrays", f"data.path={tmp_path}/own.npz", "data.scale=unit", "trainer.batch_size=8")
    made = built("baseline", *own, "+augment=shift", "augment.shift.share=0.5").training.batch(tf.constant(0, tf.int64))
    assert set(np.unique(made["inputs"])) == {0.0, 1.0}


def test_recipe_may_set_another_rate_and_several_updates_per_step():
    """The schedule of a network with three updates per step ends with the run, not after a third of it."""
    rates = ("optimizer.learning_rate=0.1", "task.discriminator_learning_rate=0.5", "task.discriminator_updates=3")
    length = ("trainer.steps=10", "trainer.batch_size=30", "data.examples=1000")
    networks = built("gan", *rates, *length, epochs="null").trainer.networks

    def rate(name, iterations):
        networks[name].optimizer.iterations.assign(iterations)
        return float(networks[name].optimizer.learning_rate)

    assert rate("generator", 0) == pytest.approx(0.1)
    assert rate("discriminator", 0) == rate("discriminator", 2) == pytest.approx(0.5)
    for step in (1, 5, 9):
        assert rate("discriminator", 3 * step) == pytest.approx(5.0 * rate("generator", step), rel=1e-5)
    assert rate("discriminator", 29) > 0.0


def test_learning_rate_may_be_an_integer():
    given = ("optimizer=sgd", "optimizer.learning_rate=3", "optimizer.momentum=0", "optimizer.nesterov=false")
    optimizer = built("baseline", *given, "schedule=exponential").trainer.networks["model"].optimizer
    optimizer.iterations.assign(20)  # the middle, where 3 has decayed to 3 * 0.01 ** 0.5
    assert float(optimizer.learning_rate) == pytest.approx(0.3, rel=1e-3)


def test_class_weights_and_sampling_follow_the_config():
    parts = built("baseline", "trainer.class_weights={3:2.5}", "trainer.class_sampling={3:0.5}")
    assert parts.trainer.class_weights.numpy().tolist() == [2.5 if label == 3 else 1.0 for label in range(10)]
    batches = [parts.training.batch(tf.constant(step, tf.int64))["targets"] for step in range(19)]
    assert np.mean(np.concatenate(batches) == 3) == pytest.approx(0.5, abs=0.02)
    for recipe, weights, message in (("baseline", "{10:2}", "names class 10"), ("retrieval", "{1:2}", "'retrieval'")):
        assert_refused(message, built, recipe, f"trainer.class_weights={weights}")


def test_class_weights_use_training_labels_and_evaluation_is_not_augmented():
    plain, augmented = (
        built("baseline", "trainer.class_weights=balanced", *more) for more in ((), ("+augment=noise",))
    )
    labels = plain.training.split.labels
    expected = len(labels) / (10 * np.bincount(labels))
    np.testing.assert_allclose(plain.trainer.class_weights.numpy(), expected, rtol=1e-5)
    for network, other in zip(plain.trainer.networks.values(), augmented.trainer.networks.values(), strict=True):
        other.model.set_weights(network.model.get_weights())
    assert augmented.training.augmentation is not None
    assert augmented.held_out["validation"].run(3) == plain.held_out["validation"].run(3)
