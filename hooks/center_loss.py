"""Center loss: features are pulled to the centers of their classes, and the centers follow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hookline.hooks.graphs import select_layer
from hookline.hooks.options import epoch_start
from hookline.trainer.errors import UserError, check_number
from hookline.trainer.graph import layer_input, layer_output
from hookline.trainer.hook import Arrays, Declaration, Evaluated, GraphHook, Tensors
from hookline.trainer.objective import Embedding, Shown, hard_labels, thumbnails
from hookline.trainer.ops.centers import center_change, center_sums, class_distances, known_labels, mean_pair_distance
from hookline.trainer.step.context import BuildContext, StepContext
from hookline.trainer.step.means import example_weights, sample_weights, weighted_mean

UNLEARNED, COMPACT, DOMINATED_REPORTS = 1 / 3, 0.1, 3
"""The loss dominates if center/ratio is below COMPACT, or the loss above the other losses, while these still exceed
UNLEARNED * log(classes), DOMINATED_REPORTS times in a row. Accuracy on digits: weight 0.3, 84 %; 3, 67 %; 30, 39 %."""
COLLAPSED = 1e-3  # distance between centers, relative to their mean length or 1, whichever is larger


class CenterLoss(GraphHook):
    """Pull the features of each class together, in addition to a loss that separates the classes.

    The loss has a gradient for the features x of an example, but none for the center c_y of its class. Ops that run
    before the optimizer (UPDATE_OPS) update the centers once per step from the whole batch; the loss of the step uses
    the centers before that update. The center of a class without an example does not move, and no optimizer changes
    centers. They start at 0 and move even while the weight is still 0, so that they are near their features when it
    rises.

    `weight` is the paper's lambda. In the paper both losses are sums over the batch; here both are means. To match code
    that adds a summed center loss to a mean cross-entropy, set `weight` to lambda times the batch size; to match code
    that averages the squared distance over batch and d dimensions, to 2 lambda / d. weight=0 still reports everything:
    use it as the baseline.

    A target outside the range of classes holds the step back and ends the run; in an evaluation, the loss is NaN. If
    the hook has another name, its reports have that name instead of "center".

    Group: technique

    Equation:
        L_C = weight_t / 2 * mean over the batch of ||x_i - c_(y_i)||^2
        weight_t = weight * min(max((t - t0 + 1) / (t1 - t0 + 1), 0), 1)
                   t0, t1: the steps at which begin_epoch and then warm_up_epochs are over
        dL_C/dx_i = weight_t * (x_i - c_(y_i)) / batch
        c_j <- c_j - alpha * sum over i with y_i = j of (c_j - x_i) / (1 + n_j)    n_j: examples of class j in the batch

    State:
        centers: the center of each class, [classes, d].

    Scalars:
        center/distance: mean distance of the batch's features from their centers, before these are updated.
        center/between: mean distance between centers.
        center/ratio: distance / between; 0 if the centers coincide.
        center/length: mean length of the centers.
        loss/center: the weighted loss, in training and in evaluations.
        metric/center_within: mean distance of a split's features from the means of their classes.
        metric/center_between: mean distance between these means.
        metric/center_ratio: within / between.

    Pictures:
        center/features: up to 1,000 examples in the plane of two features, with the centers; also in the projector. If
            there are more than two features, their first two principal components are drawn, as
            center/features_principal_components.

    Cost: 0.99 of the speed (LeNet-5, batch 100).

    Pitfalls:
        tests/trainer/ops/test_centers.py: without the 1 + n, the centers diverge where a class has n > 2 / alpha
            examples in a batch.
        tests/hooks/test_center_loss.py: no optimizer changes the centers, and micro batches move them once.

    Reference: Wen et al. 2016, "A Discriminative Feature Learning Approach for Deep Face Recognition", equations 2 to
        4.

    Example:
        python train.py recipe=center_loss
        python train.py recipe=center_loss hooks.center_loss.weight=0
    """

    observed_examples = 1000

    def __init__(
        self,
        *,
        weight: float = 0.01,
        alpha: float = 0.5,
        layer: str | None = None,
        begin_epoch: float = 0.0,
        warm_up_epochs: float = 1.0,
        network: str = "model",
    ) -> None:
        """Check the options.

        Args:
            weight: 0 or more, the paper's lambda; 0 measures without pulling.
            alpha: in (0, 1], how far centers move toward their examples.
            layer: pattern on the path or name of the layer that outputs the features, [batch, d]; None for the input of
                the last dense layer.
            begin_epoch: 0 or more; the weight is 0 before it.
            warm_up_epochs: 0 or more; from `begin_epoch` on, the weight rises linearly from 0 over this many epochs.
            network: name of the network.
        """
        self.weight = check_number("weight", weight, minimum=0.0)
        self.alpha = check_number("alpha", alpha, minimum=0.0, maximum=1.0, above_minimum=True)
        self.layer = layer
        self.begin_epoch = check_number("begin_epoch", begin_epoch, 0)
        self.warm_up_epochs = check_number("warm_up_epochs", warm_up_epochs, 0)
        self.network = network
        self._dominated = 0

    @property
    def _prefix(self) -> str:
        return "center" if self.key == "center_loss" else self.key

    @property
    def _tap(self) -> str:
        return f"{self._prefix}_features"

    def request_taps(self, model: keras.Model) -> dict[str, Any]:
        return {self._tap: find_features(model, self.layer)}

    def build(self, context: BuildContext) -> None:
        if context.classes is None:
            raise UserError(
                f"The data does not define the number of classes. Expected data with classes, or hooks.{self.key}=null."
            )
        width = context.network.taps[self._tap].shape[-1]
        self._centers = tf.Variable(tf.zeros([context.classes, width]), trainable=False, name="centers")
        self._begin = epoch_start(self.begin_epoch, context.steps_per_epoch)
        self._end = epoch_start(self.begin_epoch + self.warm_up_epochs, context.steps_per_epoch)

    def declare(self) -> Declaration:
        state = {"centers": self._centers}
        return Declaration(state, writes=state, best_from_step=self._end if self.weight else 0)  # at full weight

    def add_losses(self, context: StepContext) -> Tensors:
        features, labels = self._examples(context)
        centers = tf.stop_gradient(tf.convert_to_tensor(self._centers))
        known, rows = known_labels(labels, centers.shape[0])
        squared = tf.reduce_sum(tf.square(features - tf.gather(centers, rows)), axis=-1)
        squared = tf.where(known, squared, 0.0 if context.training else float("nan"))
        context.taps[f"{self._prefix}_squared_distances"] = squared
        risen = tf.cast(context.step - self._begin + 1, tf.float32) / float(self._end - self._begin + 1)
        return {self._prefix: 0.5 * (self.weight * tf.clip_by_value(risen, 0.0, 1.0)) * squared}

    def _examples(self, context: StepContext) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the features, float32 [batch, d], and the labels, int64 [batch]."""
        labels = hard_labels(context.batch, f"hooks.{self.name}")
        if labels.shape.rank != 1 or not (labels.dtype.is_integer or labels.dtype.is_bool):
            raise UserError(
                f"The targets are {labels.dtype.name} of shape {labels.shape}. Expected class labels: integers [batch]."
            )
        features = context.taps[self._tap]
        if not features.shape[:1].is_compatible_with(labels.shape):  # a generator may draw any number of samples
            raise UserError(
                f"The network '{self.network}' has features of {features.shape[0]} examples, and the batch has labels "
                f"of {labels.shape[0]}. Expected hooks.{self.key}.network to run on the examples of the batch."
            )
        return tf.cast(features, tf.float32), tf.cast(labels, tf.int64)

    def veto(self, context: StepContext) -> Tensors:
        """Return whether a target is not a class."""
        classes = self._centers.shape[0]
        known, _ = known_labels(self._examples(context)[1], classes)
        return {f"{self.key}: a target outside [0, {classes})": tf.logical_not(tf.reduce_all(known))}

    def batch_sums(self, context: StepContext) -> Tensors:
        features, labels = self._examples(context)
        sums, counts = center_sums(self._centers, features, labels, sample_weights(context.batch))
        return {"sums": sums, "counts": counts}

    def update_ops(self, context: StepContext) -> list[tf.Operation | tf.Tensor]:
        sums, counts = (context.sums[f"{self.name}/{each}"] for each in ("sums", "counts"))
        every_class = tf.range(self._centers.shape[0])
        return [self._centers.scatter_sub(tf.IndexedSlices(self.alpha * center_change(sums, counts), every_class))]

    def measure(self, context: StepContext) -> Tensors:
        distances = tf.sqrt(context.taps[f"{self._prefix}_squared_distances"])
        distance = weighted_mean("distance", distances, example_weights(context.batch))
        centers = tf.convert_to_tensor(self._centers)
        between = mean_pair_distance(centers)
        return {
            f"{self._prefix}/distance": distance,
            f"{self._prefix}/between": between,
            f"{self._prefix}/ratio": tf.math.divide_no_nan(distance, between),
            f"{self._prefix}/length": tf.reduce_mean(tf.norm(centers, axis=-1)),
        }

    def warning(self, values: Mapping[str, float]) -> str | None:
        between, length = values[f"{self._prefix}/between"], values[f"{self._prefix}/length"]
        if not self.weight:
            return None
        if between <= COLLAPSED * max(length, 1.0):
            return (
                f"all centers lie in one place ({between:.2g} apart, {length:.2g} from the origin). Lower "
                f"hooks.{self.key}.weight, or raise its begin_epoch and warm_up_epochs."
            )
        own, total = (values.get(f"loss/{name}", 0.0) for name in (self._prefix, "total"))
        ratio, task, chance = values.get(f"{self._prefix}/ratio", 1.0), total - own, math.log(self._centers.shape[0])
        dominates = task > UNLEARNED * chance and (ratio < COMPACT or own > task)
        self._dominated = self._dominated + 1 if dominates else 0
        if self._dominated < DOMINATED_REPORTS:
            return None
        return (
            f"the center loss dominates: classes are {ratio:.2g} times as wide as they are apart, but the other losses "
            f"are still {task:.2g} after {self._dominated} such reports, of {chance:.2g} at chance. Set "
            f"hooks.{self.key}.weight={self.weight / 10:g}."
        )

    def evaluate(self, context: StepContext) -> Evaluated:
        features, labels = self._examples(context)
        collected, inputs = {"features": features, "labels": labels}, context.batch["inputs"]
        if context.observing and tf.is_tensor(inputs) and inputs.shape.rank == 4 and inputs.shape[-1] in (1, 3):
            collected["images"] = thumbnails(inputs)
        return Evaluated(collected=collected, split_metrics=self._distances)

    def _distances(self, collected: Tensors) -> Tensors:
        """Return the mean distance of a split's features from their class means, and between class means."""
        within, between = class_distances(collected["features"], collected["labels"], self._centers.shape[0])
        return {
            f"{self._prefix}_within": within,
            f"{self._prefix}_between": between,
            f"{self._prefix}_ratio": tf.math.divide_no_nan(within, between),
        }

    def show(self, observed: Arrays) -> Shown:
        shown = Shown(distributions={f"{self._prefix}/centers": self._centers.numpy()})
        if observed:
            shown.pictures = self._pictures(observed)
            examples = Embedding(observed["features"], {"class": observed["labels"]}, observed.get("images"))
            shown.embeddings = {f"{self._prefix}/features": examples}
        return shown

    def _pictures(self, observed: Arrays) -> Arrays:
        """Return the observed features with the centers, in a plane."""
        finite, centers = np.isfinite(observed["features"]).all(axis=1), self._centers.numpy()
        features, labels = observed["features"][finite], observed["labels"][finite]
        if not len(features) or not np.isfinite(centers).all():
            return {}
        (axes, share), width = plane_axes(features), features.shape[1]
        name, title = f"{self._prefix}/features", "Features and the centers of their classes"
        if width > 2:
            name += "_principal_components"
            title = f"Principal components 1 and 2 of {width} features: {share:.0%} of the variance"
        return {name: scatter_plot(features @ axes, labels, centers @ axes, title)}

    def summary(self) -> dict[str, Any]:
        classes, width = self._centers.shape
        return {"weight": self.weight, "alpha": self.alpha, "classes": classes, "dimensions": width}


def plane_axes(features: np.ndarray) -> tuple[np.ndarray, float]:
    """Return axes [d, 2] to draw features [n, d] along (principal components if d > 2), and their share of variance."""
    width = features.shape[1]
    if width <= 2:
        return np.eye(width, 2), 1.0
    centered = features.astype(np.float64) - features.mean(axis=0)
    _, sizes, components = np.linalg.svd(centered, full_matrices=False)
    axes = np.zeros((width, 2))
    for column, component in enumerate(components[:2]):  # the sign is fixed, so that successive pictures do not flip
        axes[:, column] = component * np.copysign(1.0, component[np.argmax(np.abs(component))])
    total = float(np.sum(sizes**2))
    return axes, float(np.sum(sizes[:2] ** 2)) / total if total else 1.0


MOST_NUMBERED, MOST_LISTED = 30, 20  # with more centers they are not numbered, with more classes there is no legend


def scatter_plot(points: np.ndarray, labels: np.ndarray, centers: np.ndarray, title: str) -> np.ndarray:
    """Return a picture of points in the colors of their classes, with the centers as numbered rings."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 6.4), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot(title=title)
    axes.set_aspect("equal", adjustable="datalim")
    for label in np.unique(labels):
        horizontal, vertical = points[labels == label].T
        axes.scatter(horizontal, vertical, s=6, color=f"C{label % 10}", label=str(label))
    axes.scatter(centers[:, 0], centers[:, 1], s=120, facecolors="none", edgecolors="black", linewidths=1.5)
    for label, place in enumerate(centers if len(centers) <= MOST_NUMBERED else ()):
        axes.annotate(str(label), place, (6, 6), textcoords="offset points", fontweight="bold")
    if len(np.unique(labels)) <= MOST_LISTED:
        figure.legend(loc="outside right upper", markerscale=3)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba(), np.float32)[..., :3] / 255.0


def find_features(model: keras.Model, pattern: str | None) -> Any:
    """Return the feature tensor [batch, d] of a model's own graph."""
    if pattern is None:
        dense = [layer for layer in model.layers if isinstance(layer, keras.layers.Dense)]
        if not dense:
            raise UserError(
                f"The model '{model.name}' has no top-level dense layer. Set layer to one that outputs "
                f"the features: {', '.join(layer.name for layer in model.layers)}."
            )
        layer = dense[-1]  # a functional model lists its layers in the order of its graph
        features, where = layer_input(model, layer), f"The input of the layer '{layer.name}'"
    else:
        layer = select_layer(model, pattern)
        features, where = layer_output(model, layer), f"The output of the layer '{layer.name}'"
    if len(features.shape) != 2 or features.shape[-1] is None:
        raise UserError(f"{where} has shape {tuple(features.shape)}. Expected features [batch, d]: set a later layer.")
    return features
