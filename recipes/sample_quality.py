"""How good generated samples are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf
from PIL import Image, ImageDraw, ImageFont

from hookline.recipes.data.points import MixtureData
from hookline.recipes.models import is_image
from hookline.trainer.errors import UserError
from hookline.trainer.graph import as_functional, is_graph, layer_input
from hookline.trainer.input.data import Data
from hookline.trainer.input.source import HOST
from hookline.trainer.network import Network
from hookline.trainer.objective import Batch
from hookline.trainer.run.finished import read_config, shipped_network


def class_shares(labels: tf.Tensor, classes: int) -> tf.Tensor:
    """Return the share of each class."""
    counts = tf.math.bincount(tf.cast(labels, tf.int32), minlength=classes, maxlength=classes, dtype=tf.float32)
    return counts / tf.reduce_sum(counts)


def share_distances(generated: tf.Tensor, real: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return how far the class distribution of samples is from that of the data.

    - total_variation: half the sum of |p - q|, in [0, 1]: the share of samples that has to change class.
    - kl: KL(p || q) in nats, of the generated shares p to the real ones q; infinite for a class that the data lacks.
    - missing: how many classes of the data no sample is assigned to.
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
    with tf.device(HOST):  # float64, which accelerators are slow at
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

    - modes: how many modes have a sample of high quality (Srivastava et al. 2017, "VEEGAN", section 4.1; Lin et al.
      2018, "PacGAN", section 4.1, from 2,500 samples each). It is generous: one lucky sample covers a mode.
    - high_quality: the share of high quality among all samples.
    - kl_to_uniform: KL(q || u) = log(m) + sum(q log q) in nats, of the shares q of all finite samples by their nearest
      mode, to the uniform distribution over the m modes; 0 where they are even, log(m) where all lie at one.
    - coverage: the sum over modes of min(p, 1 / m), with p the share of all samples that are of high quality and belong
      to the mode. It is 1 minus the total variation distance between where samples lie (a mode, or nowhere) and the
      uniform distribution over the modes: 0.989 for the data itself, and large neither for good samples of few modes
      nor for bad samples of all. So it decides which step of a run is the best.

    Non-finite samples are of no quality, and at no mode. If all are, kl_to_uniform is log(m).
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


WIDTH, HEIGHT = 600, 640
LEFT, TOP, SIDE = 20, 44, 560  # the square that the points lie in
FINER = 2  # drawn this many times as large, then shrunk: smooth edges
MARGIN = 0.15  # of the range, around the outermost modes and real points
REAL_DOT, DOT = 1.5, 2.0  # radii
REAL, SAMPLE, MODE, FRAME, WHITE = (190, 190, 190), (204, 51, 17), (0, 68, 136), (110, 110, 110), (255, 255, 255)
SMALLEST = 32  # pixels a side: smaller images are enlarged to at least this
GAP = 2  # pixels between images
TITLE = 22  # pixels for a line of text


def scatter_picture(samples: np.ndarray, real: np.ndarray, modes: np.ndarray, std: float, title: str) -> np.ndarray:
    """Return a picture of generated points over real ones, with a circle of three standard deviations at each mode.

    The frame does not move with the samples, so that pictures of one run make an animation.
    """
    low, span = _range(np.concatenate([modes - WITHIN * std, modes + WITHIN * std, real]))
    inside = np.isfinite(samples).all(axis=1)
    inside[inside] = np.all((samples[inside] >= low) & (samples[inside] <= low + span), axis=1)
    image = Image.new("RGB", (WIDTH * FINER, HEIGHT * FINER), WHITE)
    draw = ImageDraw.Draw(image)
    for points, radius, style in (
        (real, REAL_DOT, {"fill": REAL}),
        (samples[inside], DOT, {"fill": SAMPLE}),
        (modes, WITHIN * std / span * SIDE, {"outline": MODE, "width": FINER}),
    ):
        for x, y in ((points - low) / span).tolist():
            draw.ellipse(_box(LEFT + SIDE * x, TOP + SIDE * (1.0 - y), radius), **style)
    draw.rectangle([each * FINER for each in (LEFT, TOP, LEFT + SIDE, TOP + SIDE)], outline=FRAME, width=FINER)
    _text(draw, LEFT, TOP - 14, title)
    outside = len(samples) - int(inside.sum())
    _text(draw, LEFT, TOP + SIDE + 24, f"{len(samples):,} samples, {outside:,} outside the picture")
    return np.asarray(image.resize((WIDTH, HEIGHT), Image.Resampling.BOX), np.float32) / 255.0


def _range(points: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the lower corner and the side of a square around all points."""
    low, high = points.min(axis=0), points.max(axis=0)
    span = float((high - low).max()) * (1.0 + 2.0 * MARGIN) or 1.0
    return (low + high) / 2.0 - span / 2.0, span


def _box(x: float, y: float, radius: float) -> tuple[float, float, float, float]:
    return (x - radius) * FINER, (y - radius) * FINER, (x + radius) * FINER, (y + radius) * FINER


def _text(draw: ImageDraw.ImageDraw, x: float, y: float, text: str) -> None:
    draw.text((x * FINER, y * FINER), text, (0, 0, 0), ImageFont.load_default(16 * FINER), anchor="ls")


def image_sheet(images: np.ndarray) -> np.ndarray:
    """Return images side by side, row by row from the upper left."""
    columns = math.ceil(math.sqrt(len(images)))
    times = max(1, math.ceil(SMALLEST / min(images.shape[1:3])))
    pixels = np.clip((np.nan_to_num(images.astype(np.float32), nan=-1.0) + 1.0) / 2.0, 0.0, 1.0)
    pixels = np.broadcast_to(pixels, (*pixels.shape[:3], 3)).repeat(times, axis=1).repeat(times, axis=2)
    height, width = pixels.shape[1] + GAP, pixels.shape[2] + GAP
    sheet = np.ones((math.ceil(len(images) / columns) * height + GAP, columns * width + GAP, 3), np.float32)
    for index, tile in enumerate(pixels):
        top, left = index // columns * height + GAP, index % columns * width + GAP
        sheet[top : top + tile.shape[0], left : left + tile.shape[1]] = tile
    return sheet


def stacked_sheets(sheets: Sequence[np.ndarray], titles: Sequence[str]) -> np.ndarray:
    """Return pictures below one another, each with its title above, such as one sheet for each generator."""
    widest = max(sheet.shape[1] for sheet in sheets)
    parts = []
    for sheet, title in zip(sheets, titles, strict=True):
        line = Image.new("RGB", (widest, TITLE), WHITE)
        ImageDraw.Draw(line).text((GAP, TITLE - 5), title, (0, 0, 0), ImageFont.load_default(14), anchor="ls")
        parts.append(np.asarray(line, np.float32) / 255.0)
        parts.append(np.pad(sheet, [(0, 0), (0, widest - sheet.shape[1]), (0, 0)], constant_values=1.0))
    return np.concatenate(parts)


TASK = "hookline.recipes.classification.classification"


@dataclass(frozen=True)
class Classifier:
    """A trained classifier that no longer changes."""

    model: keras.Model  # images to [features [n, d], the inputs of the last dense layer, and logits [n, classes]]

    def __call__(self, images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the features and the classes of images, also inside a traced function."""
        features, logits = self.model(images, training=False)
        return tf.cast(features, tf.float32), tf.argmax(logits, axis=-1, output_type=tf.int32)


def load_classifier(run: str, *, input_shape: Sequence[int], classes: int, plugins: Sequence[str] = ()) -> Classifier:
    """Return the classifier that a finished run trained, with the weights it is evaluated with at its best checkpoint.

    Random state and Keras's automatic names are not affected by it.
    """
    try:
        return _load(run, tuple(input_shape), classes, plugins)
    except UserError as error:
        raise UserError(f"classifier={run}: {error}") from error


def _load(run: str, input_shape: tuple[int, ...], classes: int, plugins: Sequence[str]) -> Classifier:
    config = read_config(run, plugins)
    task = config.get("task")
    if not isinstance(task, dict) or task.get("_target_") != TASK:
        raise UserError("this run trained no classifier. Expected the directory of a run of recipe=baseline.")
    model = _with_features(shipped_network(run, config))
    found, logits = tuple(model.inputs[0].shape[1:]), model.outputs[1].shape[-1]
    if (found, logits) != (input_shape, classes):
        raise UserError(
            f"this run separates {logits} classes of inputs {list(found)}. Expected one of the same data, with "
            f"{classes} classes of inputs {list(input_shape)}."
        )
    return Classifier(model)


def _with_features(network: Network) -> keras.Model:
    """Return a model of the inputs of the last dense layer and of the logits; it shares the network's variables."""
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
PICTURED_POINTS = 1000
PICTURED_IMAGES = 64


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
        return scatter_picture(samples, collected[REAL_PICTURES][:PICTURED_POINTS], self.centers, self.deviation, title)


@dataclass(frozen=True, eq=False)
class ImageQuality:
    """Judge images by the features and classes that a trained classifier sees in them; without one, show them."""

    classes: int  # of the data
    classifier: Classifier | None  # trained on the same data

    def collect(self, batch: Batch) -> dict[str, tf.Tensor]:
        if self.classifier is None:
            return {}
        features, _ = self.classifier(batch["inputs"])
        return {"features": features, "targets": batch["targets"]}

    def metrics(self, samples: tf.Tensor, collected: dict[str, tf.Tensor]) -> Metrics:
        if self.classifier is None:
            return {}
        features, labels = self.classifier(samples)
        real = class_shares(collected["targets"], self.classes)
        histogram = share_distances(class_shares(labels, self.classes), real)
        distance = frechet_distance(moments(features), moments(collected["features"]))
        return {"frechet_distance": distance, **{f"class_{name}": value for name, value in histogram.items()}}

    def picture(self, samples: np.ndarray, collected: Mapping[str, np.ndarray], title: str) -> np.ndarray:
        return image_sheet(samples[:PICTURED_IMAGES])


Quality: TypeAlias = "MixtureQuality | ImageQuality"


def quality_for(data: Data, classifier: str | None, plugins: Sequence[str] = ()) -> Quality | None:
    """Return the judge of samples of some data; None if there is none."""
    if is_image(data.input_shape):
        shape, classes, judge = data.input_shape, data.classes, None
        if classifier is not None:
            judge = load_classifier(classifier, input_shape=shape, classes=classes, plugins=plugins)
        return ImageQuality(classes, judge)
    if classifier is not None:
        raise UserError(
            f"task.classifier={classifier} received, but data={data.name} has no images. Expected task.classifier=null."
        )
    return MixtureQuality(data.centers, data.deviation) if isinstance(data, MixtureData) else None


def average_metrics(metrics: Callable[[tf.Tensor], Metrics], samples: tf.Tensor) -> Metrics:
    """Return the metrics of several generators: the mean of each, and of "modes" and "coverage" the best, too."""
    each = [metrics(samples[place]) for place in range(samples.shape[0])]
    if len(each) == 1:
        return each[0]
    together = {name: tf.stack([one[name] for one in each]) for name in each[0]}
    best = {f"best_{name}": tf.reduce_max(together[name]) for name in ("modes", "coverage") if name in together}
    return {**{name: tf.reduce_mean(values) for name, values in together.items()}, **best}


def draw(quality: Quality, samples: np.ndarray, collected: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return one picture of the samples of one or several generators, below one another."""
    if len(samples) == 1:
        return quality.picture(samples[0], collected, "samples")
    titles = [f"generator {place}" for place in range(len(samples))]
    pictures = [quality.picture(each, collected, "") for each in samples]
    return stacked_sheets(pictures, titles)
