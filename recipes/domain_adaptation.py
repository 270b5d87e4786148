"""Domain adaptation: labels of one domain, images of two, one network with a head for classes and one for domains."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from hookline.recipes.data.canvases import TARGET_LABELS
from hookline.recipes.data.input_form import TARGET_IMAGES
from hookline.recipes.model_checks import check_inputs
from hookline.trainer.errors import UserError, check_number
from hookline.trainer.final_activation import take_off
from hookline.trainer.network import Network
from hookline.trainer.objective import (
    Batch,
    Embedding,
    Examples,
    ForwardFunction,
    Objective,
    ObjectiveOutput,
    Shown,
    hard_labels,
    thumbnails,
)
from hookline.trainer.recipe import Parts, Recipe

DOMAINS = ("source", "target")
PROJECTED_PAIRS = 500


class DomainAdaptation(Objective):
    """Classify the source, and tell the two domains apart.

    Minimizes the softmax cross-entropy of the source's classes plus the weighted sigmoid cross-entropy of the domain,
    averaged over both domains. Hooks decide whether the features learn to separate or to confuse the domains: one that
    reverses the gradient before the domain head makes the body work against the second loss (Ganin et al. 2016,
    "Domain-Adversarial Training of Neural Networks", arXiv 1505.07818, equation 9).

    Target labels are used only in evaluations, on a split that has them.
    """

    name = "domain_adaptation"
    trains = ("model",)
    class_losses = ("cross_entropy",)

    def __init__(self, *, classes: int, domain_weight: float = 1.0) -> None:
        """Set the number of classes and the factor of the domain loss."""
        self.classes, self.domain_weight = classes, domain_weight

    def compute(self, forward: ForwardFunction, batch: Batch) -> ObjectiveOutput:
        """Return both losses and the accuracies of the heads, for each pair of images.

        Metrics: `source_accuracy` of the classes; `domain_accuracy`, the mean of both domains, 0.5 if the features
        carry no information on the domain; `target_accuracy` if the batch has the target's labels.
        """
        classes = hard_labels(batch, "Domain adaptation")
        # The source comes last, so that hooks see the features that go with the batch's inputs and targets.
        target_logits, target_domain = _in_float32(forward("model", batch[TARGET_IMAGES]))
        logits, source_domain = _in_float32(forward("model", batch["inputs"]))
        domain_losses = tf.nn.softplus(source_domain), tf.nn.softplus(-target_domain)
        right = tf.cast([source_domain < 0.0, target_domain > 0.0], tf.float32)
        metrics = {"source_accuracy": _correct(logits, classes), "domain_accuracy": tf.reduce_mean(right, axis=0)}
        collected = {"source": logits, "target": target_logits, "source_class": tf.cast(classes, tf.int64)}
        if TARGET_LABELS in batch:
            metrics["target_accuracy"] = _correct(target_logits, batch[TARGET_LABELS])
            collected["target_class"] = tf.cast(batch[TARGET_LABELS], tf.int64)
        return ObjectiveOutput(
            losses={
                "cross_entropy": tf.nn.softmax_cross_entropy_with_logits(tf.one_hot(classes, self.classes), logits),
                "domain": self.domain_weight * 0.5 * tf.add_n(domain_losses),
            },
            metrics=metrics,
            outputs=logits,
            collected=collected,
        )

    def show(self, collected: dict[str, np.ndarray], examples: Examples) -> Shown:
        """Return the logits of some pairs, with the domain, the class if known, and the image of each."""
        if not collected:
            return Shown()
        count = len(collected["source"])
        rows = np.linspace(0, count - 1, min(count, PROJECTED_PAIRS)).round().astype(np.int64)
        batch = examples(rows.tolist())
        images = np.concatenate([thumbnails(tf.constant(batch[key])).numpy() for key in ("inputs", TARGET_IMAGES)])
        labels = {"domain": np.repeat(DOMAINS, len(rows))}
        if "target_class" in collected:
            labels["class"] = np.concatenate([collected[f"{domain}_class"][rows] for domain in DOMAINS])
        vectors = np.concatenate([collected[domain][rows] for domain in DOMAINS])
        return Shown(embeddings={"logits": Embedding(vectors, labels, images)})


def domain_adaptation(*, parts: Parts, domain_weight: float = 1.0) -> Recipe:
    """Build the network of the config and its objective.

    A final softmax or sigmoid of a head is removed for training, since the loss takes logits, and restored in exports.
    The argument is described in `configs/task/domain_adaptation.yaml`.
    """
    check_number("domain_weight", domain_weight, 0)
    data = parts.data
    if TARGET_IMAGES not in data.train.source.gather(tf.constant(data.train.indices[:1])):
        raise UserError(
            f"The data '{data.name}' has one domain. Expected two: images of the target as '{TARGET_IMAGES}' beside "
            "'inputs', such as data=domains gives."
        )
    model, activations = take_off(parts.build_model(input_shape=data.input_shape, classes=data.classes))
    check_inputs(model, data)
    shapes = [tuple(output.shape[1:]) for output in getattr(model, "outputs", None) or []]
    expected = [(data.classes,), (1,)]
    if shapes != expected:
        raise UserError(
            f"The network '{model.name}' returns the shapes {shapes} per image. Expected two heads, {expected}: logits "
            "of the classes and of the domain, such as model=two_headed_cnn has."
        )
    network = Network("model", model, parts.build_optimizer(), final_activations=activations)
    return Recipe([network], [DomainAdaptation(classes=data.classes, domain_weight=domain_weight)])


def _in_float32(outputs: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Return logits of classes [batch, classes] and of the domain [batch]."""
    logits, domain = outputs
    return tf.cast(logits, tf.float32), tf.cast(domain, tf.float32)[:, 0]


def _correct(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.equal(tf.argmax(logits, axis=-1), tf.cast(labels, tf.int64)), tf.float32)
