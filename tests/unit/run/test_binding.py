"""Hooks and networks meet by pattern: one instance for each network that matches."""

from __future__ import annotations

import pytest

from tests.support.toy import StatelessHook, ToyObjective, toy_network
from trainer.errors import UserError
from trainer.hook import HostHook
from trainer.run.binding import bind_hooks

NETWORKS = ("generator_0", "generator_1", "discriminator")


class Watcher(HostHook):
    """A host hook."""

    name = "watcher"

    def state_dict(self) -> dict:
        """Declare no state."""
        return {}


def bound(network: str, objective: str = "*", networks=NETWORKS):
    made = []

    def make(key: str) -> StatelessHook:
        hook = StatelessHook(key)
        hook.network, hook.objective = network, objective
        made.append(hook)
        return hook

    hooks = bind_hooks(
        [make("probe")],
        [toy_network(name) for name in networks],
        [ToyObjective(name, f"train_{name}") for name in networks],
        make,
    )
    assert len({id(hook) for hook in hooks}) == len(hooks)
    return hooks


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("discriminator", {"probe": "discriminator"}),
        ("disc*", {"probe": "discriminator"}),
        ("generator_*", {"probe@generator_0": "generator_0", "probe@generator_1": "generator_1"}),
        ("generator_[1-9]", {"probe": "generator_1"}),
        ("*", {f"probe@{name}": name for name in NETWORKS}),
    ],
)
def test_each_network_that_matches_has_an_instance(pattern, expected) -> None:
    hooks = bound(pattern)
    assert {hook.name: hook.network for hook in hooks} == expected
    assert {hook.key for hook in hooks} == {"probe"}


def test_what_an_instance_reports_is_told_apart_only_where_there_are_several() -> None:
    assert [hook.scope for hook in bound("generator_*")] == ["generator_0/", "generator_1/"]
    assert [hook.scope for hook in bound("discriminator")] == [""]
    assert [hook.scope for hook in bound("*", networks=["model"])] == [""]


def test_host_hooks_stay_as_they_are() -> None:
    watcher = Watcher()
    assert bind_hooks([watcher], [toy_network()], [ToyObjective()], lambda key: watcher) == [watcher]


def test_pattern_that_matches_nothing_is_refused_with_a_suggestion_and_the_networks() -> None:
    with pytest.raises(UserError, match=r"'probe' works on the network 'discriminatr', which matches none\. Did you "):
        bound("discriminatr")
    with pytest.raises(UserError, match=r"hooks\.probe\.network .*generator_0, generator_1, discriminator"):
        bound("critic_*")


def test_objective_leaves_out_networks_that_it_does_not_change() -> None:
    (hook,) = bound("*", "train_disc*")
    assert (hook.name, hook.network) == ("probe", "discriminator")
    assert [hook.network for hook in bound("*", "train_generator_*")] == ["generator_0", "generator_1"]


def test_objective_that_changes_no_such_network_is_refused_with_those_that_do() -> None:
    with pytest.raises(
        UserError,
        match=r"objective 'train_generatr_0', but no such objective changes the network generator_0\. Did you mean "
        r"'train_generator_0'\? Expected hooks\.probe\.objective .*: train_generator_0\.",
    ):
        bound("generator_0", "train_generatr_0")
    with pytest.raises(UserError, match="no such objective changes the networks generator_0, generator_1"):
        bound("generator_*", "train_discriminator")
