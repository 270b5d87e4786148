"""Classification: one network, softmax cross-entropy, accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from hookline.recipes.model_checks import check_classes, check_inputs, check_one_output, several_outputs
from hookline.trainer.errors import UserError, check_number
from hookline.trainer.final_activation import check_logits, take_off
from hookline.trainer.network import Network
from hookline.trainer.objective import SOFT_TARGETS, Batch, ForwardFunction, Objective, ObjectiveOutput
from hookline.trainer.recipe import Parts, Recipe

if TYPE_CHECKING:
    from hookline.recipes.losses import Measures


class Classification(Objective):
    """Minimize the softmax cross-entropy of a network's logits."""

    name = "classification"
    trains = ("model",)
    class_losses = ("cross_entropy",)

    def __init__(self, *, classes: int, label_smoothing: float = 0.0, measures: Measures | None = None) -> None:
        """Set the number of classes, the share of each target to spread evenly over them, and further metrics."""
        self.classes, self.label_smoothing, self.measures = classes, label_smoothing, measures

    def compute(self, forward: ForwardFunction, batch: Batch) -> ObjectiveOutput:
        """Return cross-entropy and accuracy of each example, for mixed ones from "target_shares" [batch, classes].

        With Keras metrics, the class of a mixed example is that of its largest share, as in Keras.
        """
        logits = forward("model", batch["inputs"])
        if not isinstance(logits, tf.Tensor):
            raise several_outputs("model", logits, f"logits [batch, {self.classes}]")
        logits = tf.cast(logits, tf.float32)
        if logits.shape[-1] != self.classes:
            raise UserError(
                f"The network returns {logits.shape[-1]} logits for {self.classes} classes. Expected one for each: a "
                "hook that joins outputs side by side (join=concatenate) is for embeddings, such as recipe=retrieval."
            )
        mixed = SOFT_TARGETS in batch
        targets = batch[SOFT_TARGETS] if mixed else tf.one_hot(batch["targets"], self.classes)
        smooth = targets
        if self.label_smoothing:
            smooth = targets * (1.0 - self.label_smoothing) + self.label_smoothing / self.classes
        # `tf.nn` wraps this op in thirty others that flatten logits; these already are [batch, classes].
        cross_entropy, _ = tf.raw_ops.SoftmaxCrossEntropyWithLogits(features=logits, labels=smooth)
        found = tf.argmax(logits, axis=-1)
        labels = tf.argmax(targets, axis=-1) if mixed else batch["targets"]
        if mixed and self.measures is None:
            accuracy = tf.gather(targets, found, batch_dims=1)
        else:
            accuracy = tf.cast(tf.equal(found, tf.cast(labels, tf.int64)), tf.float32)
        output = ObjectiveOutput({"cross_entropy": cross_entropy}, {"accuracy": accuracy}, outputs=logits)
        if self.measures is not None:
            wanted = targets if self.measures.one_hot else labels
            self.measures.add(output, batch, wanted, logits, training=forward.training)
        return output

    def split_metrics(self, collected: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {} if self.measures is None else self.measures.of_split(collected)


def classification(*, parts: Parts, label_smoothing: float = 0.0) -> Recipe:
    """Build the network of the config and its classification objective.

    A final softmax or sigmoid is removed for training, since the loss takes logits, and restored in exports. The
    argument is described in `configs/task/classification.yaml`.
    """
    check_number("label_smoothing", label_smoothing, 0, 1, below_maximum=True)
    check_classes(parts.data, "classification")
    model, activations = take_off(parts.build_model(input_shape=parts.data.model_shape, classes=parts.data.classes))
    check_inputs(model, parts.data)
    check_one_output(model, f"logits [batch, {parts.data.classes}]", (parts.data.classes,))
    network = Network("model", model, parts.build_optimizer(), final_activations=activations)
    check_logits(model, parts.data)
    return Recipe([network], [Classification(classes=parts.data.classes, label_smoothing=label_smoothing)])
