"""Every graph hook treats each of two networks as it treats one. A new hook is covered automatically."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest

from hookline.trainer.config.command import parse_command
from hookline.trainer.config.preflight import preflight
from hookline.trainer.errors import UserError
from hookline.trainer.run.blueprint import bind_hooks, from_config
from hookline.trainer.run.build_run import _build_hooks, _prepare_networks, build_run
from hookline.trainer.run.control import own_values
from hookline.trainer.run.results import namespace_of
from hookline.trainer.run.state import trainer_variables
from hookline.trainer.step.context import StepContext, seed_of
from hookline.trainer.step.loop import ChunkLoop
from hookline.trainer.step.trainer import Trainer
from tests.contract.test_every_graph_hook import HOOKS, STEPS, from_catalogue, image_batch, small_network
from tests.support.toy import ToyObjective
from tests.support.two_networks import NAMES, fresh, watching_pair

TWO = ("plugins=[tests]", "task._target_=tests.support.two_networks.two_networks")
MONITOR = ("trainer.monitor=train_generator/metric/accuracy", "trainer.monitor_mode=max")
BATCHES = SimpleNamespace(steps_per_epoch=1.0, batch_size=16)
WITH_STATE = ("bernoulli_attention", "center_loss", "nan_guard")
WITH_STATE_OR_LONG = [pytest.param(each, marks=() if each in WITH_STATE else pytest.mark.long) for each in HOOKS]


def loop_of(name, network, objectives, names=NAMES):
    def make(key):
        hook = from_catalogue(name, network=network)
        rebuild = hook.rebuild_model

        def seeded(model):  # its layers start equal, whichever network comes first
            keras.utils.set_random_seed(7)
            return rebuild(model)

        vars(hook)["rebuild_model"] = seeded
        return hook

    networks = fresh(lambda: small_network().model, names)
    hooks = bind_hooks([make("")], networks, objectives, make)
    _prepare_networks(networks, hooks, None)
    _build_hooks(networks, hooks, BATCHES, STEPS, 0, 3)
    return ChunkLoop(Trainer(networks, objectives, hooks, seed=0), image_batch, xla=False)


def trained(loop):
    assert loop.run(0, STEPS) == (STEPS, [])
    variables = trainer_variables(loop.trainer)
    return {key: np.array(variable) for key, variable in variables.items()}, loop.accumulators.read()


@pytest.fixture
def alike_draws(monkeypatch):
    """Make every draw depend only on the step: its name differs between runs with one network and with two."""
    monkeypatch.setattr(StepContext, "stateless_seed", lambda context, salt: seed_of("any", context.step))


@pytest.mark.parametrize("name", WITH_STATE_OR_LONG)
def test_hook_treats_each_of_two_networks_as_it_treats_one(name, alike_draws):
    loop = loop_of(name, "*", watching_pair()[::-1])
    hooks = loop.trainer.hooks
    assert [hook.name for hook in hooks] == sorted(f"{name}@{network}" for network in NAMES)
    state = [id(variable.handle) for hook in hooks for variable in hook.declare().state.values()]
    assert len({*state}) == len(state)
    both, reported = trained(loop)
    assert all(np.isfinite(value) for value in reported.values())
    scopes = {*NAMES, *(objective.name for objective in loop.trainer.objectives)}
    assert [each for each in reported if namespace_of(each, hooks=[name], scopes=scopes) is None] == []
    for hook in hooks:
        (values,) = own_values(hook, reported, loop.trainer.objectives)
        hook.warning(values)  # finds its measurements under its own names
    network = NAMES[1]  # the one that comes after the other
    alone, values = trained(loop_of(name, network, [ToyObjective(network, f"train_{network}")], [network]))
    for key, value in alone.items():
        of_both = both[key.replace(f"hook/{name}/", f"hook/{name}@{network}/")]
        assert of_both.shape == value.shape
        np.testing.assert_allclose(of_both, value, rtol=1e-4, atol=1e-6, err_msg=key)
    prefix = f"train_{network}/"
    own = {key for key in reported if key.startswith(prefix)}
    assert len(own) == len(values) + 1  # plus the accuracy of the other network
    for key, value in values.items():
        kind = next(each for each in ("loss/", "metric/", "") if key.startswith(each))
        (found,) = {prefix + key, f"{prefix}{kind}{network}/{key.removeprefix(kind)}"} & own
        assert reported[found] == pytest.approx(value, rel=1e-4, abs=1e-6)


def test_wrong_network_or_objective_is_reported():
    short = ("recipe=baseline", "model.units=[4]", "trainer.steps=2", "trainer.epochs=null", *MONITOR, *TWO)
    for override, message in (
        ("hooks.nan_guard.network=generatr", r"'nan_guard' works on the network 'generatr'.* mean 'generator'\?"),
        ("hooks.nan_guard.network=3", "network=3 received"),
        ("hooks.nan_guard.objective=trian_generator", r"objective 'trian_generator'.* mean 'train_generator'\?"),
    ):
        with pytest.raises(UserError, match=message):  # noqa: PT012
            (job,) = preflight(parse_command([*short, override]))
            build_run(from_config(job.config))


def test_hook_reads_the_state_of_the_instance_on_its_own_network():
    hooks = [*((key, network) for key in ("prune", "frozen_mask") for network in NAMES), ("ema", "generator")]
    networks = fresh(lambda: small_network().model)
    built = []
    for key, network in hooks:
        extra = {"masks": "hook", "hook": "prune"} if key == "frozen_mask" else {}
        hook = from_catalogue(key, network=network, **extra)
        hook.name = key if key == "ema" else f"{key}@{network}"
        built.append(hook)
    for each in networks:
        each.optimizer.build(each.model.trainable_variables)
    _build_hooks(networks, built, BATCHES, STEPS, 0, 3)
    masks = {hook.name: {id(v) for k, v in hook.declare().state.items() if "mask/" in k} for hook in built[:2]}
    for hook in built[2:4]:
        followed = {id(variable) for variable in hook._followed.values()}
        assert followed == masks[f"prune@{hook.network}"]
    loop = ChunkLoop(Trainer(networks, watching_pair(), built, seed=0), image_batch, xla=False)
    assert loop.run(0, STEPS) == (STEPS, [])
