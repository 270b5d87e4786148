"""What a config is assembled to."""

from __future__ import annotations

import pytest

from trainer.config.command import parse_command
from trainer.config.preflight import preflight
from trainer.run.assembly import assemble
from trainer.run.session import prepare


def test_a_hook_of_both_kinds_is_called_once_and_the_latest_promise_counts():
    overrides = ("recipe=baseline", "model.units=[4]", "trainer.compile=off", "trainer.epochs=2", "+hooks=center_loss")
    (job,) = preflight(parse_command((*overrides, "hooks.center_loss.warm_up_epochs=1")))
    parts = prepare(job.config)
    names = [hook.name for hook in parts.hooks]
    assert names.count("nan_guard") == 1
    assert sorted(names) == sorted(job.config["hooks"])
    assert {"nan_guard", "center_loss"} == {hook.name for hook in parts.trainer.hooks}
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
