"""What tells examples apart: a hash of every bit, and for images also what they look like."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from trainer.input.batches import EvaluationBatches
from trainer.input.data import Split

BATCH_BYTES = 2**26
WAVES, CODE_WAVES = 16, 8
MOST_CHANNELS = 4
FLAT = 1e-4  # of the mean, or of the most varied image beside it; the waves of a flat image are errors of rounding


@dataclass(frozen=True, eq=False)
class Looks:
    """Hold what images look like.

    Attributes:
        waves: float16 [n, d]: how bright the lowest waves of a cosine transform are, without the mean, of length 1; the
            product of two images' is their correlation. 0 for a flat image, which looks like nothing.
        codes: uint64 [n], which of the 63 lowest are above their median: a perceptual hash. Images that look alike
            differ in few bits. Zauner, Implementation and Benchmarking of Perceptual Image Hash Functions, 2010.
    """

    waves: np.ndarray
    codes: np.ndarray


@dataclass(frozen=True, eq=False)
class Fingerprints:
    """Hold what tells the examples of a split apart, in the order of its indices.

    Attributes:
        digests: 16 bytes of BLAKE2b of each input.
        looks: None where inputs are no images of at least 8 x 8 pixels, or nobody asked.
    """

    digests: list[bytes]
    looks: Looks | None


def fingerprints(split: Split, *, with_looks: bool) -> Fingerprints:
    """Read every example of a split once, as it is without augmentation, and return what tells them apart.

    Args:
        split: to read.
        with_looks: whether to return looks where inputs are images.
    """
    first = split.source.gather(tf.constant(split.indices[:1]))["inputs"]
    with_looks = with_looks and is_image(first)
    size = max(1, min(1024, BATCH_BYTES // max(1, math.prod(first.shape) * first.dtype.size)))
    batches = EvaluationBatches(split, batch_size=size, placement="host")

    @tf.autograph.experimental.do_not_convert
    def read(i: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        inputs = batches.batch(i)["inputs"]
        return inputs, waves(inputs) if with_looks else tf.zeros([0])

    digests: list[bytes] = []
    looks: list[Looks] = []
    numbers = tf.data.Dataset.range(batches.count)
    for inputs, found in numbers.map(read, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE):
        each_bytes = np.ascontiguousarray(inputs).reshape(len(inputs), -1).view(np.uint8)
        digests += [hashlib.blake2b(each.data, digest_size=16).digest() for each in each_bytes]
        looks += [as_looks(found.numpy())] if with_looks else []
    joined = join_looks(looks) if with_looks else None
    if joined is not None:
        joined = Looks(joined.waves[: split.size], joined.codes[: split.size])
    return Fingerprints(digests[: split.size], joined)


def join_looks(looks: Sequence[Looks]) -> Looks:
    """Return the looks of several parts together.

    Args:
        looks: at least one, of images with equally many waves.
    """
    return Looks(np.concatenate([each.waves for each in looks]), np.concatenate([each.codes for each in looks]))


def is_image(inputs: tf.Tensor) -> bool:
    """Return whether inputs are images that are large enough to look like something.

    Args:
        inputs: [n, ...].
    """
    shape = inputs.shape
    return shape.rank == 4 and min(shape[1:3]) >= CODE_WAVES and shape[3] <= MOST_CHANNELS


def waves(images: tf.Tensor) -> tf.Tensor:
    """Return the lowest waves of the cosine transform of grey images: float32 [n, vertical, horizontal], 16 at most.

    Args:
        images: numbers [n, height, width, channels].
    """
    grey = tf.reduce_mean(tf.cast(images, tf.float32), axis=-1)
    vertical, horizontal = (tf.constant(_cosines(side)) for side in grey.shape[1:])
    return tf.matmul(vertical, tf.matmul(grey, horizontal, transpose_b=True))


def _cosines(side: int) -> np.ndarray:
    """Return the lowest waves over a side, each of length 1: float32 [at most 16, side]."""
    wave, place = np.arange(min(WAVES, side))[:, None], np.arange(side) + 0.5
    basis = np.cos(np.pi / side * wave * place) * np.sqrt(np.where(wave == 0, 1.0, 2.0) / side)
    return basis.astype(np.float32)


def as_looks(found: np.ndarray) -> Looks:
    """Return the looks of images.

    Args:
        found: their `waves`.
    """
    low = found[:, :CODE_WAVES, :CODE_WAVES].reshape(len(found), -1)[:, 1:]
    bits = np.pad(low > np.median(low, axis=1, keepdims=True), ((0, 0), (1, 0)))
    codes = np.packbits(bits, axis=1).view(">u8")[:, 0].astype(np.uint64)
    mean, rest = np.abs(found[:, 0, 0]), found.reshape(len(found), -1)[:, 1:]
    length = np.linalg.norm(rest, axis=1)
    with np.errstate(invalid="ignore"):
        shaped = (length > FLAT * mean) & (length > FLAT * np.max(length, initial=0.0, where=np.isfinite(length)))
    rest = np.where(shaped[:, None], rest, 0.0) / np.where(shaped, length, 1.0)[:, None]
    return Looks(rest.astype(np.float16), codes)
