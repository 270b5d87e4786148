"""A hook's part of the config: its constructor's arguments, and what binds it to networks and objectives."""

from __future__ import annotations

import pytest

from hookline.hooks.ema import Ema
from hookline.trainer.errors import UserError
from hookline.trainer.run.build import build_hook
from tests.support.toy import StatelessHook

EMA = {"_target_": "hookline.hooks.ema.Ema", "decay": 0.5}
PROGRESS = {"_target_": "hookline.hooks.monitors.progress.Progress"}


class Own(StatelessHook):
    """A hook that asks for the objective itself."""

    def __init__(self, *, objective: str = "given") -> None:
        """Take a pattern, and do something with it."""
        super().__init__()
        self.objective = f"{objective}_*"


def test_network_and_objective_bind_a_hook() -> None:
    hook = build_hook("slow", {**EMA, "network": "gen*", "objective": "global_*"})
    assert isinstance(hook, Ema)
    assert (hook.name, hook.key, hook.network, hook.objective) == ("slow", "slow", "gen*", "global_*")
    plain = build_hook("ema", EMA)
    assert (plain.network, plain.objective, plain.decay) == ("model", "*", 0.5)
    own = {"_target_": "tests.unit.run.test_build_hook.Own", "objective": "local"}
    assert build_hook("own", own, plugins=("tests",)).objective == "local_*"
    stateless = {"_target_": "tests.support.toy.StatelessHook", "network": "critic"}
    assert build_hook("own", stateless, plugins=("tests",)).network == "critic"


@pytest.mark.parametrize(
    ("name", "node", "message"),
    [
        ("ema@g", EMA, "hooks.ema@g: '@'"),
        ("ema", {**EMA, "objective": 3}, "hooks.ema: objective=3 received"),
        ("ema", {**EMA, "network": ""}, "hooks.ema: network='' received"),
        ("ema", {**EMA, "objectiv": "x"}, "hooks.ema: Unknown argument 'objectiv'"),
        ("progress", {**PROGRESS, "network": "g"}, "hooks.progress: network=g received, but it changes no step"),
        ("sgd", {"_target_": "keras.optimizers.SGD"}, "hooks.sgd: _target_=keras.optimizers.SGD is not allowed here"),
    ],
)
def test_mistake_is_one_line_with_the_key(name, node, message) -> None:
    with pytest.raises(UserError, match=message):
        build_hook(name, node)
