"""Observation: graph hooks see evenly spread examples, in evaluation mode, with the weights of now."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.support.toy import SIZE, StatelessHook, ToyObjective, toy_arrays, toy_network, values_of
from trainer.hook import GraphHook
from trainer.input.data import Split
from trainer.input.source import ArraySource
from trainer.step.observe import Observer
from trainer.step.trainer import Trainer


class Watcher(StatelessHook):
    """Observe the outputs, the inputs and the rows."""

    def __init__(self, name: str, examples: int) -> None:
        super().__init__(name)
        self.observed_examples = examples
        self.traces = 0

    def observe(self, context):
        self.traces += 1
        assert not context.training
        return {"outputs": context.outputs, "inputs": context.batch["inputs"], "row": context.batch["index"]}


def split() -> Split:
    inputs, targets = toy_arrays()
    source = ArraySource({"inputs": inputs, "targets": targets}, lambda batch: batch)
    return Split("validation", source, np.arange(SIZE, dtype=np.int64)[::-1].copy())


def observer(network, *hooks: GraphHook, batch_size: int = 16, objectives=()) -> Observer:
    networks = network if isinstance(network, list) else [network]
    trainer = Trainer(networks, objectives or [ToyObjective()], hooks, seed=0)
    return Observer(trainer, split(), batch_size=batch_size)


def test_each_hook_sees_its_number_of_examples_spread_over_the_split() -> None:
    network = toy_network(dropout=0.5)
    observed = observer(network, Watcher("few", 4), Watcher("many", 50), Watcher("none", 0)).run(3)
    assert observed.keys() == {"few", "many"}
    assert observed["few"]["row"].tolist() == [63, 42, 21, 0]
    many = observed["many"]["row"]
    np.testing.assert_array_equal(many, np.linspace(63, 0, 50).round())
    assert len(set(many)) == 50
    assert observed["many"]["outputs"].shape == (50, 3)


def test_examples_and_outputs_belong_together_and_nothing_is_changed() -> None:
    network = toy_network(dropout=0.5)
    before = values_of(network)
    seen = observer(network, Watcher("all", 1000), batch_size=10).run(0)["all"]
    inputs, _ = toy_arrays()
    np.testing.assert_array_equal(seen["inputs"], inputs[seen["row"]])
    np.testing.assert_allclose(seen["outputs"], network.model.predict(seen["inputs"], verbose=0), atol=1e-5)
    for name, value in values_of(network).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_the_weights_of_now_are_used_and_the_trace_is_made_once() -> None:
    network, hook = toy_network(), Watcher("watch", 2)
    watched = observer(network, hook)
    assert hook.traces == 0
    first = watched.run(0)["watch"]["outputs"]
    kernel = network.trainable_variables["toy/logits/kernel"]
    kernel.assign(kernel.value * 2.0)
    second = watched.run(1)["watch"]["outputs"]
    np.testing.assert_allclose(second, 2.0 * first, rtol=1e-5)  # the bias is zero
    assert hook.traces == 1


def test_an_error_in_observe_names_the_hook() -> None:
    class Broken(Watcher):
        def observe(self, context):
            raise KeyError("features")

    with pytest.raises(KeyError) as caught:
        observer(toy_network(), Broken("broken", 1)).run(0)
    assert any("broken" in note and "observe" in note for note in caught.value.__notes__)


def test_hooks_see_the_batch_at_hand_while_losses_are_added() -> None:
    class Sum(StatelessHook):
        def add_losses(self, context):
            return {"first_input": context.batch["inputs"][:, 0]}

    class Losses(Watcher):
        def observe(self, context):
            return {"loss": tf.fill(tf.shape(context.batch["index"]), context.losses["first_input"])}

    network = toy_network()
    seen = observer(network, Sum("sum"), Losses("losses", 1000), batch_size=SIZE).run(0)["losses"]["loss"]
    assert seen[0] == pytest.approx(toy_arrays()[0][:, 0].mean(), abs=1e-6)


def test_each_hook_sees_its_network_in_the_first_objective_that_changes_it() -> None:
    class Objectives(Watcher):
        def observe(self, context):
            shape = tf.shape(context.batch["index"])
            return {**super().observe(context), "first": tf.fill(shape, context.objective == self.expected)}

    networks = [toy_network("a"), toy_network("b")]
    networks[0].shared = True
    objectives = [ToyObjective("a", "one"), ToyObjective("b", "two"), ToyObjective("a", "three")]
    hooks = [Objectives("of_a", 4), Objectives("of_b", 4)]
    for hook, network, expected in zip(hooks, "ab", ("one", "two"), strict=True):
        hook.network, hook.expected = network, expected
    observed = observer(networks, *hooks, objectives=objectives).run(0)
    for hook, network in zip(hooks, networks, strict=True):
        seen = observed[hook.name]
        assert hook.traces == 1
        assert seen["first"].all()
        np.testing.assert_allclose(seen["outputs"], network.model.predict(seen["inputs"], verbose=0), atol=1e-5)
