"""Domain adaptation: losses by hand, who gets which gradient, and what the target's labels and images may change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hooks.gradient_override import GradientOverride
from recipes.data.clutter import Clutter
from recipes.data.digits import digits
from recipes.data.domains import TARGET_IMAGES, TARGET_LABELS, Look, domains, pair_domains
from recipes.domain_adaptation import DomainAdaptation, domain_adaptation
from recipes.models.mlp import mlp
from recipes.models.two_headed_cnn import two_headed_cnn
from tests.support.toy import StatelessHook
from trainer.errors import UserError
from trainer.hook import GraphHook
from trainer.input.batches import EvaluationBatches, TrainingBatches
from trainer.input.data import Data, Split
from trainer.input.source import ArraySource
from trainer.network import Network
from trainer.objective import Batch
from trainer.recipe import Parts
from trainer.step.context import BuildContext
from trainer.step.evaluate import Evaluator
from trainer.step.loop import ChunkLoop
from trainer.step.trainer import Trainer

SOURCE, TARGET = Look(Clutter(12, 0, 2), inverted=False), Look(Clutter(12, 8, 2), inverted=False)
BODY_AND_CLASSES = ("conv_1", "conv_2", "class_dense_1", "class_logits")


@pytest.fixture(scope="module")
def data() -> Data:
    return domains()


def build_small(input_shape: Sequence[int], classes: int) -> keras.Model:
    return two_headed_cnn(input_shape, classes, filters=(4, 8), class_units=(16,), domain_units=(16,))


def parts_of(data: Data, build_model: Any = build_small, rate: float = 0.002) -> Parts:
    return Parts(data, build_model, lambda: keras.optimizers.Adam(rate, beta_1=0.5))


def reversal(factor: float, rise: float = 0.0) -> GradientOverride:
    hook = GradientOverride(layers="domain_entrance", backward={"name": "reverse", "factor": factor}, rise=rise)
    hook.name = "gradient_override"
    return hook


def trainer_of(parts: Parts, hooks: Sequence[GraphHook] = (), *, steps: int = 100, **options: Any) -> Trainer:
    """Return the recipe with its hooks built, from the same initial weights every time."""
    keras.utils.set_random_seed(0)
    recipe = domain_adaptation(parts=parts, **options)
    (network,) = recipe.networks
    for hook in hooks:
        network.model = hook.rebuild_model(network.model)
        network.taps |= hook.request_taps(network.model)
    network.optimizer.build(network.model.trainable_variables)
    for hook in hooks:
        hook.build(BuildContext(network, total_steps=steps, steps_per_epoch=10.0, batch_size=32, seed=0))
    return Trainer(recipe.networks, recipe.objectives, list(hooks), seed=0)


def weights_of(trainer: Trainer) -> dict[str, np.ndarray]:
    return {name: variable.numpy() for name, variable in trainer.networks["model"].variables.items()}


def trained(data: Data, hooks: Sequence[GraphHook], steps: int) -> Trainer:
    trainer = trainer_of(parts_of(data), hooks, steps=steps)
    ChunkLoop(trainer, TrainingBatches(data.train, batch_size=32, seed=0).batch, xla=False).run(0, steps)
    return trainer


def evaluated(trainer: Trainer, split: Split, size: int = 64) -> dict[str, float]:
    batches = EvaluationBatches(split, batch_size=size)
    return Evaluator(trainer, batches.batch, batches.count).run(0)


def with_changed(split: Split, **changed: Any) -> Split:
    """Return a split in which arrays have others in their place, by name."""
    batch = split.source.gather(tf.constant(split.indices))
    arrays = {name: tensor.numpy() for name, tensor in batch.items()}
    arrays |= {name: change(arrays[name]) for name, change in changed.items()}
    return Split(split.name, ArraySource(arrays, dict), split.indices)


# The objective.

LOGITS = np.array([[2.0, 0.0, -1.0, 0.7], [0.0, 0.0, 3.0, -0.4]], np.float32)  # the last one is the domain's
TARGET_LOGITS = np.array([[0.0, 1.0, 0.0, 1.5], [4.0, 0.0, 3.0, -2.0]], np.float32)
BATCH = {"inputs": tf.constant(LOGITS), "targets": tf.constant([0, 1]), TARGET_IMAGES: tf.constant(TARGET_LOGITS)}


def two_heads(name: str, inputs: tf.Tensor) -> list[tf.Tensor]:
    """Stand for a network whose heads say what its inputs are."""
    assert name == "model"
    return [inputs[:, :3], inputs[:, 3:]]


@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_losses_and_metrics_by_hand(weight: float) -> None:
    output = DomainAdaptation(classes=3, domain_weight=weight).compute(two_heads, BATCH)
    assert output.losses.keys() == {"cross_entropy", "domain"}
    log_sum = np.log(np.exp(LOGITS[:, :3].astype(np.float64)).sum(-1))
    np.testing.assert_allclose(output.losses["cross_entropy"], log_sum - LOGITS[[0, 1], [0, 1]], rtol=1e-5)
    of_target = 1.0 / (1.0 + np.exp(-np.array([LOGITS[:, 3], TARGET_LOGITS[:, 3]], np.float64)))
    domain = -0.5 * (np.log(1.0 - of_target[0]) + np.log(of_target[1]))
    np.testing.assert_allclose(output.losses["domain"], weight * domain, rtol=1e-5)
    metrics = {name: value.numpy().tolist() for name, value in output.metrics.items()}
    assert metrics == {"source_accuracy": [1.0, 0.0], "domain_accuracy": [0.5, 0.5]}
    np.testing.assert_array_equal(output.outputs, LOGITS[:, :3])


def test_the_domain_is_told_right_by_the_sign_and_the_target_where_its_labels_are_known() -> None:
    for sign, expected in ((1.0, 1.0), (-1.0, 0.0)):
        inputs = {"inputs": tf.constant(LOGITS[:, :3]), TARGET_IMAGES: tf.constant(TARGET_LOGITS[:, :3])}
        sides = {"inputs": -sign, TARGET_IMAGES: sign}
        batch = {key: tf.concat([value, tf.fill([2, 1], sides[key])], 1) for key, value in inputs.items()}
        batch |= {"targets": tf.constant([0, 1]), TARGET_LABELS: tf.constant([1, 2])}
        metrics = DomainAdaptation(classes=3).compute(two_heads, batch).metrics
        assert metrics["domain_accuracy"].numpy().tolist() == [expected, expected]
        assert metrics["target_accuracy"].numpy().tolist() == [1.0, 0.0]


def test_the_labels_of_the_target_are_in_no_loss() -> None:
    objective = DomainAdaptation(classes=3)
    plain = objective.compute(two_heads, BATCH)
    for labels in ([0, 1], [2, 2]):
        found = objective.compute(two_heads, {**BATCH, TARGET_LABELS: tf.constant(labels)})
        assert found.losses.keys() == plain.losses.keys()
        for name, value in plain.losses.items():
            np.testing.assert_array_equal(found.losses[name], value)


def test_losses_are_computed_in_float32_also_where_the_network_is_not() -> None:
    def half(name: str, inputs: tf.Tensor) -> list[tf.Tensor]:
        return [tf.cast(each, tf.bfloat16) for each in two_heads(name, inputs)]

    output = DomainAdaptation(classes=3).compute(half, {**BATCH, TARGET_LABELS: tf.constant([0, 1])})
    tensors = [output.outputs, *output.losses.values(), *output.metrics.values()]
    assert {tensor.dtype for tensor in tensors} == {tf.float32}


def test_an_evaluation_is_of_every_pair_once_and_knows_the_target_in_the_test_alone(data: Data) -> None:
    trainer = trainer_of(parts_of(data))
    whole, cut = evaluated(trainer, data.test, 179), evaluated(trainer, data.test, 50)
    assert whole.keys() == cut.keys()
    for name, value in whole.items():
        assert cut[name] == pytest.approx(value, abs=1e-5), name
    validation = evaluated(trainer, data.validation)
    assert whole.keys() - validation.keys() == {"metric/target_accuracy"}
    assert validation["loss/total"] == pytest.approx(validation["loss/cross_entropy"] + validation["loss/domain"])


# Who gets which gradient.


def gradients_of(trainer: Trainer, batch: Batch) -> dict[str, np.ndarray]:
    @tf.function(autograph=False)
    def gradients() -> Any:
        forward = trainer.forward(tf.constant(0, tf.int64), batch, objective="domain_adaptation", training=True)
        losses = trainer.losses(trainer.objectives[0], forward, batch).losses
        return trainer.compute_gradients(losses["total"], forward.passes)["model"]

    return {name: value.numpy() for name, value in gradients().items()}


@pytest.mark.parametrize("factor", [0.0, 1.0, 0.5])
def test_the_body_works_against_the_domain_head_and_the_heads_for_themselves(data: Data, factor: float) -> None:
    batch = TrainingBatches(data.train, batch_size=16, seed=0).batch(tf.constant(0, tf.int64))
    trainer = trainer_of(parts_of(data), [reversal(factor)])
    found = gradients_of(trainer, batch)
    keras.utils.set_random_seed(0)
    model = build_small((12, 12, 1), 10)  # the same weights, and no hook
    with tf.GradientTape(persistent=True) as tape:
        logits, source = model(batch["inputs"])
        _, target = model(batch[TARGET_IMAGES])
        classes = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(batch["targets"], logits))
        both = tf.concat([source, target], 0)
        truth = tf.concat([tf.zeros_like(source), tf.ones_like(target)], 0)
        domain = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(truth, both))
    for variable in model.trainable_variables:
        of_classes, of_domain = (tape.gradient(loss, variable.value) for loss in (classes, domain))
        sign = 1.0 if variable.path.startswith("domain") else -factor
        expected = sum(k * g.numpy() for k, g in ((1.0, of_classes), (sign, of_domain)) if g is not None)
        np.testing.assert_allclose(found[variable.path], expected, atol=1e-6, err_msg=variable.path)
        if variable.path.startswith(("conv", "domain")):
            assert np.abs(of_domain.numpy()).max() > 1e-4  # so the sign is seen


def test_hooks_see_the_features_of_the_source(data: Data) -> None:
    class Features(StatelessHook):
        def request_taps(self, model: keras.Model) -> dict[str, Any]:
            return {"features": model.get_layer("features").output}

    trainer = trainer_of(parts_of(data), [Features()])
    batch = TrainingBatches(data.train, batch_size=8, seed=0).batch(tf.constant(0, tf.int64))
    forward = trainer.forward(tf.constant(0, tf.int64), batch, objective="domain_adaptation", training=True)
    trainer.losses(trainer.objectives[0], forward, batch)
    network = trainer.networks["model"].model
    features = keras.Model(network.inputs[0], network.get_layer("features").output)
    np.testing.assert_allclose(forward.passes["model"].context.taps["features"], features(batch["inputs"]), atol=1e-5)


# What the target may change.


def test_corrupted_labels_of_the_target_change_no_bit_of_a_run() -> None:
    originals = digits()

    def with_labels(change: Any) -> Data:
        rows = tf.range(originals.train.source.size, dtype=tf.int64)
        batch = originals.train.source.gather(rows)
        source = ArraySource({"inputs": batch["inputs"].numpy(), "targets": change(batch["targets"].numpy())}, dict)
        splits = (Split(s.name, source, s.indices) for s in (originals.train, originals.validation, originals.test))
        return Data("digits", *splits, input_shape=(8, 8, 1), classes=10)

    def corrupt(labels: np.ndarray) -> np.ndarray:
        changed = labels.copy()
        for stream, split in ((0, originals.train), (3, originals.validation)):
            drawn = np.random.PCG64(np.random.SeedSequence((0, stream))).random_raw(split.size)
            order = np.argsort(drawn, kind="stable")
            rows = split.indices[order[split.size // 2 :]]
            changed[rows] = (changed[rows] + 1) % 10
        return changed

    counts: dict[str, int | None] = {"train": None, "validation": None, "test": None}
    true, wrong = (pair_domains(with_labels(change), 16, (SOURCE, TARGET), counts, 0) for change in (np.copy, corrupt))
    runs = [trained(each, [reversal(1.0, rise=10.0)], 30) for each in (true, wrong)]
    first, second = (weights_of(run) | evaluated(run, true.test) for run in runs)
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)
    assert evaluated(runs[0], true.validation) == evaluated(runs[1], wrong.validation)
    assert np.sum(corrupt(originals.train.source.labels) != originals.train.source.labels) == 629 + 90


def test_the_twin_sees_the_source_alone_and_adapts_in_nothing(data: Data) -> None:
    noise = np.random.default_rng(0).uniform(-1, 1, (629, 12, 12, 1)).astype(np.float32)
    other = Data(
        "noise",
        with_changed(data.train, **{TARGET_IMAGES: lambda images: noise[: len(images)]}),
        *(data.validation, data.test),
        input_shape=data.input_shape,
        classes=10,
    )
    for factor in (0.0, 1.0):
        first, second = (weights_of(trained(each, [reversal(factor)], 20)) for each in (data, other))
        for name, value in first.items():
            is_told = name.startswith(BODY_AND_CLASSES) and factor == 0.0
            assert np.array_equal(value, second[name]) == is_told, (name, factor)


def test_the_reversed_gradient_adapts_to_the_target() -> None:
    data = domains(train_examples=3000, test_examples=895)
    found = {}
    for name, hook in {"adapted": reversal(1.0, rise=10.0), "twin": reversal(0.0)}.items():
        trainer = trainer_of(parts_of(data, two_headed_cnn, rate=0.003), [hook], steps=600)
        ChunkLoop(trainer, TrainingBatches(data.train, batch_size=32, seed=0).batch, xla=False).run(0, 600)
        found[name] = evaluated(trainer, data.test, 256)
    adapted, twin = found["adapted"], found["twin"]
    assert adapted["metric/source_accuracy"] > 0.9 < twin["metric/source_accuracy"]
    assert adapted["metric/target_accuracy"] > twin["metric/target_accuracy"] + 0.04
    assert adapted["metric/domain_accuracy"] < 0.8 < twin["metric/domain_accuracy"]


# The projector, and mistakes.


def test_the_projector_gets_both_domains_with_their_names() -> None:
    def examples(rows: Sequence[int]) -> dict[str, np.ndarray]:
        images = np.array(rows, np.float32)[:, None, None, None] * np.ones((1, 64, 64, 1), np.float32)
        return {"inputs": images, TARGET_IMAGES: -images}

    rows, objective = np.arange(1500), DomainAdaptation(classes=3)
    logits = np.stack([rows, rows, rows], axis=1).astype(np.float32)
    collected = {"source": logits, "target": logits + 0.5, "source_class": rows % 3}
    assert objective.embeddings({}, lambda positions: pytest.fail("nothing is evaluated yet")) == {}
    (shown,) = objective.embeddings(collected, examples).values()
    assert shown.vectors.shape == (1000, 3)
    assert list(shown.labels) == ["domain"]
    assert shown.labels["domain"].tolist() == ["source"] * 500 + ["target"] * 500
    np.testing.assert_array_equal(shown.vectors[500:], shown.vectors[:500] + 0.5)
    np.testing.assert_array_equal(shown.images[:500, 0, 0, 0], shown.vectors[:500, 0])
    np.testing.assert_array_equal(shown.images[500:, 0, 0, 0], -shown.vectors[:500, 0])
    (shown,) = objective.embeddings({**collected, "target_class": rows % 2}, examples).values()
    chosen = shown.vectors[:500, 0].astype(int)
    np.testing.assert_array_equal(shown.labels["class"], np.concatenate([chosen % 3, chosen % 2]))


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_weight_out_of_range_is_one_line(data: Data, weight: float) -> None:
    with pytest.raises(UserError, match=f"domain_weight={weight} received. Expected a number of 0 or more"):
        domain_adaptation(parts=parts_of(data), domain_weight=weight)


def test_the_weight_reaches_the_loss(data: Data) -> None:
    values = [evaluated(trainer_of(parts_of(data), domain_weight=weight), data.test) for weight in (1.0, 0.25)]
    assert values[1]["loss/domain"] == pytest.approx(0.25 * values[0]["loss/domain"], rel=1e-5)
    assert isinstance(domain_adaptation(parts=parts_of(data)).networks[0], Network)


def test_data_of_one_domain_is_refused() -> None:
    with pytest.raises(UserError, match="'digits' has one domain. Expected two: .*data=domains") as error:
        domain_adaptation(parts=parts_of(digits()))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("given", "taken"), [("train", None), ("validation", None), (None, "test")])
def test_labels_of_the_target_are_for_the_test_alone(data: Data, given: str | None, taken: str | None) -> None:
    splits = {}
    for split in (data.train, data.validation, data.test):
        arrays = {name: each.numpy() for name, each in split.source.gather(tf.constant(split.indices)).items()}
        if split.name == given:
            arrays[TARGET_LABELS] = arrays["targets"]
        if split.name == taken:
            del arrays[TARGET_LABELS]
        splits[split.name] = Split(split.name, ArraySource(arrays, dict), split.indices)
    wrong = Data("domains", **splits, input_shape=data.input_shape, classes=10)
    message = "has 'target_domain_labels'. Expected none" if given else "has no 'target_domain_labels'. Expected them"
    with pytest.raises(UserError, match=f"The {given or taken} split of 'domains' {message}: .* for the test alone"):
        domain_adaptation(parts=parts_of(wrong))


def test_a_network_without_two_heads_is_refused(data: Data) -> None:
    def swapped(input_shape: Sequence[int], classes: int) -> keras.Model:
        model = build_small(input_shape, classes)
        return keras.Model(model.inputs[0], model.outputs[::-1], name="swapped")

    for build, name, shapes in ((mlp, "mlp", r"\(10,\)"), (swapped, "swapped", r"\(1,\), \(10,\)")):
        with pytest.raises(UserError, match=rf"'{name}' returns the shapes \[{shapes}\] an image. Expected two heads"):
            domain_adaptation(parts=parts_of(data, build))


def test_heads_that_end_in_probabilities_are_trained_from_the_logits_before_them(data: Data) -> None:
    def with_probabilities(input_shape: Sequence[int], classes: int) -> keras.Model:
        model = build_small(input_shape, classes)
        model.get_layer("class_logits").activation = keras.activations.softmax
        model.get_layer("domain_logits").activation = keras.activations.sigmoid
        return model

    (network,) = domain_adaptation(parts=parts_of(data, with_probabilities)).networks
    assert [each.name for each in network.final_activations] == ["softmax", "sigmoid"]
    assert network.model.get_layer("class_logits").activation is keras.activations.linear
