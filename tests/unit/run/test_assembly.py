"""What a config is assembled to."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from trainer.config.command import parse_command
from trainer.config.preflight import preflight
from trainer.errors import UserError
from trainer.run.assembly import assemble
from trainer.run.session import prepare


def test_a_hook_of_both_kinds_is_called_once_and_the_latest_promise_counts():
    overrides = ("recipe=baseline", "model.units=[4]", "trainer.compile=off", "trainer.epochs=2", "+hooks=center_loss")
    (job,) = preflight(parse_command((*overrides, "hooks.center_loss.warm_up_epochs=1")))
    parts = prepare(job.config)
    names = [hook.name for hook in parts.hooks]
    assert names.count("nan_guard") == 1
    assert sorted(names) == sorted(job.config["hooks"])
    assert {"fused_batch_norm", "nan_guard", "center_loss"} == {hook.name for hook in parts.trainer.hooks}
    assert "nan_guard" in {hook.name for hook in parts.host_hooks}
    assert parts.settled_at == 20
    assert parts.total_steps == 40


def test_a_recipe_may_ask_for_another_rate_and_for_several_updates():
    """The schedule of a network that makes three updates in a step ends with the run, not after a third of it."""
    overrides = ["recipe=gan", "trainer.epochs=null", "trainer.steps=10", "trainer.batch_size=30", "model.units=[4]"]
    overrides += ["optimizer.learning_rate=0.1", "task.discriminator_learning_rate=0.5", "task.discriminator_updates=3"]
    (job,) = preflight(parse_command([*overrides, "trainer.compile=off", "data.examples=1000"]))
    networks = assemble(job.config).trainer.networks

    def rate(name, iterations):
        networks[name].optimizer.iterations.assign(iterations)
        return float(networks[name].optimizer.learning_rate)

    assert rate("generator", 0) == pytest.approx(0.1)
    assert rate("discriminator", 0) == rate("discriminator", 2) == pytest.approx(0.5)
    for step in (1, 5, 9):
        assert rate("discriminator", 3 * step) == pytest.approx(5.0 * rate("generator", step), rel=1e-5)
    assert rate("discriminator", 29) > 0.0


SMALL = ("recipe=baseline", "model.units=[4]", "trainer.compile=off", "trainer.epochs=1")


def test_classes_weigh_and_come_as_the_config_says():
    (job,) = preflight(parse_command((*SMALL, "trainer.class_weights={3:2.5}", "trainer.class_sampling={3:0.5}")))
    parts = assemble(job.config)
    assert parts.trainer.class_weights.numpy().tolist() == [2.5 if label == 3 else 1.0 for label in range(10)]
    batches = [parts.training.batch(tf.constant(step, tf.int64))["targets"] for step in range(19)]
    assert np.mean(np.concatenate(batches) == 3) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("recipe=baseline", "trainer.class_weights={10:2}"), "class_weights names class 10, which the data has not"),
        (("recipe=retrieval", "trainer.class_weights={1:2}"), "no loss of 'retrieval' is one for each example"),
    ],
)
def test_weights_that_nothing_could_follow_are_refused(overrides, message):
    (job,) = preflight(parse_command((*overrides, "model.units=[4]", "trainer.compile=off", "trainer.epochs=1")))
    with pytest.raises(UserError, match=message):
        assemble(job.config)
