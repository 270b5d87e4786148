"""Observation: graph hooks see evenly spread examples, in evaluation mode, with the current weights."""

from __future__ import annotations

import numpy as np

from hookline.trainer.hook import GraphHook
from hookline.trainer.input.data import Split
from hookline.trainer.input.source import ArraySource
from hookline.trainer.step.evaluate import Observer
from hookline.trainer.step.trainer import Trainer
from tests.support.toy import SIZE, StatelessHook, ToyObjective, toy_arrays, toy_network, values_of


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
    hook = Watcher("all", 1000)
    watched = observer(network, hook, batch_size=10)
    seen = watched.run(0)["all"]
    inputs, _ = toy_arrays()
    np.testing.assert_array_equal(seen["inputs"], inputs[seen["row"]])
    np.testing.assert_allclose(seen["outputs"], network.model.predict(seen["inputs"], verbose=0), atol=1e-5)
    for name, value in values_of(network).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    kernel = network.trainable_variables["toy/logits/kernel"]
    kernel.assign(kernel.value * 2.0)
    second = watched.run(1)["all"]["outputs"]
    np.testing.assert_allclose(second, 2.0 * seen["outputs"], rtol=1e-5)  # the bias is zero
    assert hook.traces == 1
