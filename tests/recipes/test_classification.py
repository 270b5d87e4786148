"""Classification: its losses and metrics, and networks that do not fit."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.recipes.classification import Classification, classification
from hookline.recipes.data.digits import digits
from hookline.trainer.objective import SOFT_TARGETS
from hookline.trainer.recipe import Parts
from tests.support.networks import Subclassed, identity
from tests.support.refusals import assert_refused

LOGITS = np.array([[2.0, 0.0, -1.0], [0.0, 0.0, 3.0]], np.float32)
BATCH = {"inputs": tf.constant(LOGITS), "targets": tf.constant([0, 1])}


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_loss_and_accuracy_match_formula_for_labels_and_mixed_examples(smoothing: float) -> None:
    mixed = np.array([[0.6, 0.4, 0.0], [0.0, 0.25, 0.75]], np.float32)
    mixed_batch = {"inputs": BATCH["inputs"], SOFT_TARGETS: tf.constant(mixed)}
    for batch, shares, accuracy in ((BATCH, np.eye(3)[[0, 1]], [1.0, 0.0]), (mixed_batch, mixed, [0.6, 0.75])):
        output = Classification(classes=3, label_smoothing=smoothing).compute(identity, batch)
        targets = shares * (1.0 - smoothing) + smoothing / 3
        log_sum = np.log(np.exp(LOGITS.astype(np.float64)).sum(-1))
        np.testing.assert_allclose(output.losses["cross_entropy"], log_sum - (targets * LOGITS).sum(-1), rtol=1e-5)
        np.testing.assert_allclose(output.metrics["accuracy"], accuracy)


def test_networks_that_do_not_fit_are_refused() -> None:
    assert_refused("3 logits for 6 classes", Classification(classes=6).compute, identity, BATCH)
    own = Subclassed("softmax", units=10)
    own(tf.zeros([1, 8, 8, 1]))
    parts = Parts(digits(), lambda input_shape, classes: own, keras.optimizers.SGD)
    assert_refused("'own' returns probabilities", classification, parts=parts)
    assert_refused("label_smoothing=1.0", classification, parts=Parts(digits(), None, None), label_smoothing=1.0)
