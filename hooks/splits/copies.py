"""Copies and near copies of examples across splits."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from hookline.trainer.input.batches import EvaluationBatches
from hookline.trainer.input.data import Split

BATCH_BYTES = 2**26
WAVES, CODE_WAVES = 16, 8
MOST_CHANNELS = 4
FLAT = 1e-4  # of the mean, or of the most varied image beside it; the waves of a flat image are errors of rounding


@dataclass(frozen=True, eq=False)
class Looks:
    """Hold what images look like."""

    waves: np.ndarray
    """float16 [n, d], of length 1: the lowest waves of a cosine transform, without the mean; the product of two images'
    is their correlation. 0 for a flat image."""
    codes: np.ndarray
    """uint64 [n], which of the 63 lowest are above their median: a perceptual hash, of which images that look alike
    differ in few bits. Zauner, Implementation and Benchmarking of Perceptual Image Hash Functions, 2010."""


@dataclass(frozen=True, eq=False)
class Fingerprints:
    """Hold the fingerprints of a split's examples, in the order of its indices."""

    digests: list[bytes]  # 16 bytes of BLAKE2b of each input
    looks: Looks | None  # None if inputs are not images of at least 8 x 8 pixels, or looks were not asked for


def fingerprints(split: Split, *, with_looks: bool) -> Fingerprints:
    """Read every example of a split once, without augmentation, and return their fingerprints."""
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
    if not with_looks:
        return Fingerprints(digests[: split.size], None)
    joined = join_looks(looks)
    return Fingerprints(digests[: split.size], Looks(joined.waves[: split.size], joined.codes[: split.size]))


def join_looks(looks: Sequence[Looks]) -> Looks:
    """Return the looks of several parts together."""
    return Looks(np.concatenate([each.waves for each in looks]), np.concatenate([each.codes for each in looks]))


def is_image(inputs: tf.Tensor) -> bool:
    """Return whether inputs are images that are large enough to look like something."""
    shape = inputs.shape
    return shape.rank == 4 and min(shape[1:3]) >= CODE_WAVES and shape[3] <= MOST_CHANNELS


def waves(images: tf.Tensor) -> tf.Tensor:
    """Return the lowest waves of the cosine transform of grey images: float32 [n, vertical, horizontal], 16 at most."""
    grey = tf.reduce_mean(tf.cast(images, tf.float32), axis=-1)
    vertical, horizontal = (tf.constant(_cosines(side)) for side in grey.shape[1:])
    return tf.matmul(vertical, tf.matmul(grey, horizontal, transpose_b=True))


def _cosines(side: int) -> np.ndarray:
    """Return the lowest waves over a side, each of length 1: float32 [at most 16, side]."""
    wave, place = np.arange(min(WAVES, side))[:, None], np.arange(side) + 0.5
    basis = np.cos(np.pi / side * wave * place) * np.sqrt(np.where(wave == 0, 1.0, 2.0) / side)
    return basis.astype(np.float32)


def as_looks(found: np.ndarray) -> Looks:
    """Return the looks of images."""
    low = found[:, :CODE_WAVES, :CODE_WAVES].reshape(len(found), -1)[:, 1:]
    bits = np.pad(low > np.median(low, axis=1, keepdims=True), ((0, 0), (1, 0)))
    codes = np.packbits(bits, axis=1).view(">u8")[:, 0].astype(np.uint64)
    mean, rest = np.abs(found[:, 0, 0]), found.reshape(len(found), -1)[:, 1:]
    length = np.linalg.norm(rest, axis=1)
    with np.errstate(invalid="ignore"):
        shaped = (length > FLAT * mean) & (length > FLAT * np.max(length, initial=0.0, where=np.isfinite(length)))
    rest = np.where(shaped[:, None], rest, 0.0) / np.where(shaped, length, 1.0)[:, None]
    return Looks(rest.astype(np.float16), codes)


BITS, MOST_BITS = 64, 8
"""Codes that differ in more bits are not compared further. Measured on photographs and digits: images that were saved
as JPEG of quality 50, made smaller, darker or noisy differ in at most 8 bits in more than 97 % of all cases."""
MOST_COMPARED = 64
"""How many images with similar codes an image is compared with; among digits there may be thousands."""
LEAST, SAME = 0.9, 0.999
"""Images with a correlation below the first are not copies; those above the second are in any case. The most similar
test and training images of MNIST, which are not copies, have 0.995."""
NEIGHBOURS = 10
BLOCK = 2**22
AT_ONCE = 4096


def near_copies(looks: Looks, start: int, stop: int, *, nearer: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return which of the images start .. stop - 1 are near copies of an image before them.

    An image is one if its distance to the nearest of these is at most `nearer` times that to the 10th nearest of all
    images: where all look alike, as digits do, others are nearly as near. It is also one if the correlation with the
    nearest is above 0.999.
    """
    empty = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32)
    found = [empty]
    for low in range(start, stop, AT_ONCE):
        rows, originals, correlations = _nearest(looks, low, min(low + AT_ONCE, stop), start)
        copies = correlations >= SAME
        copies[~copies] = _stand_out(looks.waves, rows[~copies], correlations[~copies], nearer)
        found.append((rows[copies], originals[copies], correlations[copies]))
    copies, originals, correlations = (np.concatenate(each) for each in zip(*found, strict=True))
    return copies, originals, correlations


def _nearest(looks: Looks, low: int, high: int, start: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the images low .. high - 1 that look like one before `start`, with the nearest of these, and how alike."""
    pairs = list(like_codes(looks.codes[low:high], looks.codes[:start]))
    empty = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)
    query, reference = _fewest(*(np.concatenate(each) for each in zip(empty, *pairs, strict=True)))
    product = _products(looks.waves, low + query, reference)
    order = np.lexsort((-product, query))
    query, firsts = np.unique(query[order], return_index=True)
    best = order[firsts]
    like = product[best] >= LEAST
    return low + query[like], reference[best][like], product[best][like]


def _stand_out(waves: np.ndarray, rows: np.ndarray, correlations: np.ndarray, nearer: float) -> np.ndarray:
    """Return which rows have fewer than 10 images within the distance of their correlation, divided by `nearer`."""
    if len(waves) <= NEIGHBOURS:
        return np.zeros(len(rows), bool)
    least = 1.0 - (1.0 - correlations) / nearer**2
    counts = np.zeros(len(rows), np.int64)
    for start in range(0, len(waves), AT_ONCE):
        left = np.flatnonzero(counts <= NEIGHBOURS)  # each row meets itself; most rows are done soon
        products = waves[rows[left]].astype(np.float32) @ waves[start : start + AT_ONCE].astype(np.float32).T
        counts[left] += np.count_nonzero(products > least[left, None], axis=1)
    return counts <= NEIGHBOURS


def _fewest(query: np.ndarray, reference: np.ndarray, bits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each query the pairs that differ in the fewest bits, 64 at most."""
    order = np.lexsort((reference, bits, query))
    query, reference = query[order], reference[order]
    rank = np.arange(len(query)) - np.searchsorted(query, query)
    return query[rank < MOST_COMPARED], reference[rank < MOST_COMPARED]


def like_codes(queries: np.ndarray, references: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield all pairs of codes that differ in at most 8 bits, each once.

    They agree in one of 9 bands whole, so only such codes are compared: Norouzi et al. 2014, arXiv 1307.2982.
    """
    edges = [BITS * band // (MOST_BITS + 1) for band in range(MOST_BITS + 2)]
    masks = [np.uint64(2**high - 2**low) for low, high in itertools.pairwise(edges)]
    for number, mask in enumerate(masks):
        asked, held = _buckets(queries & mask), _buckets(references & mask)
        for value in asked.keys() & held.keys():
            yield from _like_in_bucket(queries, references, asked[value], held[value], masks[:number])


def _buckets(values: np.ndarray) -> dict[int, np.ndarray]:
    """Return the positions of each value."""
    order = np.argsort(values, kind="stable")
    found, firsts = np.unique(values[order], return_index=True)
    return dict(zip(found.tolist(), np.split(order, firsts[1:]), strict=True)) if len(values) else {}


def _like_in_bucket(
    queries: np.ndarray, references: np.ndarray, rows: np.ndarray, others: np.ndarray, earlier: list[np.uint64]
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the pairs of a bucket, except those that agree in an earlier band, which has yielded them."""
    step = max(1, BLOCK // len(others))
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        different = queries[part, None] ^ references[others]
        bits = np.bitwise_count(different)
        first, second = np.nonzero(bits <= MOST_BITS)
        for mask in earlier:
            new = (different[first, second] & mask) != 0
            first, second = first[new], second[new]
        yield part[first], others[second], bits[first, second].astype(np.int64)


def _products(waves: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the correlations of pairs of rows: float32 [pairs]."""
    found = np.zeros(len(first), np.float32)
    step = max(1, BLOCK // waves.shape[1])
    for start in range(0, len(first), step):
        part = slice(start, start + step)
        left, right = (waves[rows[part]].astype(np.float32) for rows in (first, second))
        found[part] = np.einsum("nd,nd->n", left, right)
    return found
