"""Hooks are bound to networks by pattern: one instance for each matching network."""

from hookline.trainer.run.blueprint import bind_hooks, build_hook
from tests.support.refusals import assert_refused
from tests.support.toy import StatelessHook, ToyObjective, toy_network

NETWORKS = ("generator_0", "generator_1", "discriminator")


def bound(network, objective="*", networks=NETWORKS):
    def make(key):
        hook = StatelessHook(key)
        hook.network, hook.objective = network, objective
        return hook

    objectives = [ToyObjective(name, f"train_{name}") for name in networks]
    hooks = bind_hooks([make("probe")], [toy_network(name) for name in networks], objectives, make)
    assert len({id(hook) for hook in hooks}) == len(hooks)
    assert {hook.key for hook in hooks} == {"probe"}
    return [(hook.name, hook.network, hook.scope) for hook in hooks]


def test_each_matching_network_gets_a_hook_instance():
    generators = [(f"probe@generator_{index}", f"generator_{index}", f"generator_{index}/") for index in (0, 1)]
    discriminator = [("probe", "discriminator", "")]  # the name contains the network only if there are several
    assert bound("discriminator") == bound("*", "train_disc*") == discriminator
    assert bound("generator_*") == bound("*", "train_generator_*") == generators
    assert bound("*", networks=["model"]) == [("probe", "model", "")]
    assert_refused(r"'train_generatr_0', .* Did you mean 'train_generator_0'", bound, "generator_0", "train_generatr_0")
    assert_refused("network generator_0 or generator_1", bound, "generator_*", "train_discriminator")


EMA = {"_target_": "hookline.hooks.ema.Ema", "decay": 0.5}
PROGRESS = {"_target_": "hookline.hooks.monitors.progress.Progress"}


def test_invalid_hook_options_are_refused_with_their_key():
    for name, node, message in (
        ("ema@g", EMA, "hooks.ema@g: '@'"),
        ("ema", {**EMA, "objective": 3}, "hooks.ema: objective=3 received"),
        ("ema", {**EMA, "network": ""}, "hooks.ema: network='' received"),
        ("progress", {**PROGRESS, "network": "g"}, "hooks.progress: network=g received, but it changes no step"),
    ):
        assert_refused(message, build_hook, name, node)
