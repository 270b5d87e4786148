"""Gradient accumulation: a step in micro batches is the step over the whole batch."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.toy import (
    BATCH,
    CLASSES,
    FEATURES,
    StatelessHook,
    ToyObjective,
    toy_arrays,
    toy_batch,
    toy_loop,
    toy_network,
    values_of,
)
from trainer.errors import UserError
from trainer.hook import GraphHook
from trainer.network import Network
from trainer.objective import Objective
from trainer.step.loop import ChunkLoop
from trainer.step.trainer import Trainer

HIDDEN = "toy/hidden/kernel"


def plain_network(*extra: keras.layers.Layer, penalty: float = 0.0, seed: int = 1) -> Network:
    """Return a network without batch norm and dropout; `extra` layers stand before the last one."""
    keras.utils.set_random_seed(seed)
    layers = [
        keras.Input((FEATURES,)),
        keras.layers.Dense(8, name="hidden", activation="tanh", kernel_regularizer=keras.regularizers.L2(penalty)),
        *extra,
        keras.layers.Dense(CLASSES, name="logits"),
    ]
    network = Network("model", keras.Sequential(layers, name="toy"), keras.optimizers.Adam(0.05))
    network.optimizer.build(network.model.trainable_variables)
    return network


def run(
    accumulation_steps: int,
    *,
    hooks: Callable[[], list[GraphHook]] = list,
    network: Callable[[], Network] = plain_network,
    objectives: Callable[[], list[Objective]] = list,
    batch: Callable = toy_batch,
    xla: bool = False,
    steps: int = 3,
) -> tuple[dict[str, np.ndarray], dict[str, float], ChunkLoop]:
    """Return all variables and the reported values after a few steps, and the loop."""
    trained = network()
    loop = toy_loop(
        hooks(),
        network=trained,
        objectives=objectives(),
        batch=batch,
        xla=xla,
        accumulation_steps=accumulation_steps,
    )
    loop.run(0, steps)
    return values_of(trained), loop.accumulators.read(), loop


def assert_equal_to_the_whole_batch(accumulation_steps: int, *, xla: bool = False, **options) -> None:
    whole, whole_reported, _ = run(1, **options)
    parts, reported, _ = run(accumulation_steps, xla=xla, **options)
    assert list(reported) == list(whole_reported)
    assert reported == pytest.approx(whole_reported, rel=1e-4, abs=1e-6)
    for name, value in whole.items():
        np.testing.assert_allclose(parts[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


def padded_batch(step: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return a toy batch whose examples have weights from 0 to 2, all 0 in its second quarter."""
    weights = np.concatenate([[1.0, 0.0, 2.0, 0.5], np.zeros(4), np.ones(BATCH - 8)])
    return {**toy_batch(step), "weights": tf.constant(weights, tf.float32)}


class Halve(StatelessHook):
    """Use half of every kernel, rounded with a gradient of its own, in the forward pass."""

    def transform_weights(self, weights, context):
        @tf.custom_gradient
        def rounded(latent):
            return tf.round(latent * 8.0) / 16.0, lambda upstream: upstream * 0.3

        return {name: rounded(value) if name.endswith("kernel") else value for name, value in weights.items()}


class Pull(StatelessHook):
    """Add losses of outputs, of latent and transformed weights, and of something made of them before."""

    def transform_weights(self, weights, context):
        self.length = tf.norm(context.latent[HIDDEN])
        self.positive = tf.math.count_nonzero(context.latent[HIDDEN] > 0)  # an integer has no gradient
        return weights

    def add_losses(self, context):
        return {
            "outputs": tf.reduce_sum(tf.square(context.outputs), axis=-1),
            "latent": 0.1 * tf.reduce_sum(tf.square(context.latent["toy/logits/kernel"])),
            "weights": tf.reduce_mean(tf.abs(context.weights[HIDDEN])),
            "length": 0.1 * self.length * tf.cast(self.positive, tf.float32),
        }


@pytest.mark.parametrize(("accumulation_steps", "xla"), [(2, False), (BATCH, False), (4, True)])
def test_step_equals_that_over_the_whole_batch(accumulation_steps: int, xla: bool) -> None:
    assert_equal_to_the_whole_batch(
        accumulation_steps,
        hooks=lambda: [Halve("halve"), Pull("pull")],
        network=lambda: plain_network(penalty=0.1),
        batch=padded_batch,
        xla=xla,
    )


def test_every_loss_of_a_hook_counts() -> None:
    """The test above would pass without gradients from hooks, if both forms lacked them."""
    plain, _, _ = run(2)
    pulled, _, _ = run(2, hooks=lambda: [Pull("pull")])
    assert all(not np.allclose(plain[name], pulled[name], atol=1e-3) for name in (HIDDEN, "toy/logits/kernel"))


class Reversed(keras.layers.Layer):
    """Pass inputs on, and the gradient with another sign and size, in one of two ways."""

    def __init__(self, way: str) -> None:
        """Choose "custom_gradient" or "gradient_override_map"."""
        super().__init__()
        self.way = way

    def call(self, inputs):
        """Return the inputs."""
        if self.way == "custom_gradient":
            return tf.custom_gradient(lambda x: (tf.identity(x), lambda upstream: -0.5 * upstream))(inputs)
        with tf.compat.v1.get_default_graph().gradient_override_map({"Identity": "ReversedForTests"}):
            return tf.identity(inputs)


@tf.RegisterGradient("ReversedForTests")
def reverse(operation: tf.Operation, upstream: tf.Tensor) -> tf.Tensor:
    """Return the gradient of `Reversed`."""
    return -0.5 * upstream


@pytest.mark.parametrize("way", ["custom_gradient", "gradient_override_map"])
def test_gradients_of_ones_own_hold_inside(way: str) -> None:
    assert_equal_to_the_whole_batch(4, network=lambda: plain_network(Reversed(way)))
    changed, _, _ = run(4, network=lambda: plain_network(Reversed(way)))
    usual, _, _ = run(4)
    assert not np.allclose(changed[HIDDEN], usual[HIDDEN], atol=1e-3)


def test_sparse_gradients_of_an_embedding_add_up() -> None:
    def network() -> Network:
        keras.utils.set_random_seed(1)
        layers = [keras.Input((FEATURES,)), keras.layers.Embedding(5, 4, name="embedding"), keras.layers.Flatten()]
        model = keras.Sequential([*layers, keras.layers.Dense(CLASSES, name="logits")], name="toy")
        made = Network("model", model, keras.optimizers.SGD(0.5))
        made.optimizer.build(model.trainable_variables)
        return made

    def batch(step):
        given = toy_batch(step)
        return {**given, "inputs": tf.cast(tf.abs(given["inputs"]) * 2.0, tf.int32) % 5}

    assert_equal_to_the_whole_batch(4, network=network, batch=batch)


def ops_of(loop: ChunkLoop) -> set[str]:
    """Return the types of the ops in the body of the loop over steps."""
    return {operation.type for operation in loop.trainer.commits[0].graph.get_operations()}


def test_micro_batches_run_one_after_the_other_and_one_step_has_no_loop() -> None:
    _, _, loop = run(1)
    assert not any("While" in kind for kind in ops_of(loop))
    assert "MatMul" in ops_of(loop)
    _, _, loop = run(4)
    (inner,) = (each for each in loop.trainer.commits[0].graph.get_operations() if "While" in each.type)
    assert inner.get_attr("parallel_iterations") == 1
    assert "MatMul" not in ops_of(loop)  # neither the forward nor the backward pass is outside the loop


def test_batch_norm_normalizes_by_micro_batch_and_its_statistics_are_written_once() -> None:
    network = toy_network()
    weights = {name: np.array(variable.value) for name, variable in network.variables.items()}
    loop = toy_loop(network=network, accumulation_steps=2)
    loop.run(0, 1)
    hidden = toy_arrays()[0][:BATCH] @ weights[HIDDEN] + weights["toy/hidden/bias"]
    mean = np.zeros(8)
    for half in np.split(hidden, 2):
        mean = 0.99 * mean + 0.01 * half.mean(axis=0)
    np.testing.assert_allclose(network.variables["toy/norm/moving_mean"].numpy(), mean, rtol=1e-4, atol=1e-7)
    written = loop.trainer.commits[0].update_writes
    assert sorted(written) == ["toy/norm/moving_mean", "toy/norm/moving_variance"]


class Watch(StatelessHook):
    """See the whole batch in every stage but that of the losses; count in each."""

    def __init__(self, name: str = "watch") -> None:
        super().__init__(name)
        self.seen: dict[str, list] = {}

    def build(self, context):
        self.outputs = tf.Variable(tf.zeros([BATCH, CLASSES]), trainable=False)
        self.features = tf.Variable(tf.zeros([BATCH, 8]), trainable=False)
        self.noise = tf.Variable(tf.zeros([BATCH]), trainable=False)
        self.dropped = tf.Variable(tf.zeros([BATCH, 8]), trainable=False)

    def state(self):
        return {name: getattr(self, name) for name in ("outputs", "features", "noise", "dropped")}

    writes = state

    def request_taps(self, model):
        return {"features": model.get_layer("activation").output, "dropped": model.get_layer("dropout").output}

    def transform_batch(self, batch, context):
        self.see("transform_batch", batch, context)
        return {**batch, "inputs": batch["inputs"] + 1.0}

    def add_losses(self, context):
        self.see("add_losses", context.batch, context)
        shape = tf.shape(context.batch["targets"])
        context.taps["noise"] = tf.random.stateless_uniform(shape, context.stateless_seed("noise"))
        return {}

    def transform_gradients(self, gradients, context):
        self.see("transform_gradients", context.batch, context)
        assert set(context.losses) == {"cross_entropy", "total"}
        assert {name.rpartition("/")[2] for name in context.new_state} == {
            *("moving_mean", "moving_variance", "seed_generator_state"),
        }
        return gradients

    def update_ops(self, context):
        self.see("update_ops", context.batch, context)
        kept = {"outputs": context.outputs, **context.taps}
        return [getattr(self, name).assign(kept[name]) for name in ("outputs", "features", "noise", "dropped")]

    def see(self, stage, batch, context):
        self.seen.setdefault(stage, []).append((batch["inputs"].shape[0], context.micro_batch is None))


@pytest.mark.parametrize("xla", [False, True], ids=["graph", "xla"])
def test_hooks_see_the_whole_batch_but_while_losses_are_added(xla: bool) -> None:
    network, hook = toy_network(dropout=0.5), Watch()
    network.taps |= hook.request_taps(network.model)
    weights = {name: np.array(variable.value) for name, variable in network.variables.items()}
    toy_loop([hook], network=network, xla=xla, accumulation_steps=4).run(0, 1)
    assert hook.seen == {
        **{stage: [(BATCH, True)] for stage in ("transform_batch", "transform_gradients", "update_ops")},
        "add_losses": [(BATCH // 4, False)],
    }
    hidden = (toy_arrays()[0][:BATCH] + 1.0) @ weights[HIDDEN]
    for part in range(4):
        rows = slice(4 * part, 4 * part + 4)
        normal = (hidden[rows] - hidden[rows].mean(axis=0)) / np.sqrt(hidden[rows].var(axis=0) + 1e-3)
        np.testing.assert_allclose(hook.features.numpy()[rows], np.tanh(normal), atol=1e-4)
    logits = hook.dropped.numpy() @ weights["toy/logits/kernel"] + weights["toy/logits/bias"]
    np.testing.assert_allclose(hook.outputs.numpy(), logits, atol=1e-4)
    masks = (hook.dropped.numpy() != 0).reshape(4, -1)
    assert len(np.unique(masks, axis=0)) == 4  # each micro batch draws another mask
    assert len(np.unique(hook.noise.numpy())) == BATCH  # and other noise


def test_seed_state_is_counted_up_by_every_micro_batch_and_resumes() -> None:
    def trained(chunks: list[int]) -> dict[str, np.ndarray]:
        keras.utils.set_random_seed(1)
        network, start = toy_network(dropout=0.5), 0
        loop = toy_loop(network=network, accumulation_steps=2)
        for steps in chunks:
            loop.run(start, steps)
            start += steps
        return values_of(network)

    whole, parts = trained([3]), trained([1, 2])
    for name, value in whole.items():
        np.testing.assert_array_equal(parts[name], value, err_msg=name)
    (counted,) = (value for name, value in whole.items() if "seed_generator_state" in name)
    assert counted.tolist() == [3, 2 * 3]


class Counting(keras.layers.Layer):
    """Count calls, examples and what they hold, and let the outputs depend on the calls."""

    def build(self, input_shape: tuple) -> None:
        """Make the counters."""
        make = {"shape": (), "initializer": "zeros", "trainable": False}
        self.calls = self.add_weight(name="calls", dtype="int32", **make)
        self.halved = self.add_weight(name="halved", **{**make, "initializer": "ones"})
        self.examples = self.add_weight(name="examples", **make)
        self.total = self.add_weight(name="total", **make)

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Return the inputs, scaled by how often that was done."""
        if training:
            self.calls.assign(self.calls + 1)
            self.halved.assign(self.halved * 0.5 ** keras.ops.cast(self.calls, "float32"))
            self.examples.assign(self.examples + keras.ops.shape(inputs)[0])
            self.total.assign(self.total + keras.ops.sum(inputs))
        return inputs * (1.0 + 0.1 * keras.ops.cast(self.calls, "float32"))


@pytest.mark.parametrize("xla", [False, True], ids=["graph", "xla"])
def test_a_layers_own_counters_move_as_with_the_whole_batch(xla: bool) -> None:
    assert_equal_to_the_whole_batch(4, xla=xla, network=lambda: plain_network(Counting(name="counting")))
    network = run(4, network=lambda: plain_network(Counting(name="counting")), xla=xla)[0]
    counted = {name.rpartition("/")[2]: value for name, value in network.items() if "/counting/" in name}
    assert (counted["calls"], counted["examples"], counted["halved"]) == (3, 3 * BATCH, 0.5**6)


def test_a_loss_and_a_metric_that_are_means_already_are_averaged_over_the_micro_batches() -> None:
    class Means(ToyObjective):
        def compute(self, forward, batch):
            output = super().compute(forward, batch)
            output.losses = {"mean": tf.reduce_mean(output.losses["cross_entropy"])}
            output.metrics["first"] = tf.reduce_mean(batch["inputs"][:, 0])
            return output

    assert_equal_to_the_whole_batch(4, objectives=lambda: [Means()])


def test_a_variable_without_a_gradient_is_named() -> None:
    class Cut(StatelessHook):
        def transform_weights(self, weights, context):
            return {n: tf.stop_gradient(w) if n == HIDDEN else w for n, w in weights.items()}

    with pytest.raises(UserError, match=f"No gradient reaches {HIDDEN} in objective 'objective'"):
        run(2, hooks=lambda: [Cut()])


class Blind(ToyObjective):
    """Minimise something that depends on no weight."""

    def compute(self, forward, batch):
        output = super().compute(forward, batch)
        output.losses, output.outputs = {"constant": batch["inputs"][:, 0]}, None
        return output


def test_a_loss_that_depends_on_no_weight_is_refused_and_an_objective_may_have_no_outputs() -> None:
    with pytest.raises(UserError, match="No gradient reaches toy/hidden/bias, toy/hidden/kernel|No gradient reaches"):
        run(2, objectives=lambda: [Blind()])


class SelfCounting(keras.layers.Layer):
    """Count calls by an assignment, added to UPDATE_OPS or not."""

    def __init__(self, where: str) -> None:
        """Choose "collection", "nowhere" or "branch"."""
        super().__init__()
        self.where, self.counter = where, tf.Variable(0.0, trainable=False)

    def call(self, inputs):
        """Count, and return the inputs."""
        if self.where == "branch":
            tf.cond(tf.reduce_sum(inputs) > 0, self.count, lambda: tf.constant(0.0))
        else:
            self.count()
        return inputs

    def count(self):
        """Add 1 to the counter and return it."""
        counted = self.counter.assign_add(1.0)
        if self.where != "nowhere":
            tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.UPDATE_OPS, counted.op)
        return tf.convert_to_tensor(counted)


@pytest.mark.parametrize("where", ["collection", "nowhere", "branch"])
def test_a_forward_pass_that_writes_by_itself_is_refused_with_the_name_of_the_op(where: str) -> None:
    run(1, network=lambda: plain_network(SelfCounting(where)))
    with pytest.raises(
        UserError, match="writes variables by itself .*AssignAdd.*: 2 times a step.*accumulation_steps=1"
    ):
        run(2, network=lambda: plain_network(SelfCounting(where)))


def test_outputs_that_cannot_be_joined_are_refused() -> None:
    class Scalar(ToyObjective):
        def compute(self, forward, batch):
            output = super().compute(forward, batch)
            output.outputs = {"logits": output.outputs, "temperature": tf.constant(1.0)}
            return output

    run(1, objectives=lambda: [Scalar()])
    with pytest.raises(UserError, match="outputs or taps of a network hold a scalar .*trainer.accumulation_steps=1"):
        run(2, objectives=lambda: [Scalar()])


class Keeps(StatelessHook):
    """Keep a tensor of the losses in an attribute, and use it in a later stage."""

    def __init__(self, stage: str, *, guarded: bool) -> None:
        super().__init__("keeps")
        self.stage, self.guarded = stage, guarded
        self.variable = tf.Variable(0.0, trainable=False)

    def add_losses(self, context):
        self.kept = tf.reduce_mean(context.outputs)
        return {}

    def veto(self, context):
        return {"never": tf.constant(False)} if self.guarded else {}

    def update_ops(self, context):
        return [self.variable.assign(self.kept)] if self.stage == "update_ops" else []

    def measure(self, context):
        return {"kept": self.kept} if self.stage == "measure" else {}


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("stage", ["update_ops", "measure"])
def test_a_tensor_of_a_micro_batch_used_in_a_later_stage_names_the_hook(stage: str, guarded: bool) -> None:
    run(1, hooks=lambda: [Keeps(stage, guarded=guarded)])
    with pytest.raises(UserError, match=f"'keeps' uses in {stage} what it made .*Mean.*into context.taps"):
        run(2, hooks=lambda: [Keeps(stage, guarded=guarded)])


@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, keras.optimizers.LossScaleOptimizer])
def test_an_optimizer_that_accumulates_by_itself_is_refused(wrap) -> None:
    network = toy_network(optimizer=wrap(keras.optimizers.SGD(0.1, gradient_accumulation_steps=4)))
    with pytest.raises(UserError, match="'model' has gradient_accumulation_steps=4.*trainer.accumulation_steps=4"):
        Trainer([network], [ToyObjective()], [], seed=0)


class Borrow(ToyObjective):
    """Train one network with another one's outputs as further losses."""

    def compute(self, forward, batch):
        output = super().compute(forward, batch)
        output.losses["borrowed"] = tf.reduce_sum(tf.square(forward("other", batch["inputs"]) - output.outputs), -1)
        return output


def test_gradients_are_summed_for_the_transformed_weights_and_taken_through_the_transform_once() -> None:
    summed = []

    class Watching(Trainer):
        def compute_gradients(self, loss, passes, upstream=None):
            summed.extend(zip(loss, upstream, strict=True))
            return super().compute_gradients(loss, passes, upstream)

    networks = [plain_network(), toy_network("other")]
    networks[1].fixed = True
    trainer = Watching(networks, [Borrow()], [Halve()], seed=0, accumulation_steps=4)
    ChunkLoop(trainer, toy_batch, xla=False)
    shapes = sorted(tuple(variable.shape) for variable in networks[0].trainable_variables.values())
    assert sorted(tuple(tensor.shape) for tensor, _ in summed) == shapes  # not of the batch, nor of what is borrowed
    assert all("While" in gradient.op.type for _, gradient in summed)


def test_network_that_is_only_borrowed_stays_and_the_other_trains_as_with_the_whole_batch() -> None:
    trained = {}
    for accumulation_steps in (1, 4):
        first, other = plain_network(), toy_network("other", dropout=0.5)
        other.fixed = True
        other.model.set_weights([np.full(w.shape, 0.3, w.dtype) for w in other.model.get_weights()])
        other.model.get_layer("dropout").rate = other.model.get_layer("norm").trainable = 0
        before = values_of(other)
        trainer = Trainer([first, other], [Borrow()], [], seed=0, accumulation_steps=accumulation_steps)
        ChunkLoop(trainer, toy_batch, xla=False).run(0, 2)
        trained[accumulation_steps] = values_of(first)
        for name, value in values_of(other).items():
            np.testing.assert_array_equal(value, before[name], err_msg=name)
    for name, value in trained[1].items():
        np.testing.assert_allclose(trained[4][name], value, rtol=1e-3, atol=1e-5, err_msg=name)
