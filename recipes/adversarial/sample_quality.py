"""How good generated samples are: points beside the mixture they imitate, images beside the data's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import tensorflow as tf

from recipes.adversarial.class_histogram import class_shares, share_distances
from recipes.adversarial.classifier import Classifier, load_classifier
from recipes.adversarial.frechet_distance import frechet_distance, moments
from recipes.adversarial.mode_metrics import WITHIN, mode_metrics
from recipes.adversarial.sample_pictures import image_sheet, scatter_picture, stacked_sheets
from recipes.data.gaussian_mixture import MixtureData
from recipes.models.roles import is_image
from trainer.errors import UserError
from trainer.input.data import Data
from trainer.objective import Batch

Metrics: TypeAlias = "dict[str, tf.Tensor]"
REAL = "real"
PICTURED_POINTS = 1000
PICTURED_IMAGES = 64


class Quality(Protocol):
    """Measure and draw samples."""

    def collect(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Return what of the data the metrics need, [batch, ...] by name.

        Args:
            batch: "inputs" and "targets" of an evaluation.
        """
        ...

    def metrics(self, samples: tf.Tensor, collected: dict[str, tf.Tensor]) -> Metrics:
        """Return scalars by name.

        Args:
            samples: of one generator, [n, ...].
            collected: of the split as a whole.
        """
        ...

    def picture(self, samples: np.ndarray, collected: Mapping[str, np.ndarray], title: str) -> np.ndarray:
        """Return a picture [height, width, 3] in [0, 1].

        Args:
            samples: of one generator, [n, ...].
            collected: of the split as a whole.
            title: what the samples are; empty where the picture gets one later.
        """
        ...


@dataclass(frozen=True, eq=False)
class MixtureQuality:
    """Judge points by the Gaussians they imitate.

    Attributes:
        centers: float32 [modes, 2].
        deviation: of each Gaussian.
    """

    centers: np.ndarray
    deviation: float

    def collect(self, batch: Batch) -> dict[str, tf.Tensor]:
        return {REAL: batch["inputs"]}

    def metrics(self, samples: tf.Tensor, collected: dict[str, tf.Tensor]) -> Metrics:
        metrics = mode_metrics(samples, tf.constant(self.centers), self.deviation)
        return {**metrics, "coverage": coverage(samples, self.centers, self.deviation)}

    def picture(self, samples: np.ndarray, collected: Mapping[str, np.ndarray], title: str) -> np.ndarray:
        return scatter_picture(samples, collected[REAL][:PICTURED_POINTS], self.centers, self.deviation, title)


@dataclass(frozen=True, eq=False)
class ImageQuality:
    """Judge images by the features and classes that a trained classifier sees in them; without one, show them.

    Attributes:
        classes: number of classes of the data.
        classifier: trained on the same data, or None.
    """

    classes: int
    classifier: Classifier | None

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


def coverage(samples: tf.Tensor, centers: np.ndarray, deviation: float) -> tf.Tensor:
    """Return sum_m min(p_m, 1 / modes), with p_m the share of all samples within three deviations of mode m.

    It is 1 less the total variation distance between where samples lie (a mode, or nowhere) and the uniform
    distribution over the modes: 0.989 for the data itself, and neither good samples of few modes nor bad samples of
    all can make it large. So it says which step of a run is the best.

    Args:
        samples: float [n, 2].
        centers: float32 [modes, 2].
        deviation: of each Gaussian.

    Returns:
        float32 scalar in [0, 1].
    """
    distances = tf.norm(samples[:, None, :] - tf.constant(centers), axis=-1)
    nearest = tf.one_hot(tf.argmin(distances, axis=-1), len(centers))
    shares = tf.reduce_mean(nearest * tf.cast(distances <= WITHIN * deviation, tf.float32), axis=0)
    return tf.reduce_sum(tf.minimum(shares, 1.0 / len(centers)))


def quality_for(data: Data, classifier: str | None, plugins: Sequence[str] = ()) -> Quality | None:
    """Return what judges samples of some data; None where nothing does.

    Args:
        data: that generators imitate.
        classifier: directory of a finished run of recipe=baseline on the same data; None for none.
        plugins: packages that the classifier's run may use.

    Raises:
        UserError: a classifier for data without classes of images, or one that does not fit.
    """
    if is_image(data.input_shape):
        shape = data.input_shape
        if classifier is None:
            return ImageQuality(data.classes, None)
        judge = load_classifier(classifier, input_shape=shape, classes=data.classes, plugins=plugins)
        return ImageQuality(data.classes, judge)
    if classifier is not None:
        raise UserError(
            f"task.classifier={classifier} received, but data={data.name} has no images. Expected task.classifier=null."
        )
    return MixtureQuality(data.centers, data.deviation) if isinstance(data, MixtureData) else None


def average_metrics(metrics: Callable[[tf.Tensor], Metrics], samples: tf.Tensor) -> Metrics:
    """Return the metrics of several generators: the mean of each, and of "modes" and "coverage" the best, too.

    Args:
        metrics: of the samples of one generator.
        samples: [generators, n, ...].
    """
    each = [metrics(samples[place]) for place in range(samples.shape[0])]
    if len(each) == 1:
        return each[0]
    together = {name: tf.stack([one[name] for one in each]) for name in each[0]}
    best = {f"best_{name}": tf.reduce_max(together[name]) for name in ("modes", "coverage") if name in together}
    return {**{name: tf.reduce_mean(values) for name, values in together.items()}, **best}


def draw(quality: Quality, samples: np.ndarray, collected: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return one picture of the samples of one or several generators, below one another.

    Args:
        quality: draws those of one.
        samples: [generators, n, ...].
        collected: of the split as a whole.
    """
    if len(samples) == 1:
        return quality.picture(samples[0], collected, "samples")
    titles = [f"generator {place}" for place in range(len(samples))]
    pictures = [quality.picture(each, collected, "") for each in samples]
    return stacked_sheets(pictures, titles)
