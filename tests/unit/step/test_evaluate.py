"""Evaluation: exact averages, the hooks' weights, no variable changed."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.support.toy import SIZE, StatelessHook, ToyObjective, toy_arrays, toy_loop, toy_network, values_of
from trainer.errors import UserError
from trainer.step.evaluate import Evaluator
from trainer.step.trainer import Trainer


def batches(size: int):
    """Return a batch function over the first `SIZE` rows, the last batch padded, and the number of batches."""
    inputs, targets = toy_arrays()

    def batch(index: tf.Tensor):
        rows = index * size + tf.range(size, dtype=tf.int64)
        weights = tf.cast(rows < SIZE, tf.float32)
        rows = tf.minimum(rows, SIZE - 1)
        return {"inputs": tf.gather(inputs, rows), "targets": tf.gather(targets, rows), "weights": weights}

    return batch, -(-SIZE // size)


def by_hand(network) -> float:
    inputs, targets = toy_arrays()
    return float(np.mean(np.argmax(network.model.predict(inputs, verbose=0), -1) == targets))


@pytest.mark.parametrize("size", [1, 10, 64, 100])
def test_every_example_counts_once_for_any_batch_size(size: int) -> None:
    network = toy_network(dropout=0.5)
    evaluator = Evaluator(Trainer([network], [ToyObjective()], [], seed=0), *batches(size))
    before = values_of(network)
    values = evaluator.run(0)
    assert set(values) == set(evaluator.names) == {"loss/cross_entropy", "loss/total", "metric/accuracy"}
    assert values["metric/accuracy"] == pytest.approx(by_hand(network), abs=1e-6)
    for name, value in values_of(network).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_evaluation_uses_the_hooks_weights_and_the_variables_of_now() -> None:
    class Negate(StatelessHook):
        def transform_weights(self, weights, context):
            assert not context.training
            return {n: -w if n == "toy/logits/kernel" else w for n, w in weights.items()}

    network = toy_network()
    evaluator = Evaluator(Trainer([network], [ToyObjective()], [Negate()], seed=0), *batches(16))
    kernel = network.trainable_variables["toy/logits/kernel"]
    plain = by_hand(network)
    kernel.assign(-kernel.value)  # the hook turns it back
    assert evaluator.run(0)["metric/accuracy"] == pytest.approx(plain, abs=1e-6)
    assert by_hand(network) != plain


def test_hooks_do_not_change_evaluation_batches() -> None:
    class Zero(StatelessHook):
        def transform_batch(self, batch, context):
            return {**batch, "inputs": tf.zeros_like(batch["inputs"])}

    network = toy_network()
    evaluator = Evaluator(Trainer([network], [ToyObjective()], [Zero()], seed=0), *batches(16))
    assert evaluator.run(0)["metric/accuracy"] == pytest.approx(by_hand(network), abs=1e-6)


class Collecting(ToyObjective):
    """Keep rows and logits of the split; measure something that no average gives."""

    def compute(self, forward, batch):
        output = super().compute(forward, batch)
        output.collected = {"first": batch["inputs"][:, 0], "logits": output.outputs}
        return output

    def split_metrics(self, collected):
        return {"median": tf.sort(collected["first"])[tf.shape(collected["first"])[0] // 2]}


@pytest.mark.parametrize("size", [1, 10, 64, 100])
def test_what_an_objective_collects_is_the_whole_split_in_order_without_padding(size: int) -> None:
    network = toy_network()
    evaluator = Evaluator(Trainer([network], [Collecting()], [], seed=0), *batches(size))
    assert evaluator.collected("objective") == {}
    values = evaluator.run(0)
    inputs, _ = toy_arrays()
    collected = evaluator.collected("objective")
    np.testing.assert_array_equal(collected["first"], inputs[:, 0])
    np.testing.assert_allclose(collected["logits"], network.model.predict(inputs, verbose=0), atol=1e-5)
    assert values["metric/median"] == pytest.approx(np.sort(inputs[:, 0])[SIZE // 2])
    assert values["metric/accuracy"] == pytest.approx(by_hand(network), abs=1e-6)


def test_several_objectives_collect_apart() -> None:
    first, second = toy_network("a"), toy_network("b")
    objectives = [Collecting("a", "one"), Collecting("b", "two")]
    evaluator = Evaluator(Trainer([first, second], objectives, [], seed=0), *batches(16))
    values = evaluator.run(0)
    assert {"one/metric/median", "two/metric/median"} <= set(values)
    for name, network in (("one", first), ("two", second)):
        expected = network.model.predict(toy_arrays()[0], verbose=0)
        np.testing.assert_allclose(evaluator.collected(name)["logits"], expected, atol=1e-5)


def test_a_hook_that_adds_a_loss_sees_every_batch_of_the_evaluation() -> None:
    class FirstInput(StatelessHook):
        def add_losses(self, context):
            return {"first_input": context.batch["inputs"][:, 0]}

    evaluator = Evaluator(Trainer([toy_network()], [ToyObjective()], [FirstInput()], seed=0), *batches(10))
    assert evaluator.run(0)["loss/first_input"] == pytest.approx(toy_arrays()[0][:, 0].mean(), abs=1e-6)


class Marks(StatelessHook):
    """Measure the first feature of each example, in evaluations."""

    def __init__(self, name: str = "first") -> None:
        super().__init__(name)

    def evaluate(self, context):
        assert not context.training
        return {self.name: context.batch["inputs"][:, 0], "step": tf.cast(context.step, tf.float32)}


@pytest.mark.parametrize("size", [10, 64])
def test_metrics_of_hooks_are_exact_means_over_examples(size: int) -> None:
    network = toy_network()
    evaluator = Evaluator(Trainer([network], [ToyObjective()], [Marks()], seed=0), *batches(size))
    values = evaluator.run(7)
    assert values["metric/first"] == pytest.approx(toy_arrays()[0][:, 0].mean(), abs=1e-6)
    assert values["metric/step"] == 7.0
    assert values["metric/accuracy"] == pytest.approx(by_hand(network), abs=1e-6)


def test_metrics_of_hooks_are_not_computed_in_training() -> None:
    loop = toy_loop([Marks()])
    loop.run(0, 1)
    assert not any("first" in name for name in loop.accumulators.read())


def test_two_metrics_of_one_name_are_refused() -> None:
    trainer = Trainer([toy_network()], [ToyObjective()], [Marks("accuracy")], seed=0)
    with pytest.raises(UserError, match="The hook 'accuracy' adds metrics named .'accuracy'., which exist already."):
        Evaluator(trainer, *batches(16))


class Middle(StatelessHook):
    """Keep the first input of the split and measure its median."""

    def collect(self, context):
        assert not context.training
        return {"mine": context.batch["inputs"][:, 0]}

    def split_metrics(self, collected):
        return {f"{self.name}_median": tf.sort(collected["mine"])[tf.shape(collected["mine"])[0] // 2]}


def test_metrics_of_a_split_may_be_of_any_number_type() -> None:
    class Counts(Collecting):
        def split_metrics(self, collected):
            return {"examples": tf.shape(collected["first"])[0]}

    class HookCounts(Middle):
        def split_metrics(self, collected):
            return {"many": tf.shape(collected["mine"])[0] > 60}

    evaluator = Evaluator(Trainer([toy_network()], [Counts()], [HookCounts()], seed=0), *batches(10))
    values = evaluator.run(0)
    assert values["metric/examples"] == SIZE
    assert values["metric/many"] == 1.0


@pytest.mark.parametrize("size", [1, 10, 100])
def test_what_a_hook_collects_is_the_whole_split_without_padding_beside_what_objectives_do(size: int) -> None:
    hooks = [Middle("objective"), StatelessHook("silent")]  # a hook may have the name of an objective
    evaluator = Evaluator(Trainer([toy_network()], [Collecting()], hooks, seed=0), *batches(size))
    values = evaluator.run(0)
    median = np.sort(toy_arrays()[0][:, 0])[SIZE // 2]
    assert values["metric/objective_median"] == values["metric/median"] == pytest.approx(median)
    assert evaluator.collected("objective").keys() == {"first", "logits"}


def test_a_hook_collects_once_where_several_objectives_change_its_network() -> None:
    traced = []

    class Counting(Middle):
        def collect(self, context):
            traced.append(context.objective)
            return super().collect(context)

    other = Counting("other")
    other.network = "second"
    objectives = [ToyObjective(name="one"), ToyObjective("second", name="two"), ToyObjective(name="three")]
    networks = [toy_network(), toy_network("second")]
    networks[0].shared = True
    evaluator = Evaluator(Trainer(networks, objectives, [Counting("probe"), other], seed=0), *batches(SIZE))
    assert {"metric/probe_median", "metric/other_median"} <= set(evaluator.names)
    assert sorted(traced) == ["one", "one", "two", "two"]  # the first batch, and the body of the loop over the others


def test_a_metric_of_a_hook_may_not_have_the_name_of_another() -> None:
    class Taken(Middle):
        def split_metrics(self, collected):
            return {self.name: tf.constant(0.0)}

    for taken in ("median", "accuracy"):
        with pytest.raises(UserError, match=f"The hook '{taken}' adds the metric '{taken}', which exists already"):
            Evaluator(Trainer([toy_network()], [Collecting()], [Taken(taken)], seed=0), *batches(16))


@pytest.mark.parametrize("stage", ["collect", "split_metrics"])
def test_an_error_while_a_hook_collects_or_measures_names_it(stage: str) -> None:
    def fail(given):
        raise KeyError("features")

    hook = Middle("broken")
    setattr(hook, stage, fail)
    with pytest.raises(KeyError) as caught:
        Evaluator(Trainer([toy_network()], [ToyObjective()], [hook], seed=0), *batches(16))
    assert any("in hook broken" in note and f"stage {stage}" in note for note in caught.value.__notes__)
