"""The norms of gradients before and after hooks: true ones, of the steps that counted, at no price in bits."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from hooks.clip_gradients import ClipGradients
from hooks.monitors.nan_guard import NanGuard
from tests.support.pairs import Fool, Judge, discriminator, generator, pairs_loop
from tests.support.poison import Poison
from tests.support.replicas import trained
from tests.support.toy import (
    FEATURES,
    StatelessHook,
    ToyObjective,
    build_context,
    toy_batch,
    toy_loop,
    toy_network,
    values_of,
)
from trainer.errors import UserError
from trainer.hook import GraphHook
from trainer.network import Network
from trainer.objective import ObjectiveOutput
from trainer.step.gradient_norms import AFTER, BEFORE, SAMPLED_EVERY, GradientNorms, norms_every
from trainer.step.loop import ChunkLoop
from trainer.step.loss_scale import LossScale
from trainer.step.trainer import Trainer

RATE = 0.5


class Times(StatelessHook):
    """Multiply gradients by a number."""

    def __init__(self, name: str, factor: float) -> None:
        super().__init__(name)
        self.factor = factor

    def transform_gradients(self, gradients, context):
        return {name: self.factor * value for name, value in gradients.items()}


def sgd_network(**options: Any) -> Network:
    keras.utils.set_random_seed(0)
    return toy_network(optimizer=keras.optimizers.SGD(RATE), **options)


def loop_of(hooks: Sequence[GraphHook] = (), *, network: Network | None = None, **options: Any) -> ChunkLoop:
    network = network or sgd_network()
    for hook in hooks:
        hook.build(build_context(network))
    return ChunkLoop(Trainer([network], [ToyObjective()], hooks, seed=0, **options), toy_batch, xla=False)


def norms_of(loop: ChunkLoop) -> dict[str, float]:
    return {name: value for name, value in loop.accumulators.read().items() if "grad_norm/" in name}


def moved(hooks: Sequence[GraphHook] = (), steps: int = 1) -> list[float]:
    """Return how far each step of gradient descent moves the weights, over its rate: the norm of what it was given."""
    network, lengths = sgd_network(), []
    loop = toy_loop(hooks, network=network)
    for step in range(steps):
        before = values_of(network)
        loop.run(step, 1)
        after = values_of(network)
        squares = [
            np.square(after[name] - before[name], dtype=np.float64).sum() for name in network.trainable_variables
        ]
        lengths.append(float(np.sqrt(sum(squares)) / RATE))
    return lengths


def named(hook: GraphHook, name: str) -> Any:
    hook.name, hook.network = name, "model"
    return hook


def test_without_hooks_the_norm_is_that_of_what_the_optimizer_gets() -> None:
    loop = loop_of()
    loop.run(0, 1)
    assert norms_of(loop) == {BEFORE: pytest.approx(moved()[0], rel=1e-4)}


def test_each_hook_that_changes_gradients_is_followed_in_order() -> None:
    hooks = [Times("a_thrice", 3.0), named(ClipGradients(limit=0.01), "clip_gradients"), StatelessHook("watches")]
    loop = loop_of(hooks)
    loop.run(0, 1)
    (before,) = moved()
    norms = norms_of(loop)
    assert list(norms) == [BEFORE, f"{AFTER}/a_thrice", f"{AFTER}/clip_gradients", AFTER]
    assert norms[BEFORE] == pytest.approx(before, rel=1e-4)
    assert norms[f"{AFTER}/a_thrice"] == pytest.approx(3.0 * before, rel=1e-4)
    assert norms[f"{AFTER}/clip_gradients"] == norms[AFTER] == pytest.approx(0.01, rel=1e-4)


class Stops(StatelessHook):
    """Give the hidden layer no gradient: zeros for its kernel, nothing for its bias."""

    def frozen(self):
        return {"toy/hidden/bias"}

    def transform_gradients(self, gradients, context):
        zeros = tf.zeros_like(gradients["toy/hidden/kernel"])
        return {**gradients, "toy/hidden/kernel": zeros, "toy/hidden/bias": None}


def test_a_hook_that_stops_gradients_shows_what_is_left() -> None:
    loop = loop_of([Stops("stops")])
    loop.run(0, 1)
    norms, left = norms_of(loop), moved([Stops("stops")])[0]
    assert norms[BEFORE] == pytest.approx(moved()[0], rel=1e-4)
    assert norms[f"{AFTER}/stops"] == norms[AFTER] == pytest.approx(left, rel=1e-4)
    assert 0.0 < left < 0.9 * norms[BEFORE]


def test_a_report_averages_the_sampled_steps() -> None:
    each = moved(steps=7)
    loop = loop_of(norms_every=3)
    loop.run(0, 7)
    assert norms_of(loop)[BEFORE] == pytest.approx(np.mean([each[0], each[3], each[6]]), rel=1e-4)
    loop.accumulators.reset()
    loop.run(7, 2)
    assert norms_of(loop) == {}  # 7 and 8 are no samples
    assert loop.accumulators.read()["loss/total"] > 0.0


@given(st.floats(1.0, 1e4), st.integers(0, 10**6))
@settings(max_examples=60)
def test_every_whole_report_has_a_sample(report_every: float, number: int) -> None:
    every = norms_every(report_every)
    assert 1 <= every <= SAMPLED_EVERY
    start, end = int(np.ceil(number * report_every)), int(np.ceil((number + 1) * report_every))
    assert end - start < every or any(step % every == 0 for step in range(start, end))
    assert end - start >= int(report_every) >= every or every == 1


def test_an_epoch_of_less_than_a_step_is_sampled_at_every_step() -> None:
    assert norms_every(0.3) == 1


@pytest.mark.parametrize("place", ["gradient", "loss"])
def test_a_step_that_was_held_back_is_in_no_average(place: str) -> None:
    hooks = [named(NanGuard(policy="skip"), "nan_guard"), named(Poison(place=place, steps=[1]), "poison")]
    loop = loop_of(hooks)
    assert loop.run(0, 3)[0] == 1
    assert loop.run(2, 2) == (4, [])
    counts = dict(zip(loop.accumulators.names, loop.accumulators.variable.numpy()[:, 1], strict=True))
    norms = norms_of(loop)
    assert counts[BEFORE] == counts[AFTER] == counts["loss/total"] == 3.0
    assert norms[AFTER] == norms[BEFORE]  # NaN changed nothing else
    assert 0.0 < norms[BEFORE] < 10.0


def test_a_step_that_overflows_for_the_scale_is_in_no_average() -> None:
    def batch(step: tf.Tensor) -> dict[str, tf.Tensor]:
        return {**toy_batch(step), "factor": tf.where(step == 1, 1e36, 1.0)}

    class Weighted(ToyObjective):
        def compute(self, forward, batch):
            output = super().compute(forward, batch)
            return ObjectiveOutput({"cross_entropy": batch["factor"] * output.losses["cross_entropy"]})

    scale = LossScale()
    loop = ChunkLoop(Trainer([sgd_network()], [Weighted()], [], seed=0, loss_scale=scale), batch, xla=False)
    assert loop.run(0, 1) == (1, [])
    first = norms_of(loop)
    assert loop.run(1, 1) == (2, [])
    assert int(scale.overflow_steps) == 1
    assert norms_of(loop) == first


def test_the_scale_of_the_loss_is_in_no_norm() -> None:
    loop = loop_of([Times("same", 1.0)], loss_scale=LossScale())
    loop.run(0, 1)
    assert norms_of(loop) == dict.fromkeys([BEFORE, f"{AFTER}/same", AFTER], pytest.approx(moved()[0], rel=1e-4))


def test_micro_batches_have_the_norm_of_the_whole_batch() -> None:
    found = []
    for parts in (1, 4):
        keras.utils.set_random_seed(1)
        inputs = keras.Input((FEATURES,))
        model = keras.Model(inputs, keras.layers.Dense(3, name="logits")(inputs))
        network = Network("model", model, keras.optimizers.SGD(RATE))
        network.optimizer.build(model.trainable_variables)
        loop = loop_of([Times("half", 0.5)], network=network, accumulation_steps=parts)
        loop.run(0, 3)
        found.append(norms_of(loop))
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert found[0][AFTER] == pytest.approx(0.5 * found[0][BEFORE], rel=1e-5)


def test_replicas_have_the_norm_of_the_whole_batch() -> None:
    def network() -> Network:
        inputs = keras.Input((FEATURES,))
        model = keras.Model(inputs, keras.layers.Dense(3, name="logits")(inputs))
        return Network("model", model, keras.optimizers.SGD(RATE))

    (_, one), (_, two) = (
        trained(count, network=network, hooks=lambda network: [Times("half", 0.5)]) for count in (1, 2)
    )
    assert {BEFORE, AFTER} < one.keys()
    assert {name: two[name] for name in one} == pytest.approx(one, rel=1e-5)


def test_each_objective_and_network_has_its_own() -> None:
    networks = [generator("g", keras.optimizers.SGD(RATE)), discriminator("d", keras.optimizers.SGD(RATE))]
    hook = Times("half@g", 0.5)
    hook.network = "g"
    loop = pairs_loop(networks, [Judge("judge", "d", ["g"]), Fool("fool", "g", ["d"])], [hook])
    loop.run(0, 2)
    norms = norms_of(loop)
    assert list(norms) == ["judge/grad_norm/before", *(f"fool/{name}" for name in (BEFORE, f"{AFTER}/half", AFTER))]
    assert norms["fool/grad_norm/after"] == pytest.approx(0.5 * norms["fool/grad_norm/before"], rel=1e-5)


def test_an_objective_of_two_networks_has_a_norm_for_each() -> None:
    class Both(ToyObjective):
        def compute(self, forward, batch):
            total = forward("one", batch["inputs"]) + forward("two", batch["inputs"])
            return ObjectiveOutput({"square": tf.reduce_mean(tf.square(total), axis=-1)})

    objective = Both("one", "both")
    objective.changes = ("one", "two")
    hook = Times("half", 0.5)
    hook.network = "two"
    loop = pairs_loop([toy_network("one"), toy_network("two")], [objective], [hook])
    loop.run(0, 1)
    names = ["one/grad_norm/before", "two/grad_norm/before", "two/grad_norm/after/half", "two/grad_norm/after"]
    assert list(norms_of(loop)) == names


def test_slices_count_as_the_tensor_that_they_stand_for_and_none_as_nothing() -> None:
    slices = tf.IndexedSlices(tf.constant([[3.0, 0.0], [0.0, 4.0], [-3.0, 0.0]]), tf.constant([1, 0, 1]), (5, 2))
    norms = GradientNorms({"model": {"embedding": slices, "bias": None}})
    values, sampled = norms.sample(tf.constant(0, tf.int64), 1)
    assert bool(sampled)
    assert float(values[BEFORE]) == 4.0
    none, _ = GradientNorms({"model": {"bias": None}}).sample(tf.constant(0, tf.int64), 1)
    assert float(none[BEFORE]) == 0.0


@settings(max_examples=25)
@given(st.lists(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=6), min_size=1, max_size=4))
def test_the_norm_is_that_of_all_entries_together(values: list[list[float]]) -> None:
    gradients = {f"v{number}": tf.constant(each, tf.float32) for number, each in enumerate(values)}
    norms, _ = GradientNorms({"model": gradients}).sample(tf.constant(0, tf.int64), 1)
    expected = np.linalg.norm(np.concatenate([np.float64(each) for each in values]))
    assert float(norms[BEFORE]) == pytest.approx(expected, rel=1e-5, abs=1e-18)


def test_what_a_hook_passes_on_is_not_read_again() -> None:
    class Passes(StatelessHook):
        def transform_gradients(self, gradients, context):
            return {**gradients, last: 2.0 * gradients[last]}

    network = sgd_network()
    *_, last = network.trainable_variables
    graphs = [loop_of(hooks, network=network).graph for hooks in ([], [Passes("first"), Passes("second")])]
    plain, passed = (sum(each.type == "L2Loss" for each in graph.get_operations()) for graph in graphs)
    assert passed == plain + 2


@pytest.mark.parametrize("every", [1, 2])
def test_no_bit_of_training_depends_on_the_norms(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = [named(ClipGradients(limit=0.1), "clip_gradients")]
    network = sgd_network(dropout=0.5)
    loop_of(hooks, network=network, norms_every=every).run(0, 5)
    silent = SimpleNamespace(add=lambda *_: None, sample=lambda *_: ({}, tf.constant(True)))
    monkeypatch.setattr("trainer.step.hook_stages.GradientNorms", lambda _: silent)
    without = sgd_network(dropout=0.5)
    loop = loop_of(hooks, network=without, norms_every=every)
    loop.run(0, 5)
    assert norms_of(loop) == {}
    expected = values_of(without)
    assert [name for name, value in values_of(network).items() if value.tobytes() != expected[name].tobytes()] == []


def test_xla_finds_the_same_norms() -> None:
    found = []
    for xla in (False, True):
        trainer = Trainer([sgd_network()], [ToyObjective()], [Times("half", 0.5)], seed=0, norms_every=2)
        loop = ChunkLoop(trainer, toy_batch, xla=xla)
        loop.run(0, 3)
        found.append(norms_of(loop))
    assert found[0] == pytest.approx(found[1], rel=1e-4)


@pytest.mark.parametrize("name", [BEFORE, "loss/total"])
def test_a_measure_under_a_name_of_the_trainers_is_refused(name: str) -> None:
    class Measures(StatelessHook):
        def measure(self, context):
            return {name: tf.constant(1.0)}

    with pytest.raises(UserError, match=f"A hook measures {name}, which the trainer reports. Expected names under"):
        loop_of([Measures()])
