"""Digits on canvases: one among fragments of others, in one domain or in two; or several on a grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from hookline.recipes.data import digits as small
from hookline.recipes.data import keras_dataset as large
from hookline.recipes.data.input_form import TARGET_IMAGES, transform_of
from hookline.recipes.data.splits import PARTS
from hookline.trainer.deferred import prechecked
from hookline.trainer.errors import UserError, check_choice, check_integer
from hookline.trainer.input.data import ArraySource, Data, Split
from hookline.trainer.input.preparation import PIXEL_PEAK, Preparation, pixel_preparation
from hookline.trainer.input.split import split_indices
from hookline.trainer.objective import Batch

PEAKS = {"digits": small.PEAK, "mnist": PIXEL_PEAK}  # the brightest gray value of each set
AUTO = "auto"
TARGETS = CLASS, MASK = "class", "mask"
TARGET_LABELS = "target_domain_labels"
CELLS = 3  # side of the grid on which several digits are placed


@dataclass(frozen=True)
class Clutter:
    """Settings of canvases."""

    canvas: int  # side in pixels, larger than the images
    fragments: int  # on each canvas, 0 or more
    fragment_size: int  # side in pixels, at most an image's
    inverted: bool = False  # whether dark and bright are swapped


def check_originals(name: str, path: str | None, key: str) -> None:
    """Check the name of the set of originals, and that its file exists."""
    check_choice(f"data.{key}", name, PEAKS)
    if name == "mnist":
        large.check_set(name, path)
    elif path is not None:
        raise UserError(f"data.path={path} received for data.{key}={name}, which is embedded. Set data.{key}=mnist.")


class Originals:
    """The images to place on canvases, and the checked options of a data source that does so."""

    def __init__(self, name: str, options: Mapping[str, Any], usual: Mapping[str, tuple[int, int]]) -> None:
        """Open a dataset that passed `check_originals`; `usual` has default sides of canvas and fragments in pixels."""
        self.counts: dict[str, int | None] = {part: options[f"{part}_examples"] for part in PARTS}
        self.peak = PEAKS[name]
        self.data = small.digits() if name == "digits" else large.keras_dataset(name=name, path=options["path"])
        self.splits = {part: getattr(self.data, part) for part in PARTS}
        side = self.data.input_shape[0]
        given = (options["canvas"], options["fragment_size"])
        self.canvas, self.fragment = (
            auto if each == AUTO else each for auto, each in zip(usual[name], given, strict=True)
        )
        check_integer("data.canvas", self.canvas, side + 1)
        check_integer("data.fragment_size", self.fragment, 1, side)

    def data_of(self, name: str, parts: Mapping[str, Split], *, has_classes: bool = True) -> Data:
        """Return the data with splits of canvases."""
        form = _form(self.canvas, self.peak)
        classes, names = (self.data.classes, self.data.class_names) if has_classes else (0, ())
        return Data(name, **parts, input_shape=form.shape, classes=classes, class_names=names, preparation=form)


def _form(canvas: int, peak: int) -> Preparation:
    """Return the preparation of canvases with a side of `canvas` pixels."""
    return pixel_preparation((canvas, canvas, 1), peak)


@prechecked(lambda source, path: check_originals(source, path, "source"))
def cluttered(
    *,
    source: str = "digits",
    path: str | None = None,
    canvas: int | str = AUTO,
    fragments: int = 8,
    fragment_size: int | str = AUTO,
    train_examples: int | None = None,
    validation_examples: int | None = None,
    test_examples: int | None = None,
    targets: str = CLASS,
    seed: int = 0,
) -> Data:
    """Return a source's images on canvases, as Cluttered MNIST of Mnih et al. 2014 (arXiv 1406.6247), section 4.1.

    The splits are those of the source. Fragments come from other images of the same split, and only from those that
    appear on its canvases. If fewer examples are requested than the source has, they are a stratified sample; if more,
    images repeat at other places and among other fragments.

    Targets "class" are int64 [canvases]; "mask" are int64 [canvases, canvas, canvas, 1], 1 where the image has ink
    (more than half of the brightest gray value).
    """
    originals = Originals(source, dict(locals()), {"digits": (20, 3), "mnist": (60, 8)})
    check_choice("data.targets", targets, TARGETS)
    clutter = Clutter(originals.canvas, fragments, originals.fragment)
    parts = {
        name: _cluttered(split, originals.counts[name], originals.peak, clutter, (seed, stream), targets)
        for stream, (name, split) in enumerate(originals.splits.items())
    }
    return originals.data_of(f"cluttered_{source}", parts, has_classes=targets == CLASS)


def _cluttered(
    split: Split, count: int | None, peak: int, clutter: Clutter, seeds: tuple[int, int], targets: str
) -> Split:
    """Return a split of canvases made from the images of another split."""
    labels, size = split.labels, split.size
    repeats, rest = divmod(size if count is None else count, size)
    rows = np.tile(np.arange(size), repeats)  # as many full passes as fit, then a stratified sample
    if rest:
        rows = np.concatenate([rows, split_indices(size, {"chosen": rest / size}, seeds[0], labels)["chosen"]])
    pool, places = np.unique(rows, return_inverse=True)
    images = gray_values(split, pool, peak)
    canvases, boxes = place_on_canvases(images, places, clutter, *seeds)
    arrays, transform = {"inputs": canvases}, transform_of(_form(clutter.canvas, peak))
    if targets == MASK:
        blank = np.zeros([len(rows), clutter.canvas, clutter.canvas], np.uint8)
        ink = paste(blank, images[places], boxes[:, 0], boxes[:, 1]) > peak / 2
        arrays |= {"targets": ink[..., None].astype(np.int64)}
    else:
        arrays |= {"targets": labels[rows], "box": boxes}
        transform = _with_map(transform, clutter.canvas)
    return Split(split.name, ArraySource(arrays, transform), np.arange(len(rows)))


def _with_map(scale: Callable[[Batch], Batch], canvas: int) -> Callable[[Batch], Batch]:
    """Return the transform that also converts boxes to "map", 1 inside the box."""

    def transform(batch: Batch) -> Batch:
        top, left, height, width = tf.unstack(batch["box"][:, :, None], axis=1)
        line = tf.range(canvas, dtype=tf.int64)
        vertical = (line >= top) & (line < top + height)
        horizontal = (line >= left) & (line < left + width)
        where = tf.cast(vertical[:, :, None] & horizontal[:, None, :], tf.float32)
        return {**scale({"inputs": batch["inputs"]}), "targets": batch["targets"], "map": where}

    return transform


@prechecked(lambda originals, path: check_originals(originals, path, "originals"))
def domains(
    *,
    originals: str = "digits",
    path: str | None = None,
    source_fragments: int = 0,
    target_fragments: int = 8,
    source_inverted: bool = False,
    target_inverted: bool = False,
    canvas: int | str = AUTO,
    fragment_size: int | str = AUTO,
    train_examples: int | None = None,
    validation_examples: int | None = None,
    test_examples: int | None = None,
    seed: int = 0,
) -> Data:
    """Return pairs of a labeled source image and a target image.

    Each split of the originals is divided at random, regardless of labels: half goes to the source, half to the target.
    So no original is in both domains or in two splits, and the two images of a pair are unrelated. In both domains,
    images are at random places on canvases, among fragments of other originals of the same domain and split; the
    domains differ in the number of fragments, and in whether they are inverted.

    Labels of the target are in the test split only.
    """
    given = Originals(originals, dict(locals()), {"digits": (12, 2), "mnist": (42, 7)})
    source = Clutter(given.canvas, source_fragments, given.fragment, source_inverted)
    target = Clutter(given.canvas, target_fragments, given.fragment, target_inverted)
    parts = {
        name: pair_domains(split, given.peak, (source, target), given.counts[name], (seed, 3 * stream))
        for stream, (name, split) in enumerate(given.splits.items())
    }
    return given.data_of(f"domains_of_{originals}", parts)


def pair_domains(
    split: Split, peak: int, looks: tuple[Clutter, Clutter], count: int | None, seeds: tuple[int, int]
) -> Split:
    """Return a split of pairs made from a split of originals; uses the stream of `seeds` and the next two."""
    (seed, stream), half = seeds, split.size // 2
    order = np.argsort(np.random.PCG64(np.random.SeedSequence(seeds)).random_raw(split.size), kind="stable")
    rows = np.arange(half if count is None else count) % half
    halves = order[:half], order[half : 2 * half]
    canvases = []
    for number, (own, look) in enumerate(zip(halves, looks, strict=True), start=1):
        images = gray_values(split, own[: rows.max() + 1], peak)  # fragments come only from images that appear
        made, _ = place_on_canvases(images, rows, look, seed, stream + number)
        canvases.append(peak - made if look.inverted else made)
    arrays = {"inputs": canvases[0], "targets": split.labels[halves[0][rows]], TARGET_IMAGES: canvases[1]}
    if split.name == "test":
        arrays[TARGET_LABELS] = split.labels[halves[1][rows]]
    source = ArraySource(arrays, transform_of(_form(looks[0].canvas, peak)))
    return Split(split.name, source, np.arange(len(rows), dtype=np.int64))


def several_digits(
    *,
    most: int = 4,
    train_examples: int = 4000,
    validation_examples: int = 500,
    test_examples: int = 1000,
    seed: int = 0,
) -> Data:
    """Return canvases of 24 x 24 pixels, each with one to `most` of the embedded digits in cells of a 3 x 3 grid.

    Targets are multi-hot, int64 [canvases, 10]: 1 for each digit that is present. The splits are those of data=digits:
    no image is on canvases of two splits.
    """
    check_integer("data.most", most, 1, CELLS**2)
    counts = dict(zip(PARTS, (train_examples, validation_examples, test_examples), strict=True))
    originals, form = small.digits(), _form(CELLS * small.SIDE, small.PEAK)
    splits = {
        name: _composed(getattr(originals, name), counts[name], most, (seed, stream), form)
        for stream, name in enumerate(PARTS)
    }
    return Data("several_digits", **splits, input_shape=form.shape, classes=0, class_names=(), preparation=form)


def _composed(split: Split, count: int, most: int, seeds: tuple[int, int], form: Preparation) -> Split:
    """Return a split of canvases made from the images of another, using only raw bits and integers."""
    side, images, labels = small.SIDE, gray_values(split, np.arange(split.size), small.PEAK), split.labels
    bits = np.random.PCG64(np.random.SeedSequence(seeds))
    present = 1 + _below(most, count, bits)
    cells = np.argsort(bits.random_raw(count * CELLS**2).reshape(count, -1), axis=1, kind="stable")
    canvases = np.zeros([count, CELLS * side, CELLS * side], np.uint8)
    targets = np.zeros([count, small.CLASSES], np.int64)
    for place in range(most):
        rows = _below(len(images), count, bits)
        there = np.flatnonzero(place < present)
        top, left = np.divmod(cells[there, place], CELLS)
        canvases[there] = paste(canvases[there], images[rows[there]], top * side, left * side)
        targets[there, labels[rows[there]]] = 1
    source = ArraySource({"inputs": canvases, "targets": targets}, transform_of(form))
    return Split(split.name, source, np.arange(count))


def place_on_canvases(
    images: np.ndarray, rows: np.ndarray, clutter: Clutter, seed: int, stream: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return black canvases with one image each over fragments of others, and boxes: top, left, height, width.

    All draws are uniform: the place of the image, and for each fragment its place, the other image that it is from and
    its square in that image. Where they overlap, the brighter pixel wins. The places of the images do not depend on the
    fragments. Results are the same on every machine and NumPy version: they use only integers and the raw stream of the
    bit generator, which NumPy keeps stable.
    """
    if clutter.fragments and len(images) < 2:
        raise UserError(f"A split has {len(images)} image for fragments of others. Set more, or fragments to 0.")
    count, side, size = len(rows), images.shape[1], clutter.fragment_size
    bits = np.random.PCG64(np.random.SeedSequence([seed, stream]))
    top, left = (_below(clutter.canvas - side + 1, count, bits) for _ in range(2))
    canvases = np.zeros([count, clutter.canvas, clutter.canvas], np.uint8)
    for _ in range(clutter.fragments):
        donors = _below(len(images) - 1, count, bits)
        donors += donors >= rows  # never the image itself
        from_top, from_left = (_below(side - size + 1, count, bits) for _ in range(2))
        to_top, to_left = (_below(clutter.canvas - size + 1, count, bits) for _ in range(2))
        paste(canvases, images[(donors[:, None, None], *_squares(from_top, from_left, size))], to_top, to_left)
    paste(canvases, images[rows], top, left)
    extent = np.full(count, side, np.int64)
    return canvases, np.stack([top, left, extent, extent], axis=1)


def gray_values(split: Split, positions: np.ndarray, peak: int) -> np.ndarray:
    """Return the gray values of images before scaling: uint8 [n, side, side]."""
    scaled = split.source.gather(tf.constant(split.indices[positions]))["inputs"].numpy()
    return np.rint((scaled[..., 0] + 1.0) * (peak / 2.0)).astype(np.uint8)


def _below(limit: int, count: int, bits: np.random.PCG64) -> np.ndarray:
    """Return uniform integers in [0, limit), int64 [count], for a limit below 2^32."""
    high = bits.random_raw(count) >> np.uint64(32)
    return ((high * np.uint64(limit)) >> np.uint64(32)).astype(np.int64)


def _squares(top: np.ndarray, left: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the row and column indices of squares, [n, size, 1] and [n, 1, size]."""
    steps = np.arange(size)
    return (top[:, None] + steps)[:, :, None], (left[:, None] + steps)[:, None, :]


def paste(canvases: np.ndarray, patches: np.ndarray, top: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Draw one patch on each canvas in place, taking the maximum, and return the canvases."""
    where = (np.arange(len(canvases))[:, None, None], *_squares(top, left, patches.shape[1]))
    canvases[where] = np.maximum(canvases[where], patches)
    return canvases
