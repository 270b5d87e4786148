"""Metrics and pictures of the quality of generated samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf
from PIL import Image, ImageDraw, ImageFont

from hookline.recipes.data.points import MixtureData
from hookline.recipes.models import is_image
from hookline.trainer.errors import UserError
from hookline.trainer.graph import as_functional, is_graph, layer_input
from hookline.trainer.input.data import HOST, Data
from hookline.trainer.input.preparation import different_ranges
from hookline.trainer.network import Network
from hookline.trainer.objective import Batch, enlarged, in_rows, sheet
from hookline.trainer.run.finished import read_config, restore_beside, shipped_network


def class_shares(labels: tf.Tensor, classes: int) -> tf.Tensor:
    """Return the share of each class."""
    counts = tf.math.bincount(tf.cast(labels, tf.int32), minlength=classes, maxlength=classes, dtype=tf.float32)
    return counts / tf.reduce_sum(counts)


def share_distances(generated: tf.Tensor, real: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return distances of the class distribution of samples from that of the data.

    - total_variation: half the sum of |p - q|, in [0, 1]: the share of samples that would have to change class.
    - kl: KL(p || q) in nats, of the generated shares p to the real ones q; infinite for a class that the data lacks.
    - missing: the number of classes of the data that no sample is assigned to.
    """
    ratio = tf.where(generated > 0.0, generated / real, 1.0)  # x / 0 is infinite, and so is its logarithm
    missing = tf.logical_and(real > 0.0, tf.equal(generated, 0.0))
    return {
        "total_variation": 0.5 * tf.reduce_sum(tf.abs(generated - real)),
        "kl": tf.maximum(tf.reduce_sum(generated * tf.math.log(ratio)), 0.0),  # below 0 by rounding alone
        "missing": tf.reduce_sum(tf.cast(missing, tf.float32)),
    }


Moments: TypeAlias = "tuple[tf.Tensor, tf.Tensor]"
"""The mean, float64 [d], and the unbiased covariance, float64 [d, d], of features."""


def moments(features: tf.Tensor) -> Moments:
    """Return the moments of features."""
    with tf.device(HOST):
        values = tf.cast(features, tf.float64)
        mean = tf.reduce_mean(values, axis=0)
        centered = values - mean
        products = tf.matmul(centered, centered, transpose_a=True)
        return mean, products / tf.cast(tf.shape(values)[0] - 1, tf.float64)


def frechet_distance(first: Moments, second: Moments) -> tf.Tensor:
    """Return the squared Frechet distance d^2 between the normal distributions with these moments.

    d^2 = |m1 - m2|^2 + tr(S1 + S2 - 2 (S1 S2)^(1/2)): Dowson and Landau 1982; as a measure of generated images, with
    the features of another classifier, Heusel et al. 2017, "GANs Trained by a Two Time-Scale Update Rule". Its
    value depends on the classifier and on how many samples there are (few samples give larger values): compare only
    values of one classifier and one count.
    """
    with tf.device(HOST):  # float64 is slow on accelerators
        # tr (S1 S2)^(1/2) is the sum of the singular values of S1^(1/2) S2^(1/2). The root of the product S1 S2 itself
        # would turn rounding errors e into sqrt(e), and may be complex where features are nearly dependent.
        (mean, covariance), (other_mean, other_covariance) = first, second
        root = tf.matmul(_square_root(covariance), _square_root(other_covariance))
        shared = tf.reduce_sum(tf.linalg.svd(root, compute_uv=False))
        spread = tf.linalg.trace(covariance) + tf.linalg.trace(other_covariance) - 2.0 * shared
        apart = tf.reduce_sum(tf.square(mean - other_mean))
        return tf.cast(tf.maximum(apart + spread, 0.0), tf.float32)  # below 0 by rounding alone


def _square_root(covariance: tf.Tensor) -> tf.Tensor:
    values, vectors = tf.linalg.eigh(covariance)
    return tf.matmul(vectors * tf.sqrt(tf.maximum(values, 0.0)), vectors, transpose_b=True)


WITHIN = 3.0  # standard deviations: a sample farther from every mode is not of high quality


def mode_metrics(samples: tf.Tensor, modes: tf.Tensor, std: float) -> dict[str, tf.Tensor]:
    """Return how well samples cover the modes of a mixture of Gaussians.

    A sample belongs to its nearest mode, and is of high quality when it lies within three standard deviations of it.

    - modes: the number of modes with a high-quality sample (Srivastava et al. 2017, "VEEGAN", section 4.1; Lin et al.
      2018, "PacGAN", section 4.1, from 2,500 samples each). It is generous: one lucky sample covers a mode.
    - high_quality: the share of high quality among all samples.
    - kl_to_uniform: KL(q || u) = log(m) + sum(q log q) in nats, of the shares q of all finite samples by their nearest
      mode, to the uniform distribution over the m modes; 0 if they are even, log(m) if all lie at one.
    - coverage: the sum over modes of min(p, 1 / m), with p the share of all samples that are of high quality and belong
      to the mode. It is 1 minus the total variation distance between where samples lie (a mode, or nowhere) and the
      uniform distribution over the modes: 0.989 for the data itself, and large neither for good samples of few modes
      nor for bad samples of all. It therefore decides which step of a run is best.

    Non-finite samples are never of high quality and belong to no mode. If all are non-finite, kl_to_uniform is log(m).
    """
    samples, modes = tf.cast(samples, tf.float32), tf.cast(modes, tf.float32)
    finite = tf.reduce_all(tf.math.is_finite(samples), axis=-1)
    squared = tf.reduce_sum(tf.square(samples[:, tf.newaxis] - modes), axis=-1)
    at_mode = tf.one_hot(tf.argmin(squared, axis=-1), modes.shape[0])
    at_mode = tf.where(finite[:, tf.newaxis], at_mode, 0.0)  # [samples, modes]
    is_good = tf.logical_and(finite, tf.reduce_min(squared, axis=-1) <= (WITHIN * std) ** 2)
    good = tf.reduce_mean(tf.where(is_good[:, tf.newaxis], at_mode, 0.0), axis=0)
    counts, even = tf.reduce_sum(at_mode, axis=0), 1.0 / modes.shape[0]
    shares = tf.math.divide_no_nan(counts, tf.reduce_sum(counts))
    divergence = tf.math.log(float(modes.shape[0])) + tf.reduce_sum(tf.math.xlogy(shares, shares))
    return {
        "modes": tf.reduce_sum(tf.cast(good > 0.0, tf.float32)),
        "high_quality": tf.reduce_mean(tf.cast(is_good, tf.float32)),
        "kl_to_uniform": tf.maximum(divergence, 0.0),  # below 0 by rounding alone
        "coverage": tf.reduce_sum(tf.minimum(good, even)),
    }


TASK = "hookline.recipes.classification.classification"


def load_classifier(run: str, data: Data, plugins: Sequence[str] = ()) -> keras.Model:
    """Return the classifier of a finished run at its best evaluation, from images to features and logits."""
    try:
        config = read_config(run, plugins)
        task = config.get("task")
        if not isinstance(task, dict) or task.get("_target_") != TASK:
            raise UserError("this run trained no classifier. Expected the directory of a run of recipe=baseline.")
        finished = restore_beside(run, config)
        model = _with_features(shipped_network(finished))
        found, logits = tuple(model.inputs[0].shape[1:]), model.outputs[1].shape[-1]
        if (found, logits) != (tuple(data.input_shape), data.classes):
            raise UserError(
                f"this run separates {logits} classes of inputs {list(found)}. Expected one of the same data, with "
                f"{data.classes} classes of inputs {list(data.input_shape)}."
            )
        preparations = (finished.data.preparation, data.preparation)
        if told := different_ranges(*(None if each is None else each.pixel_range for each in preparations)):
            raise UserError(
                f"this run was trained on inputs {told[0]}, but the data gives inputs {told[1]}. Set data.scale "
                "(pixels: from -1 to 1, unit: from 0 to 1) so that they are alike, or give a classifier of this data."
            )
        return model
    except UserError as error:
        raise UserError(f"classifier={run}: {error}") from error


def _with_features(network: Network) -> keras.Model:
    """Return a model that outputs the last dense layer's inputs and the logits; it shares the network's variables."""
    model = as_functional(network.model) if is_graph(network.model) else None
    dense = [layer for layer in model.layers if isinstance(layer, keras.layers.Dense)] if model is not None else []
    features: Any = layer_input(model, dense[-1]) if dense else None
    if model is None or features is None or len(features.shape) != 2 or features.shape[-1] is None:
        raise UserError(
            f"its network, a {type(network.model).__name__}, gives no features. Expected a functional or Sequential "
            "network that ends with a dense layer of [n, d]."
        )
    return keras.Model(model.inputs[0], [features, model.outputs[0]])


Metrics: TypeAlias = "dict[str, tf.Tensor]"
REAL_PICTURES = "real"
SMALLEST = 32  # pixels per side: smaller images are enlarged to at least this
GAP = 2  # pixels between images


@dataclass(frozen=True, eq=False)
class MixtureQuality:
    """Judge points by the Gaussians they imitate."""

    centers: np.ndarray  # float32 [modes, 2]
    deviation: float  # of each Gaussian

    def collect(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Return the parts of the data that metrics and pictures need, [batch, ...] by name."""
        return {REAL_PICTURES: batch["inputs"]}

    def metrics(self, samples: tf.Tensor, collected: dict[str, tf.Tensor]) -> Metrics:
        """Return scalars by name."""
        return mode_metrics(samples, tf.constant(self.centers), self.deviation)

    def picture(self, samples: np.ndarray, collected: Mapping[str, np.ndarray], title: str) -> np.ndarray:
        """Return a picture [height, width, 3] in [0, 1]."""
        real, radius = collected[REAL_PICTURES][:1000], WITHIN * self.deviation
        return scatter_picture(samples, real, self.centers, radius, title)


@dataclass(frozen=True, eq=False)
class ImageQuality:
    """Judge images by the features and classes that a trained classifier assigns; without one, only show them."""

    classes: int  # of the data
    classifier: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]] | None
    """Returns features and logits; trained on the same data."""

    def collect(self, batch: Batch) -> dict[str, tf.Tensor]:
        if self.classifier is None:
            return {}
        features, _ = self.classifier(batch["inputs"])
        return {"features": tf.cast(features, tf.float32), "targets": batch["targets"]}

    def metrics(self, samples: tf.Tensor, collected: dict[str, tf.Tensor]) -> Metrics:
        if self.classifier is None:
            return {}
        features, logits = self.classifier(samples)
        labels = tf.argmax(logits, axis=-1, output_type=tf.int32)
        real = class_shares(collected["targets"], self.classes)
        histogram = share_distances(class_shares(labels, self.classes), real)
        distance = frechet_distance(moments(tf.cast(features, tf.float32)), moments(collected["features"]))
        return {"frechet_distance": distance, **{f"class_{name}": value for name, value in histogram.items()}}

    def picture(self, samples: np.ndarray, collected: Mapping[str, np.ndarray], title: str) -> np.ndarray:
        return sheet(in_rows(enlarged(samples[:64], SMALLEST)), GAP)


Quality: TypeAlias = "MixtureQuality | ImageQuality"


def quality_for(data: Data, classifier: str | None, plugins: Sequence[str] = ()) -> Quality | None:
    """Return the quality metrics for samples of some data; None if there are none."""
    if is_image(data.input_shape):
        if classifier is None:
            return ImageQuality(data.classes, None)
        return ImageQuality(data.classes, partial(load_classifier(classifier, data, plugins), training=False))
    if classifier is not None:
        raise UserError(f"task.classifier={classifier} received, but data={data.name} has no images. Expected null.")
    return MixtureQuality(data.centers, data.deviation) if isinstance(data, MixtureData) else None


def average_metrics(metrics: Callable[[tf.Tensor], Metrics], samples: tf.Tensor) -> Metrics:
    """Return the metrics of several generators: the mean of each, and also the best "modes" and "coverage"."""
    each = [metrics(samples[place]) for place in range(samples.shape[0])]
    if len(each) == 1:
        return each[0]
    together = {name: tf.stack([one[name] for one in each]) for name in each[0]}
    best = {f"best_{name}": tf.reduce_max(together[name]) for name in ("modes", "coverage") if name in together}
    return {**{name: tf.reduce_mean(values) for name, values in together.items()}, **best}


TITLE, MARGIN = 22, 2  # pixels: the height of a line of text, and the space to its left


def draw(quality: Quality, samples: np.ndarray, collected: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return one picture of the samples of one generator, or of several one above the other, each under a title."""
    if len(samples) == 1:
        return quality.picture(samples[0], collected, "samples")
    parts, font = [], ImageFont.load_default(14)
    for place, each in enumerate(samples):
        picture = quality.picture(each, collected, "")
        line = Image.new("RGB", (picture.shape[1], TITLE), "white")
        ImageDraw.Draw(line).text((MARGIN, TITLE - 5), f"generator {place}", "black", font, anchor="ls")
        parts += [np.asarray(line, np.float32) / 255.0, picture]
    return np.concatenate(parts)


def scatter_picture(samples: np.ndarray, real: np.ndarray, modes: np.ndarray, radius: float, title: str) -> np.ndarray:
    """Return a picture of samples over real points, with a circle around each mode; samples do not move the limits."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # not needed to train
    from matplotlib.figure import Figure
    from matplotlib.patches import Circle

    shown = np.concatenate([modes - radius, modes + radius, real])
    low, high = shown.min(axis=0), shown.max(axis=0)
    middle, half = (low + high) / 2.0, 0.65 * float((high - low).max()) or 0.5
    inside = np.all(np.abs(samples - middle) <= half, axis=1)  # False for NaN
    figure = Figure((6.0, 6.4), dpi=100)
    axes = figure.add_axes((0.03, 0.05, 0.94, 0.88), xticks=[], yticks=[], title=title)
    axes.set(xlim=(middle[0] - half, middle[0] + half), ylim=(middle[1] - half, middle[1] + half))
    axes.scatter(real[:, 0], real[:, 1], s=5, color="silver", linewidths=0)
    axes.scatter(samples[inside, 0], samples[inside, 1], s=8, color="orangered", linewidths=0)
    for mode in modes:
        axes.add_patch(Circle((mode[0], mode[1]), radius, fill=False, edgecolor="navy"))
    axes.set_xlabel(f"{len(samples):,} samples, {int((~inside).sum()):,} outside the picture")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba(), np.float32)[..., :3] / 255.0
