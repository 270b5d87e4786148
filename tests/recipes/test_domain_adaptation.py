"""Domain adaptation: losses and metrics by their formulas, gradients of each part, and what hooks see."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.gradient_override import GradientOverride
from hookline.recipes.data.canvases import TARGET_LABELS, domains
from hookline.recipes.data.digits import digits
from hookline.recipes.data.input_form import TARGET_IMAGES
from hookline.recipes.domain_adaptation import DomainAdaptation, domain_adaptation
from hookline.recipes.models.cnn import two_headed_cnn
from hookline.recipes.models.mlp import mlp
from hookline.trainer.hook import GraphHook
from hookline.trainer.input.batches import TrainingBatches
from hookline.trainer.input.data import Data
from hookline.trainer.objective import Batch
from hookline.trainer.recipe import Parts
from hookline.trainer.step.trainer import Trainer
from tests.support.hooked import built
from tests.support.refusals import assert_refused
from tests.support.toy import StatelessHook


@pytest.fixture(scope="module")
def data() -> Data:
    return domains()


def build_small(input_shape: Sequence[int], classes: int) -> keras.Model:
    return two_headed_cnn(input_shape, classes, filters=(4, 8), class_units=(16,), domain_units=(16,))


def parts_of(data: Data, build_model: Any = build_small) -> Parts:
    return Parts(data, build_model, lambda: keras.optimizers.Adam(0.002, beta_1=0.5))


def trainer_of(parts: Parts, hooks: Sequence[GraphHook]) -> Trainer:
    """Return the recipe with its hooks built, from the same initial weights every time."""
    keras.utils.set_random_seed(0)
    recipe = domain_adaptation(parts=parts)
    return built(*recipe.networks, *hooks, objective=recipe.objectives[0])


LOGITS = np.array([[2.0, 0.0, -1.0, 0.7], [0.0, 0.0, 3.0, -0.4]], np.float32)  # the last one is the domain's
TARGET_LOGITS = np.array([[0.0, 1.0, 0.0, 1.5], [4.0, 0.0, 3.0, -2.0]], np.float32)
BATCH = {"inputs": tf.constant(LOGITS), "targets": tf.constant([0, 1]), TARGET_IMAGES: tf.constant(TARGET_LOGITS)}


def two_heads(name: str, inputs: tf.Tensor) -> list[tf.Tensor]:
    """Stand in for a network whose two heads return its inputs."""
    assert name == "model"
    return [inputs[:, :3], inputs[:, 3:]]


def test_losses_and_metrics_match_formulas() -> None:
    output = DomainAdaptation(classes=3, domain_weight=0.3).compute(two_heads, BATCH)
    labelled = DomainAdaptation(classes=3, domain_weight=0.3).compute(two_heads, {**BATCH, TARGET_LABELS: [1, 2]})
    assert labelled.metrics["target_accuracy"].numpy().tolist() == [1.0, 0.0]
    assert {name: value.numpy().tolist() for name, value in labelled.losses.items()} == {
        name: value.numpy().tolist() for name, value in output.losses.items()
    }
    assert output.losses.keys() == {"cross_entropy", "domain"}
    log_sum = np.log(np.exp(LOGITS[:, :3].astype(np.float64)).sum(-1))
    np.testing.assert_allclose(output.losses["cross_entropy"], log_sum - LOGITS[[0, 1], [0, 1]], rtol=1e-5)
    of_target = 1.0 / (1.0 + np.exp(-np.array([LOGITS[:, 3], TARGET_LOGITS[:, 3]], np.float64)))
    domain = -0.5 * (np.log(1.0 - of_target[0]) + np.log(of_target[1]))
    np.testing.assert_allclose(output.losses["domain"], 0.3 * domain, rtol=1e-5)
    metrics = {name: value.numpy().tolist() for name, value in output.metrics.items()}
    assert metrics == {"source_accuracy": [1.0, 0.0], "domain_accuracy": [0.5, 0.5]}
    np.testing.assert_array_equal(output.outputs, LOGITS[:, :3])


def gradients_of(trainer: Trainer, batch: Batch) -> dict[str, np.ndarray]:
    @tf.function(autograph=False)
    def gradients() -> Any:
        forward = trainer.forward(tf.constant(0, tf.int64), batch, objective="domain_adaptation", training=True)
        losses = trainer.losses(trainer.objectives[0], forward, batch).losses
        return trainer.compute_gradients(losses["total"], forward.passes)["model"]

    return {name: value.numpy() for name, value in gradients().items()}


def test_domain_gradient_is_reversed_in_the_body(data: Data) -> None:
    batch = TrainingBatches(data.train, batch_size=16, seed=0).batch(tf.constant(0, tf.int64))
    reversal = GradientOverride(layers="domain_entrance", backward={"name": "reverse", "factor": 0.5}, rise=0.0)
    trainer = trainer_of(parts_of(data), [reversal])
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
        sign = 1.0 if variable.path.startswith("domain") else -0.5
        expected = sum(k * g.numpy() for k, g in ((1.0, of_classes), (sign, of_domain)) if g is not None)
        np.testing.assert_allclose(found[variable.path], expected, atol=1e-6, err_msg=variable.path)
        if variable.path.startswith(("conv", "domain")):
            assert np.abs(of_domain.numpy()).max() > 1e-4  # large enough to show a wrong sign


def test_hooks_see_features_of_source_images(data: Data) -> None:
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


def test_both_heads_train_from_logits(data: Data) -> None:
    def with_probabilities(input_shape: Sequence[int], classes: int) -> keras.Model:
        model = build_small(input_shape, classes)
        model.get_layer("class_logits").activation = keras.activations.softmax
        model.get_layer("domain_logits").activation = keras.activations.sigmoid
        return model

    (network,) = domain_adaptation(parts=parts_of(data, with_probabilities)).networks
    assert [each.name for each in network.final_activations] == ["softmax", "sigmoid"]
    assert network.model.get_layer("class_logits").activation is keras.activations.linear


def test_data_and_networks_that_do_not_fit_are_refused(data: Data) -> None:
    def swapped(input_shape: Sequence[int], classes: int) -> keras.Model:
        model = build_small(input_shape, classes)
        return keras.Model(model.inputs[0], model.outputs[::-1], name="swapped")

    for parts, message in (
        (parts_of(data, mlp), r"'mlp' .*Expected two heads"),
        (parts_of(data, swapped), "'swapped' .*Expected two heads"),
        (parts_of(digits()), "'digits' has one domain"),
    ):
        assert_refused(message, domain_adaptation, parts=parts)
    assert_refused("domain_weight=nan", domain_adaptation, parts=parts_of(data), domain_weight=float("nan"))
    assert domain_adaptation(parts=parts_of(data), domain_weight=0.25).objectives[0].domain_weight == 0.25
