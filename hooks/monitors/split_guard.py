"""Split guard: before the first step, find images that are in two splits, by fingerprints of all examples."""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import math
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from hookline.trainer.errors import UserError, check_choice, check_number
from hookline.trainer.files import write_whole
from hookline.trainer.hook import HostHook, Run
from hookline.trainer.input.batches import EvaluationBatches
from hookline.trainer.input.data import Split

WARN, STOP = "warn", "stop"
EXACT, NEAR = "exact", "near"
FILE = "split_guard.csv"
SHOWN = 3


class Leak(NamedTuple):
    """Name an example that is also in an earlier split, with the same bits ("exact") or the same looks ("near")."""

    split: str
    example: str
    original_split: str
    original: str
    kind: str
    correlation: float


class SplitGuard(HostHook):
    """Read every example of every split once before training begins, and look for copies in other splits.

    Exact copies are examples whose inputs, before augmentation, have the same bits. Near copies are images that look
    the same; images that are only similar by nature, such as digits, do not count. On CIFAR-10 and photographs of
    clothing it finds nearly all copies that were saved again as JPEG of quality 30 or more, made darker, gray, noisy,
    or smaller by a quarter. It finds few or none that were moved by a pixel, cropped, mirrored or rotated.

    An example is compared with the splits before its own: validation with train, test with both. `split_guard.csv` in
    the run directory lists all findings; `summary.json` has their number and the cost of the search.

    Group: guard

    Cost: Before the first step, every example is read once: 0.55 s for the 1,797 digits.

    Pitfalls:
        tests/hooks/monitors/test_split_guard.py: copies are searched for in every pair of splits; images that are
            similar by nature are not copies, but a copy among them is found.

    Example:
        python train.py recipe=baseline +hooks=split_guard hooks.split_guard.on_leak=stop
    """

    def __init__(self, *, on_leak: str = WARN, near: float = 0.35) -> None:
        """Set what counts as a copy, and what to do about copies.

        Args:
            on_leak: "warn" shows one warning and continues; "stop" ends the run with an error.
            near: largest distance of a near copy, as a share of the 10th nearest image's, in [0, 1); 0: exact only.
        """
        self._on_leak = check_choice("on_leak", on_leak, (WARN, STOP))
        self._near = check_number("near", near, minimum=0.0, maximum=1.0, below_maximum=True)
        self._summary: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def on_fit_begin(self, run: Run) -> None:
        start = time.perf_counter()
        splits = {"train": run.training.split, **{name: each.split for name, each in run.held_out.items()}}
        leaks = find_leaks(splits, nearer=self._near)
        self._summary = {
            **{kind: _counts(leaks, kind) for kind in (EXACT, NEAR)},
            "examples": sum(split.size for split in splits.values()),
            "seconds": round(time.perf_counter() - start, 2),
        }
        if not leaks:
            return
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(Leak._fields)
        writer.writerows([*leak[:-1], f"{leak.correlation:.4f}"] for leak in leaks)
        write_whole(run.directory / FILE, text.getvalue())
        message = f"{describe(leaks)} All of them: {run.directory / FILE}."
        if self._on_leak == STOP:
            raise UserError(f"{message} Take them out of one split, or set hooks.{self.name}.on_leak=warn.")
        warnings.warn(message, stacklevel=2)

    def summary(self) -> dict[str, Any]:
        return self._summary


def find_leaks(splits: Mapping[str, Split], *, nearer: float) -> list[Leak]:
    """Return the examples that are also in an earlier split, in order; only exact copies if `nearer` is 0."""
    names = list(splits)
    digests, looks = zip(*(fingerprints(split, with_looks=nearer > 0.0) for split in splits.values()), strict=True)
    starts = np.cumsum([0, *(split.size for split in splits.values())])
    found = _exact(digests, starts)
    images = [each for each in looks if each is not None]
    if len(images) == len(splits) and len({each.waves.shape[1] for each in images}) == 1:  # all comparable
        joined = join_looks(images)
        for start, stop in itertools.pairwise(starts[1:].tolist()):
            copies = near_copies(joined, start, stop, nearer=nearer)
            near = [(int(c), (int(o), NEAR, float(r))) for c, o, r in zip(*copies, strict=True)]
            found = {**dict(near), **found}

    def place(position: int) -> tuple[str, str]:
        number = int(np.searchsorted(starts, position, side="right")) - 1
        return names[number], splits[names[number]].name_of(position - int(starts[number]))

    pairs = sorted(found.items())
    return [Leak(*place(copy), *place(first), kind, correlation) for copy, (first, kind, correlation) in pairs]


def _exact(digests: Sequence[list[bytes]], starts: np.ndarray) -> dict[int, tuple[int, str, float]]:
    """Return the exact copies by position, each with the position of its first occurrence in an earlier split."""
    seen: dict[bytes, int] = {}
    found: dict[int, tuple[int, str, float]] = {}
    for start, each in zip(starts.tolist(), digests, strict=False):
        here = list(enumerate(each, start))
        found |= {position: (seen[digest], EXACT, 1.0) for position, digest in here if digest in seen}
        for position, digest in here:
            seen.setdefault(digest, position)
    return found


def _counts(leaks: list[Leak], kind: str) -> dict[str, int]:
    """Return how many copies there are, such as {"test in train": 3}."""
    return dict(Counter(f"{leak.split} in {leak.original_split}" for leak in leaks if leak.kind == kind))


def describe(leaks: list[Leak]) -> str:
    """Return one line that describes the leaks."""
    parts = [f"{count} {kind} {places}" for kind in (EXACT, NEAR) for places, count in _counts(leaks, kind).items()]
    pairs = [f"{leak.split} {leak.example} and {leak.original_split} {leak.original}" for leak in leaks[:SHOWN]]
    return f"Splits share examples: {', '.join(parts)}; such as {', '.join(pairs)}."


BATCH_BYTES = 2**26
WAVES, CODE_WAVES = 16, 8
MOST_CHANNELS = 4
FLAT = 1e-4  # relative to the mean or to the most varied image of the batch; waves of flat images are rounding errors


class Looks(NamedTuple):
    """Hold features by which images that look alike are found."""

    waves: np.ndarray
    """float16 [n, d], unit vectors: the lowest waves of a cosine transform, without the mean; the dot product of two
    images is their correlation. 0 for a flat image."""
    codes: np.ndarray
    """uint64 [n], which of the 63 lowest waves are above their median: a perceptual hash; those of images that look
    alike differ in few bits. Zauner, Implementation and Benchmarking of Perceptual Image Hash Functions, 2010."""


def fingerprints(split: Split, *, with_looks: bool) -> tuple[list[bytes], Looks | None]:
    """Return a digest of each input of a split, without augmentation, and the looks if they are images (`is_image`)."""
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
    joined = join_looks(looks) if looks else None
    return digests[: split.size], joined and Looks(*(each[: split.size] for each in joined))


def join_looks(looks: Sequence[Looks]) -> Looks:
    """Return the looks of several parts, concatenated."""
    return Looks(*map(np.concatenate, zip(*looks, strict=True)))


def is_image(inputs: tf.Tensor) -> bool:
    """Return whether inputs are images of at least 8 x 8 pixels and at most 4 channels."""
    shape = inputs.shape
    return shape.rank == 4 and min(shape[1:3]) >= CODE_WAVES and shape[3] <= MOST_CHANNELS


def waves(images: tf.Tensor) -> tf.Tensor:
    """Return the lowest waves of the images' cosine transform in gray: float32 [n, vertical, horizontal], up to 16."""
    gray = tf.reduce_mean(tf.cast(images, tf.float32), axis=-1)
    horizontal = tf.signal.dct(gray, norm="ortho")[..., :WAVES]
    vertical = tf.signal.dct(tf.linalg.matrix_transpose(horizontal), norm="ortho")[..., :WAVES]
    return tf.linalg.matrix_transpose(vertical)


def as_looks(found: np.ndarray) -> Looks:
    """Return the looks of images, computed from their waves."""
    low = found[:, :CODE_WAVES, :CODE_WAVES].reshape(len(found), -1)[:, 1:]
    bits = np.pad(low > np.median(low, axis=1, keepdims=True), ((0, 0), (1, 0)))
    codes = np.packbits(bits, axis=1).view(">u8")[:, 0].astype(np.uint64)
    mean, rest = np.abs(found[:, 0, 0]), found.reshape(len(found), -1)[:, 1:]
    length = np.linalg.norm(rest, axis=1)
    with np.errstate(invalid="ignore"):
        shaped = (length > FLAT * mean) & (length > FLAT * np.max(length, initial=0.0, where=np.isfinite(length)))
    rest = np.where(shaped[:, None], rest, 0.0) / np.where(shaped, length, 1.0)[:, None]
    return Looks(rest.astype(np.float16), codes)


MOST_BITS = 8
"""Images whose codes differ in more bits are not compared further. Measured on photographs and digits: images that were
saved as JPEG of quality 50, made smaller, darker or noisy differ in at most 8 bits in more than 97 % of all cases."""
LEAST, SAME = 0.9, 0.999
"""Images with a correlation below the first are not copies; those from the second on always are. The most similar
test and training images of MNIST, which are not copies, have 0.995."""
NEIGHBORS = 10
PAIRS = 2**24  # compared at once


def near_copies(looks: Looks, start: int, stop: int, *, nearer: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return near copies among images start .. stop - 1, each one's most similar image before `start`, correlations.

    An image is a near copy if its correlation with that image is at least 0.999, or if it is at least 0.9 and the
    distance at most `nearer` times that to the 10th nearest of all images: where all look alike, as digits do, others
    are nearly as near. Only images whose codes differ in at most 8 bits are compared.
    """
    all_waves = looks.waves.astype(np.float32)
    step = max(1, PAIRS // len(all_waves))
    found = []
    for low in range(start, stop, step):
        rows = np.arange(low, min(low + step, stop))
        alike = np.bitwise_count(looks.codes[rows, None] ^ looks.codes[:start]) <= MOST_BITS
        rows, alike = rows[alike.any(axis=1)], alike[alike.any(axis=1)]
        products = all_waves[rows] @ all_waves.T
        earlier = np.where(alike, products[:, :start], -1.0)
        originals, correlations = earlier.argmax(axis=1), earlier.max(axis=1)
        as_near = np.count_nonzero(products > 1.0 - (1.0 - correlations[:, None]) / nearer**2, axis=1)  # with itself
        stands_out = (as_near <= NEIGHBORS) & (len(all_waves) > NEIGHBORS)
        copies = (correlations >= SAME) | ((correlations >= LEAST) & stands_out)
        found.append((rows[copies], originals[copies], correlations[copies]))
    copies, originals, correlations = (np.concatenate(each) for each in zip(*found, strict=True))
    return copies, originals, correlations
