"""Evaluation: exact averages, the hooks' weights, no variable changed."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.hook import Evaluated
from hookline.trainer.input.batches import EvaluationBatches
from hookline.trainer.input.data import ArraySource, Split
from hookline.trainer.step.evaluate import Evaluator, Observer
from hookline.trainer.step.trainer import Trainer
from tests.support.toy import SIZE, StatelessHook, ToyObjective, toy_arrays, toy_network, values_of


def split_of(rows):
    inputs, targets = toy_arrays()
    return Split("validation", ArraySource({"inputs": inputs, "targets": targets}, lambda batch: batch), rows)


def batches(size):
    made = EvaluationBatches(split_of(np.arange(SIZE)), batch_size=size)
    return made.batch, made.count


class Collecting(ToyObjective):
    def compute(self, forward, batch):
        output = super().compute(forward, batch)
        output.collected = {"first": batch["inputs"][:, 0], "logits": output.outputs}
        return output

    def split_metrics(self, collected):
        return {"median": tf.sort(collected["first"])[tf.shape(collected["first"])[0] // 2]}


class Marks(StatelessHook):
    def add_losses(self, context):
        return {"first_input": context.batch["inputs"][:, 0]}

    def evaluate(self, context):
        assert not context.training
        assert not context.observing
        first = context.batch["inputs"][:, 0]
        metrics = {"first": first, "step": tf.cast(context.step, tf.float32), "of_batch": tf.reduce_mean(first)}
        return Evaluated(metrics, {"mine": first}, self.of_split)

    def of_split(self, collected):
        median = tf.sort(collected["mine"])[tf.shape(collected["mine"])[0] // 2]
        return {f"{self.name}_median": median, f"{self.name}_many": tf.shape(collected["mine"])[0] > 60}


@pytest.mark.parametrize("size", [10, SIZE])
def test_averages_and_collected_values_are_exact_for_any_batch_size(size):
    network = toy_network(dropout=0.5)
    network.model.get_layer("hidden").activity_regularizer = keras.regularizers.L2(0.01)
    hooks = [Marks("objective"), StatelessHook("silent")]  # a hook may have the name of an objective
    evaluator = Evaluator(Trainer([network], [Collecting()], hooks, seed=0), *batches(size))
    assert evaluator.collected("objective") == {}
    before = values_of(network)
    values = evaluator.run(7)
    inputs, targets = toy_arrays()
    logits = network.model(inputs).numpy()
    collected, mean, median = evaluator.collected("objective"), inputs[:, 0].mean(), np.sort(inputs[:, 0])[SIZE // 2]
    assert collected.keys() == {"first", "logits"}
    np.testing.assert_array_equal(collected["first"], inputs[:, 0])
    np.testing.assert_allclose(collected["logits"], logits, atol=1e-5)
    expected = {
        "loss/first_input": mean,
        "loss/layers_model": 0.01 * np.sum(np.square(network.model.get_layer("hidden")(inputs))) / SIZE,
        "metric/first": mean,
        "metric/step": 7.0,
        "metric/of_batch": mean,
        "metric/accuracy": np.mean(logits.argmax(-1) == targets),
    }
    expected |= {"metric/median": median, "metric/objective_median": median, "metric/objective_many": 1.0}
    assert {name: values[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert values.keys() == {*evaluator.names} == {*expected, "loss/cross_entropy", "loss/total"}
    np.testing.assert_equal(values_of(network), before)
    alone = Evaluator(Trainer([network], [ToyObjective()], [], seed=0), *batches(size)).run(7)
    assert alone == pytest.approx({name: values[name] for name in alone} | {"loss/total": values["loss/total"] - mean})


class Watcher(StatelessHook):
    def __init__(self, name, examples):
        super().__init__(name)
        self.observed_examples = examples
        self.traces = 0

    def evaluate(self, context):
        self.traces += 1
        assert context.observing
        assert not context.training
        inputs, row = context.batch["inputs"], context.batch["index"]
        return Evaluated(collected={"outputs": context.outputs, "inputs": inputs, "row": row})


def test_each_hook_observes_examples_spread_over_the_split():
    network, all_seen = toy_network(dropout=0.5), Watcher("all", 1000)
    before = values_of(network)
    hooks = [Watcher("few", 4), Watcher("many", 50), Watcher("none", 0), all_seen]
    inputs, split = toy_arrays()[0], split_of(np.arange(SIZE)[::-1].copy())
    observer = Observer(Trainer([network], [ToyObjective()], hooks, seed=0), split, batch_size=10)
    observed = observer.run(3)
    assert observed.keys() == {"few", "many", "all"}
    assert observed["few"]["row"].tolist() == [63, 42, 21, 0]
    many = observed["many"]["row"]
    np.testing.assert_array_equal(many, np.linspace(63, 0, 50).round())
    assert len(set(many)) == 50
    seen = observed["all"]
    np.testing.assert_array_equal(seen["inputs"], inputs[seen["row"]])
    np.testing.assert_allclose(seen["outputs"], network.model(seen["inputs"]), atol=1e-5)
    np.testing.assert_equal(values_of(network), before)
    kernel = network.trainable_variables["toy/logits/kernel"]
    kernel.assign(kernel.value * 2.0)
    second = observer.run(4)["all"]["outputs"]
    np.testing.assert_allclose(second, 2.0 * seen["outputs"], rtol=1e-5)  # the bias is zero
    assert all_seen.traces == 1
