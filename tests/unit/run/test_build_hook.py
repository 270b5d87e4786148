"""A hook's part of the config: its constructor's arguments, and what binds it to networks and objectives."""

from __future__ import annotations

import pytest

from hooks.ema import Ema
from tests.support.toy import StatelessHook
from trainer.errors import UserError
from trainer.hook import GraphHook
from trainer.run.build_hook import build_hook, split_binding

PLUGINS = ("tests",)
EMA = {"_target_": "hooks.ema.Ema", "decay": 0.5}
PROGRESS = {"_target_": "hooks.monitors.progress.Progress"}
OWN = {"_target_": "tests.unit.run.test_build_hook.Own"}
PLAIN = {"_target_": "tests.support.toy.StatelessHook"}


class Own(StatelessHook):
    """A hook that asks for the objective itself."""

    def __init__(self, *, objective: str = "given") -> None:
        """Take a pattern, and do something with it."""
        super().__init__()
        self.objective = f"{objective}_*"


def test_objective_binds_a_hook_whose_constructor_does_not_name_it() -> None:
    hook = build_hook("slow", {**EMA, "network": "gen*", "objective": "global_*"})
    assert isinstance(hook, Ema)
    assert (hook.name, hook.key, hook.network, hook.objective) == ("slow", "slow", "gen*", "global_*")
    assert hook.decay == 0.5


def test_network_binds_a_hook_whose_constructor_does_not_name_it() -> None:
    hook = build_hook("own", {**PLAIN, "network": "critic"}, plugins=PLUGINS)
    assert isinstance(hook, GraphHook)
    assert hook.network == "critic"


def test_constructor_that_asks_for_the_objective_gets_it() -> None:
    hook = build_hook("own", {**OWN, "objective": "local"}, plugins=PLUGINS)
    assert isinstance(hook, GraphHook)
    assert hook.objective == "local_*"


def test_without_a_word_every_objective_counts() -> None:
    hook = build_hook("ema", EMA)
    assert isinstance(hook, GraphHook)
    assert (hook.network, hook.objective) == ("model", "*")


def test_binding_is_told_from_arguments() -> None:
    assert split_binding({**EMA, "network": "a", "objective": "b"}) == ({**EMA, "network": "a"}, {"objective": "b"})
    assert split_binding({**OWN, "objective": "b"}, plugins=PLUGINS) == ({**OWN, "objective": "b"}, {})


@pytest.mark.parametrize(
    ("name", "node", "message"),
    [
        ("ema@g", EMA, "hooks.ema@g: '@' stands between a hook and its network"),
        ("ema", {**EMA, "objective": 3}, "hooks.ema: objective=3 received. Expected a name, or a pattern such as"),
        ("ema", {**EMA, "objective": ""}, "hooks.ema: objective='' received"),
        ("ema", {**EMA, "network": ""}, "hooks.ema: network='' received"),
        ("ema", {**EMA, "objectiv": "x"}, "hooks.ema: Unknown argument 'objectiv'"),
        ("progress", {**PROGRESS, "objective": "*"}, r"hooks.progress: objective=\* received, but it changes no step"),
        ("progress", {**PROGRESS, "network": "g"}, "hooks.progress: network=g received, but it changes no step"),
        ("sgd", {"_target_": "keras.optimizers.SGD"}, "hooks.sgd: _target_=keras.optimizers.SGD is not allowed here"),
    ],
)
def test_mistake_is_one_line_with_the_key(name, node, message) -> None:
    with pytest.raises(UserError, match=message):
        build_hook(name, node)
