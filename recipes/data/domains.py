"""Two domains of digits on canvases: a source with labels, and a target that looks different and has none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hookline.recipes.data.cluttered import AUTO, Clutter, Originals, check_originals, grey_values, place_on_canvases
from hookline.recipes.data.digits import centered_pixels
from hookline.trainer.deferred import prechecked
from hookline.trainer.errors import UserError
from hookline.trainer.input.data import Data, Split
from hookline.trainer.input.source import ArraySource
from hookline.trainer.objective import Batch

TARGET_IMAGES, TARGET_LABELS = "target_domain", "target_domain_labels"
USUAL = {"digits": (12, 2), "mnist": (42, 7)}
"""Sides of the canvas and of the fragments that suit each set, in pixels."""


@dataclass(frozen=True)
class Look:
    """What a domain's images look like."""

    clutter: Clutter
    inverted: bool  # whether dark and bright are swapped


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
    """Return pairs of an image of the source with its label, and an image of the target.

    Each split of the originals is divided at random, regardless of labels: half of it goes to the source, half to the
    target. So no original is in both domains or in two splits, and the two images of a pair are unrelated. In both
    domains, images stand at random places on canvases among fragments of other originals of their own domain and split;
    the domains differ in how many fragments there are, and in whether they are inverted.

    The labels of the target are given for the test alone. They are not in the splits for training and validation.
    """
    given = Originals(originals, "originals", dict(locals()), USUAL)
    source = Look(given.clutter(source_fragments), source_inverted)
    target = Look(given.clutter(target_fragments), target_inverted)
    parts = {
        name: pair_domains(split, given.peak, (source, target), given.counts[name], (seed, 3 * stream))
        for stream, (name, split) in enumerate(given.splits.items())
    }
    return given.data_of(f"domains_of_{originals}", parts)


def pair_domains(split: Split, peak: int, looks: tuple[Look, Look], count: int | None, seeds: tuple[int, int]) -> Split:
    """Return a split of pairs, made from a split of originals; uses `seeds` and the two streams after it."""
    if split.size < 2:
        raise UserError(f"Received {split.size} {split.name} image for two domains; expected 2 or more.")
    (seed, stream), half = seeds, split.size // 2
    order = np.argsort(np.random.PCG64(np.random.SeedSequence(seeds)).random_raw(split.size), kind="stable")
    of_source, of_target = order[:half], order[half : 2 * half]
    rows = np.arange(half if count is None else count) % half
    arrays = {
        "inputs": _draw(split, of_source, rows, peak, looks[0], (seed, stream + 1)),
        "targets": split.labels[of_source[rows]],
        TARGET_IMAGES: _draw(split, of_target, rows, peak, looks[1], (seed, stream + 2)),
    }
    if split.name == "test":
        arrays[TARGET_LABELS] = split.labels[of_target[rows]]
    return Split(split.name, ArraySource(arrays, _transform(peak)), np.arange(len(rows), dtype=np.int64))


def _draw(
    split: Split, half: np.ndarray, rows: np.ndarray, peak: int, look: Look, seeds: tuple[int, int]
) -> np.ndarray:
    """Return canvases of originals as uint8 [n, canvas, canvas, 1]."""
    shown = half[: rows.max() + 1]  # fragments come only from those that appear on canvases
    if look.clutter.fragments and len(shown) < 2:
        raise UserError(
            f"Received {len(shown)} {split.name} image of a domain for canvases with fragments of others; expected 2 "
            f"or more. Set data.{split.name}_examples higher, or the domain's fragments to 0."
        )
    canvases, _ = place_on_canvases(grey_values(split, shown, peak), rows, look.clutter, *seeds)
    return (peak - canvases if look.inverted else canvases)[..., None]


def _transform(peak: int) -> Callable[[Batch], Batch]:
    """Return the transform that turns canvases of both domains into inputs."""
    scale = centered_pixels(peak)

    def transform(batch: Batch) -> Batch:
        return {**scale(batch), TARGET_IMAGES: scale({"inputs": batch[TARGET_IMAGES]})["inputs"]}

    return transform
