"""Center loss in the traced step: what is added, who gets the gradient, how and when the centers move."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from hooks.center_loss import CenterLoss
from tests.support.centers import (
    built,
    center_loop,
    feature_network,
    features_of,
    paper_update,
    read_batch,
    toy_loop_with_centers,
)
from tests.support.toy import (
    BATCH,
    CLASSES,
    FEATURES,
    StatelessHook,
    ToyObjective,
    build_context,
    toy_batch,
    toy_network,
)
from trainer.errors import UserError
from trainer.run.state import run_variables


def centers_of(hook: CenterLoss) -> np.ndarray:
    return hook.state()["centers"].numpy()


def start_at(hook: CenterLoss, seed: int = 3) -> np.ndarray:
    centers = np.random.default_rng(seed).normal(size=centers_of(hook).shape).astype(np.float32)
    hook.state()["centers"].assign(centers)
    return centers


@pytest.mark.parametrize("xla", [False, True], ids=["graph", "xla"])
def test_the_loss_is_that_of_the_old_centers_and_these_move_by_the_formula(xla: bool) -> None:
    network = feature_network()
    hook = built(network, weight=0.3, alpha=0.7)
    loop = center_loop(network, [hook], xla=xla)
    centers, batch = start_at(hook), read_batch(0)
    features = features_of(network, batch)
    own = centers[batch["targets"]]
    loop.run(0, 1)
    reported = loop.accumulators.read()
    squared = np.square(features - own).sum(axis=-1)
    assert reported["loss/center"] == pytest.approx(0.3 / 2 * squared.mean(), rel=1e-5)
    assert reported["loss/total"] == pytest.approx(reported["loss/cross_entropy"] + reported["loss/center"], rel=1e-6)
    assert reported["center/distance"] == pytest.approx(np.sqrt(squared).mean(), rel=1e-5)
    after = paper_update(centers, features, batch["targets"], 0.7)
    np.testing.assert_allclose(centers_of(hook), after, rtol=1e-4, atol=1e-5)
    pairs = [np.linalg.norm(after[i] - after[j]) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert reported["center/between"] == pytest.approx(np.mean(pairs), rel=1e-4)
    assert reported["center/ratio"] == pytest.approx(reported["center/distance"] / np.mean(pairs), rel=1e-4)
    assert reported["center/length"] == pytest.approx(np.linalg.norm(after, axis=-1).mean(), rel=1e-4)


def test_the_gradient_is_weight_times_the_way_from_the_center_over_the_batch() -> None:
    network = feature_network(width=4)
    hook = built(network, weight=0.3)
    trainer = center_loop(network, [hook]).trainer
    start_at(hook)

    @tf.function(autograph=False)
    def gradients():
        step = tf.constant(0, tf.int64)
        batch = toy_batch(step)
        forward = trainer.forward(step, batch, objective="objective", training=True)
        loss = trainer.losses(trainer.objectives[0], forward, batch).losses["center"]
        features = forward.passes["model"].context.taps["center_features"]
        centers = hook.state()["centers"]
        return features, tf.gradients(loss, features)[0], tf.gradients(loss, centers.handle)[0]

    features, found, to_centers = gradients()
    own = centers_of(hook)[read_batch(0)["targets"]]
    np.testing.assert_allclose(found, 0.3 * (features.numpy() - own) / BATCH, rtol=1e-4, atol=1e-7)
    assert to_centers is None


@pytest.mark.parametrize("name", ["weights", "sample_weights"])
@pytest.mark.parametrize("accumulation_steps", [1, 4])
def test_an_example_counts_in_the_sums_of_its_center_by_its_weight(name: str, accumulation_steps: int) -> None:
    """A weight of 2 is the example twice, one of 0 is padding."""
    counts = np.arange(BATCH) % 3

    def weighted(step: tf.Tensor) -> dict[str, tf.Tensor]:
        return {**toy_batch(step), name: tf.constant(counts, tf.float32)}

    network = feature_network()
    hook = built(network, alpha=0.7)
    loop = center_loop(network, [hook], batch=weighted, accumulation_steps=accumulation_steps)
    centers, batch = start_at(hook), read_batch(0)
    features = np.repeat(features_of(network, batch), counts, axis=0)
    after = paper_update(centers, features, np.repeat(batch["targets"], counts), 0.7)
    loop.run(0, 1)
    np.testing.assert_allclose(centers_of(hook), after, rtol=1e-4, atol=1e-5)


def test_every_step_moves_the_centers_once_in_chunks_of_any_length() -> None:
    expected = None
    for chunks in ((1, 1, 1, 1, 1, 1), (6,), (2, 4)):
        network = feature_network(keras.optimizers.SGD(0.0))
        hook = built(network)
        kernel = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
        network.variables["features/kernel"].assign(kernel)
        loop, start = center_loop(network, [hook]), 0
        for steps in chunks:
            loop.run(start, steps)
            start += steps
        if expected is None:
            expected = np.zeros((CLASSES, 2), np.float32)
            for step in range(6):
                batch = read_batch(step)
                expected = paper_update(expected, batch["inputs"] @ kernel, batch["targets"], 0.5)
        np.testing.assert_allclose(centers_of(hook), expected, rtol=1e-4, atol=1e-5)


def test_micro_batches_move_centers_and_weights_once_by_the_whole_batch() -> None:
    reported, moved = [], []
    for accumulation_steps in (1, 4):
        network = feature_network(keras.optimizers.SGD(0.1))
        network.variables["features/kernel"].assign(np.linspace(-1.0, 1.0, 2 * FEATURES).reshape(FEATURES, 2))
        network.variables["logits/kernel"].assign(np.linspace(1.0, -1.0, 2 * CLASSES).reshape(2, CLASSES))
        hook = built(network)
        loop = center_loop(network, [hook], accumulation_steps=accumulation_steps)
        for step in range(3):
            batch = read_batch(step)
            centers = paper_update(centers_of(hook), features_of(network, batch), batch["targets"], 0.5)
            loop.run(step, 1)
            np.testing.assert_allclose(centers_of(hook), centers, rtol=1e-4, atol=1e-5)
        reported.append(loop.accumulators.read())
        moved.append(network.variables["features/kernel"].numpy())
    assert reported[0] == pytest.approx(reported[1], rel=1e-4)
    assert reported[0]["center/distance"] > 0
    np.testing.assert_allclose(moved[0], moved[1], rtol=1e-4, atol=1e-6)


def test_two_objectives_are_two_optimizer_steps_and_move_the_centers_twice() -> None:
    network = feature_network(keras.optimizers.SGD(0.0))
    network.shared = True
    hook = built(network)
    loop = center_loop(network, [hook], objectives=[ToyObjective(name="first"), ToyObjective(name="second")])
    batch, centers = read_batch(0), centers_of(hook)
    for _ in range(2):
        centers = paper_update(centers, features_of(network, batch), batch["targets"], 0.5)
    loop.run(0, 1)
    np.testing.assert_allclose(centers_of(hook), centers, rtol=1e-4, atol=1e-5)
    assert {"first/loss/center", "second/loss/center"} <= loop.accumulators.read().keys()


def test_a_class_without_examples_stays_bit_for_bit() -> None:
    network = feature_network()
    hook = built(network)

    def two_classes(step):
        batch = toy_batch(step)
        return {**batch, "targets": tf.minimum(batch["targets"], 1)}

    loop, before = center_loop(network, [hook], batch=two_classes), start_at(hook)
    loop.run(0, 5)
    after = centers_of(hook)
    np.testing.assert_array_equal(after[2].view(np.uint32), before[2].view(np.uint32))
    assert (after[:2] != before[:2]).all()


def test_the_centers_belong_to_no_optimizer() -> None:
    optimizer = keras.optimizers.AdamW(0.05, weight_decay=0.5, use_ema=True, ema_overwrite_frequency=2)
    network = feature_network(optimizer)
    hook = built(network, weight=0.0)
    assert not any("center" in name for name in (*network.variables, *network.optimizer_variables))
    assert not hook.state()["centers"].trainable
    loop = center_loop(network, [hook])
    for step in range(4):
        centers, batch = centers_of(hook), read_batch(step)
        features = features_of(network, batch)
        loop.run(step, 1)
        expected = paper_update(centers, features, batch["targets"], 0.5)
        np.testing.assert_allclose(centers_of(hook), expected, rtol=1e-4, atol=1e-5)


def test_a_checkpoint_holds_the_centers_under_one_key() -> None:
    network = feature_network()
    hook = built(network)
    variables = run_variables([network], [hook], tf.Variable(0.0))
    assert variables["hook/center_loss/centers"] is hook.state()["centers"]
    assert hook.state()["centers"].shape == (CLASSES, 2)


class Forgetful(CenterLoss):
    """Create the update, and do not return it: facenet's fault."""

    def update_ops(self, context):
        super().update_ops(context)
        return []


class ReadsOnly(CenterLoss):
    """Compute new centers, and assign them to nothing."""

    def update_ops(self, context):
        return [self.state()["centers"] - 1.0]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Forgetful, "'center_loss' writes 'centers' outside UPDATE_OPS.*Return the op from update_ops"),
        (ReadsOnly, "'center_loss' returned the op .* from update_ops, which writes no variable"),
    ],
)
def test_a_run_whose_centers_would_not_move_does_not_start(kind, message: str) -> None:
    network = feature_network()
    hook = built(network, kind(weight=0.1))
    with pytest.raises(UserError, match=message):
        center_loop(network, [hook])


def test_the_weight_waits_then_rises_then_stays() -> None:
    network = feature_network(keras.optimizers.SGD(0.0))
    hook = built(network, weight=0.8, begin_epoch=0.5, warm_up_epochs=1.0)  # 4 steps an epoch
    weights = [float(hook._weight_at(tf.constant(step, tf.int64))) for step in range(9)]
    assert weights == pytest.approx([0.0, 0.0, 0.16, 0.32, 0.48, 0.64, 0.8, 0.8, 0.8])
    assert hook.settled_at() == 6
    loop = center_loop(network, [hook])
    loop.run(0, 2)
    assert loop.accumulators.read()["loss/center"] == 0.0
    assert np.abs(centers_of(hook)).min() > 0.0  # they move from the first step on
    assert built(feature_network(), weight=0.0, begin_epoch=3.0).settled_at() == 0


def test_with_a_weight_of_zero_training_is_as_without_the_hook() -> None:
    kernels = []
    for hooks in (lambda network: [], lambda network: [built(network, weight=0.0)]):
        keras.utils.set_random_seed(1)
        network = feature_network(keras.optimizers.Adam(0.05))
        center_loop(network, hooks(network)).run(0, 10)
        kernels.append(network.variables["features/kernel"].numpy())
    np.testing.assert_array_equal(kernels[0], kernels[1])


def test_features_draw_together_around_their_centers() -> None:
    ratios = {}
    for weight in (0.0, 1.0):
        keras.utils.set_random_seed(2)
        loop, _, _ = toy_loop_with_centers(weight=weight)
        loop.run(0, 100)
        loop.accumulators.reset()
        loop.run(100, 4)
        ratios[weight] = loop.accumulators.read()["center/ratio"]
    assert ratios[1.0] < 0.8 * ratios[0.0]


@pytest.mark.parametrize("dtype", [tf.bool, tf.int32, tf.uint8])
def test_labels_may_be_integers_of_any_size_or_bools(dtype) -> None:
    network = feature_network()
    hook = built(network)

    def batch(step):
        given = toy_batch(step)
        return {**given, "targets": tf.cast(tf.minimum(given["targets"], 1), dtype)}

    class Labels(ToyObjective):
        def compute(self, forward, batch):
            return super().compute(forward, {**batch, "targets": tf.cast(batch["targets"], tf.int64)})

    first, centers = batch(tf.constant(0, tf.int64)), centers_of(hook)
    expected = paper_update(centers, features_of(network, first), first["targets"].numpy().astype(int), 0.5)
    center_loop(network, [hook], batch=batch, objectives=[Labels()]).run(0, 1)
    np.testing.assert_allclose(centers_of(hook), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("xla", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize("label", [-1, CLASSES])
def test_a_target_that_is_no_class_withholds_the_step(label: int, xla: bool) -> None:
    network = feature_network()
    hook = built(network)

    class Ignoring(ToyObjective):
        def compute(self, forward, batch):
            return super().compute(forward, {**batch, "targets": tf.clip_by_value(batch["targets"], 0, 2)})

    def batch(step):
        given = toy_batch(step)
        wrong = tf.concat([[tf.cast(label, tf.int64)], given["targets"][1:]], axis=0)
        return {**given, "targets": tf.where(step == 2, wrong, given["targets"])}

    loop = center_loop(network, [hook], batch=batch, xla=xla, objectives=[Ignoring()])
    assert loop.run(0, 2) == (2, [])
    before = centers_of(hook)
    assert loop.run(2, 5) == (2, ["center_loss: a target outside [0, 3)"])
    np.testing.assert_array_equal(centers_of(hook), before)


def test_targets_that_are_no_labels_are_refused_when_the_step_is_traced() -> None:
    network = feature_network()
    hook = built(network)

    class Any(ToyObjective):
        def compute(self, forward, batch):
            return super().compute(forward, {**batch, "targets": tf.zeros([BATCH], tf.int64)})

    for targets in (tf.zeros([BATCH]), tf.zeros([BATCH, 2], tf.int64)):
        with pytest.raises(UserError, match="The targets are .* Expected class labels: integers .batch."):
            center_loop(
                network,
                [hook],
                batch=lambda step, targets=targets: {**toy_batch(step), "targets": targets},
                objectives=[Any()],
            )


def test_a_network_that_runs_on_other_examples_than_the_batch_is_refused() -> None:
    network = feature_network()
    hook = built(network)

    class Own(ToyObjective):
        def compute(self, forward, batch):
            return super().compute(forward, {**batch, "targets": tf.zeros([BATCH], tf.int64)})

    def fewer_labels(step):
        return {**toy_batch(step), "targets": tf.zeros([BATCH // 2], tf.int64)}

    with pytest.raises(UserError, match=f"'model' has features of {BATCH} examples, .* labels of {BATCH // 2}. Expec"):
        center_loop(network, [hook], batch=fewer_labels, objectives=[Own()])


def test_two_hooks_pull_at_two_layers_under_two_names() -> None:
    network = feature_network(width=4)
    first, second = CenterLoss(weight=0.1), CenterLoss(weight=0.2, layer="logits")
    first.name, second.name = "center_loss", "logit_centers"
    hooks = [built(network, first), built(network, second)]
    loop = center_loop(network, hooks)
    loop.run(0, 2)
    reported = loop.accumulators.read()
    assert {"loss/center", "loss/logit_centers", "center/ratio", "logit_centers/ratio"} <= reported.keys()
    assert [hook.state()["centers"].shape[-1] for hook in hooks] == [4, CLASSES]


def test_half_precision_features_have_centers_in_full() -> None:
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        network = toy_network()
        hook = built(network)
        loop = center_loop(network, [hook])
    finally:
        keras.mixed_precision.set_dtype_policy("float32")
    loop.run(0, 3)
    assert hook.state()["centers"].dtype == tf.float32
    assert np.isfinite(loop.accumulators.read()["loss/center"])


def test_one_warning_when_the_centers_fall_together() -> None:
    network = feature_network()
    hook = built(network)
    fine = {"center/between": 2.0, "center/length": 5.0}
    assert hook.warning(fine) is None
    for values in ({"center/between": 0.0, "center/length": 0.0}, {"center/between": 0.01, "center/length": 50.0}):
        message = hook.warning(values)
        assert message is not None
        assert "all centers lie in one place" in message
        assert "Lower hooks.center_loss.weight" in message
    assert built(feature_network(), weight=0.0).warning({"center/between": 0.0, "center/length": 0.0}) is None


def test_dead_features_are_warned_of_in_a_real_report() -> None:
    network = feature_network(keras.optimizers.SGD(0.0))
    network.variables["features/kernel"].assign(np.zeros((6, 2), np.float32))
    hook = built(network)
    loop = center_loop(network, [hook])
    loop.run(0, 3)
    assert hook.warning(loop.accumulators.read()) is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": -1.0}, "Invalid weight: -1.0"),
        ({"weight": "x"}, "Invalid weight"),
        ({"alpha": 0.0}, "Invalid alpha: 0.0. Expected a number in"),
        ({"alpha": 1.5}, "Invalid alpha: 1.5"),
        ({"layer": 3}, "Invalid layer: 3"),
        ({"layer": ""}, "Invalid layer"),
        ({"begin_epoch": -0.5}, "Invalid begin_epoch"),
        ({"warm_up_epochs": float("nan")}, "Invalid warm_up_epochs"),
    ],
)
def test_a_wrong_option_is_one_clear_line(options, message: str) -> None:
    with pytest.raises(UserError, match=message):
        CenterLoss(**options)


def test_data_without_classes_is_refused() -> None:
    network = feature_network()
    hook = CenterLoss()
    hook.name = "center_loss"
    network.taps |= hook.request_taps(network.model)
    with pytest.raises(UserError, match="does not say how many classes"):
        hook.build(build_context(network))


def test_the_summary_says_what_the_centers_are() -> None:
    assert CenterLoss().summary() == {}
    hook = built(feature_network(), weight=0.1, alpha=0.4)
    assert hook.summary() == {"weight": 0.1, "alpha": 0.4, "classes": CLASSES, "dimensions": 2}


def test_other_hooks_may_read_the_centers() -> None:
    class Reader(StatelessHook):
        reads = ("center_loss/centers",)

        def measure(self, context):
            return {"seen": tf.reduce_sum(tf.abs(hook.state()["centers"]))}

    network = feature_network()
    hook = built(network)
    loop = center_loop(network, [Reader("reader"), hook])
    assert [each.name for each in loop.trainer.hooks] == ["center_loss", "reader"]
    loop.run(0, 1)
    assert loop.accumulators.read()["seen"] == pytest.approx(np.abs(centers_of(hook)).sum(), rel=1e-5)


def report(task: float, ratio: float, own: float = 0.01) -> dict[str, float]:
    """Return a report of a network whose centers are apart."""
    return {
        "center/between": 2.0,
        "center/length": 5.0,
        "center/ratio": ratio,
        "loss/center": own,
        "loss/total": task + own,
    }


UNLEARNED = math.log(CLASSES) / 3 + 0.01


@pytest.mark.parametrize(
    ("values", "warned"),
    [
        (report(UNLEARNED, 0.09), True),
        (report(UNLEARNED, 0.11), False),  # not yet compact: the features are still parting
        (report(UNLEARNED - 0.02, 0.09), False),  # learned
        (report(UNLEARNED, 0.5, own=0.4), True),  # larger than the other losses
        (report(0.001, 0.5, own=0.4), False),  # larger than what is nearly 0
    ],
)
def test_a_center_loss_that_dominates_is_pointed_at_in_the_third_report(values, warned) -> None:
    hook = built(feature_network(), weight=30.0)
    assert [hook.warning(values) is not None for _ in range(3)] == [False, False, warned]
    if warned:
        message = hook.warning(values)
        assert message is not None
        assert "the center loss dominates" in message
        assert message.endswith("Set hooks.center_loss.weight=3.")


def test_a_report_in_between_begins_the_count_anew() -> None:
    hook = built(feature_network(), weight=30.0)
    reports = [report(UNLEARNED, 0.09)] * 2 + [report(UNLEARNED, 0.5)] + [report(UNLEARNED, 0.09)] * 2
    assert [hook.warning(each) for each in reports] == [None] * 5


@pytest.mark.parametrize(("warm_up", "weight", "lines"), [(25.0, 1.0, 1), (24.0, 1.0, 0), (25.0, 0.0, 0)])
def test_a_warm_up_that_ends_with_the_run_is_pointed_at(run_of, warm_up, weight, lines) -> None:
    network = feature_network()
    hook = built(network, weight=weight, warm_up_epochs=warm_up)  # 100 steps, 4 an epoch
    run = run_of(network, 100)
    run.steps_per_epoch = 4.0
    found = hook.advise(run)
    assert len(found) == lines
    assert all("the weight is full at step 100, and the run ends after 100" in line for line in found)
    assert hook.advise(run_of(network, 99)) == ()  # a trial
