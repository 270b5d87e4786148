"""Hooks and networks meet by pattern: one instance for each network that matches."""

from __future__ import annotations

import pytest

from hookline.trainer.errors import UserError
from hookline.trainer.run.build import bind_hooks
from tests.support.toy import StatelessHook, ToyObjective, toy_network

NETWORKS = ("generator_0", "generator_1", "discriminator")


def bound(network: str, objective: str = "*", networks=NETWORKS):
    def make(key: str) -> StatelessHook:
        hook = StatelessHook(key)
        hook.network, hook.objective = network, objective
        return hook

    objectives = [ToyObjective(name, f"train_{name}") for name in networks]
    hooks = bind_hooks([make("probe")], [toy_network(name) for name in networks], objectives, make)
    assert len({id(hook) for hook in hooks}) == len(hooks)
    assert {hook.key for hook in hooks} == {"probe"}
    return [(hook.name, hook.network, hook.scope) for hook in hooks]


def test_each_network_that_matches_has_an_instance() -> None:
    generators = [(f"probe@generator_{index}", f"generator_{index}", f"generator_{index}/") for index in (0, 1)]
    discriminator = [("probe", "discriminator", "")]  # told apart only where there are several
    assert bound("discriminator") == bound("disc*") == bound("*", "train_disc*") == discriminator
    assert bound("generator_*") == bound("*", "train_generator_*") == generators
    assert bound("generator_[1-9]") == [("probe", "generator_1", "")]
    assert len(bound("*")) == 3
    assert bound("*", networks=["model"]) == [("probe", "model", "")]


@pytest.mark.parametrize(
    ("network", "objective", "message"),
    [
        ("discriminatr", "*", r"'probe' .*'discriminatr'.* Did you mean"),
        ("critic_*", "*", r"hooks\.probe\.network .*generator_0, generator_1, discriminator"),
        ("generator_0", "train_generatr_0", r"'train_generatr_0', .* Did you mean 'train_generator_0'"),
        ("generator_*", "train_discriminator", "networks generator_0, generator_1"),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused_with_what_there_is(network, objective, message) -> None:
    with pytest.raises(UserError, match=message):
        bound(network, objective)
