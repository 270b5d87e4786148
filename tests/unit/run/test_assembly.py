"""What a config is assembled to."""

from __future__ import annotations

from trainer.config.command import parse_command
from trainer.config.preflight import preflight
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
