"""Two domains: no original in both, no pair that tells anything, and no label of the target before the test."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hookline.recipes.data.cluttered import Clutter
from hookline.recipes.data.domains import TARGET_IMAGES, TARGET_LABELS, Look, domains, pair_domains
from hookline.trainer.errors import UserError
from hookline.trainer.input.data import Data, Split
from hookline.trainer.input.source import ArraySource
from tests.support.batches import whole
from tests.support.refusals import assert_refused

NAMES = ("train", "validation", "test")
PLAIN = Look(Clutter(9, 0, 2), inverted=False)
CLUTTERED = Look(Clutter(9, 4, 2), inverted=False)


def numbered(*, labels: np.ndarray | None = None) -> Data:
    """Return 240 originals of 8 x 8 pixels, each of one grey value of its own: its row + 1. 100, 60 and 80 a split."""
    rows = np.arange(240)
    images = np.broadcast_to((rows + 1).astype(np.float32)[:, None, None, None], (240, 8, 8, 1))
    labels = rows % 10 if labels is None else labels
    source = ArraySource({"inputs": images / 127.5 - 1.0, "targets": labels}, lambda batch: batch)
    parts = zip(NAMES, np.split(rows, [100, 160]), strict=True)
    splits = {name: Split(name, source, part) for name, part in parts}
    return Data("numbered", **splits, input_shape=(8, 8, 1), classes=10)


def brightest(images: np.ndarray) -> np.ndarray:
    """Return the brightest grey value of each image, which is 1 + the number of its original."""
    return np.rint((images.max(axis=(1, 2, 3)) + 1.0) * 127.5).astype(int)


def paired(looks: tuple[Look, Look] = (PLAIN, PLAIN), seed: int = 0, **given) -> dict[str, dict[str, np.ndarray]]:
    data = given.pop("data", numbered())
    splits = {name: getattr(data, name) for name in NAMES}
    return {
        name: whole(pair_domains(split, 255, looks, given.get(name), (seed, 3 * stream)))
        for stream, (name, split) in enumerate(splits.items())
    }


@pytest.fixture(scope="module")
def default() -> Data:
    return domains()


def test_batches_hold_both_domains_and_target_labels_in_the_test_alone(default: Data) -> None:
    assert (default.train.size, default.validation.size, default.test.size) == (629, 90, 179)
    assert (default.input_shape, default.classes, default.name) == ((12, 12, 1), 10, "domains_of_digits")
    added = {"index", "weights"}
    for name in NAMES:
        batch = whole(getattr(default, name))
        labels = {TARGET_LABELS} if name == "test" else set()
        assert batch.keys() - added == {"inputs", "targets", TARGET_IMAGES} | labels
        for images in (batch["inputs"], batch[TARGET_IMAGES]):
            assert (images.shape[1:], images.dtype) == ((12, 12, 1), np.float32)
            assert (images.min(), images.max()) == (-1.0, 1.0)
        assert batch["targets"].dtype == np.int64
    assert whole(default.test)[TARGET_LABELS].dtype == np.int64


def test_no_original_is_in_two_domains_or_in_two_splits() -> None:
    found = [brightest(batch[key]) for batch in paired().values() for key in ("inputs", TARGET_IMAGES)]
    assert [len(each) for each in found] == [50, 50, 30, 30, 40, 40]
    for name, batch in paired().items():
        np.testing.assert_array_equal(batch["targets"], (brightest(batch["inputs"]) - 1) % 10)
        if name == "test":
            np.testing.assert_array_equal(batch[TARGET_LABELS], (brightest(batch[TARGET_IMAGES]) - 1) % 10)
    together = np.concatenate(found)
    assert len(np.unique(together)) == len(together) == 240
    for (low, high), pair in zip(((1, 100), (101, 160), (161, 240)), (found[:2], found[2:4], found[4:]), strict=True):
        assert all(low <= each.min() <= each.max() <= high for each in pair)


def test_fragments_are_of_other_originals_of_the_same_domain_and_split() -> None:
    for looks in ((PLAIN, CLUTTERED), (CLUTTERED, CLUTTERED)):
        plain, found = paired(), paired(looks)
        for name in NAMES:
            for key, look in zip(("inputs", TARGET_IMAGES), looks, strict=True):
                own = set(brightest(plain[name][key]))
                shown = np.unique(np.rint((found[name][key] + 1.0) * 127.5).astype(int))
                assert set(shown) - {0} <= own, (name, key)
                assert (found[name][key] >= plain[name][key]).all()  # the images stay at their places
                assert (found[name][key] > plain[name][key]).any() == bool(look.clutter.fragments)


def test_originals_come_again_at_other_places_and_the_seed_decides() -> None:
    more, less, usual = paired(train=120, test=7), paired(train=20), paired()
    for key in ("inputs", TARGET_IMAGES):
        shown = brightest(more["train"][key])
        np.testing.assert_array_equal(shown[50:100], shown[:50])
        assert not np.array_equal(more["train"][key][50:100], more["train"][key][:50])
        np.testing.assert_array_equal(shown[:50], brightest(usual["train"][key]))
        np.testing.assert_array_equal(brightest(less["train"][key]), shown[:20])
        assert len(more["test"][key]) == 7
    np.testing.assert_array_equal(more["train"]["targets"][50:100], more["train"]["targets"][:50])
    first, again, other = (paired((PLAIN, CLUTTERED), seed=seed) for seed in (3, 3, 4))
    for name, key in itertools.product(NAMES, ("inputs", TARGET_IMAGES)):
        np.testing.assert_array_equal(first[name][key], again[name][key])
        assert not np.array_equal(np.sort(brightest(first[name][key])), np.sort(brightest(other[name][key])))


def test_settings_out_of_range_are_refused() -> None:
    for settings, message in (
        ({"path": "a.npz"}, "Set data.originals=mnist"),
        ({"train_examples": 0}, "data.train_examples=0"),
        ({"validation_examples": 1}, "fragments to 0"),
    ):
        assert_refused(message, domains, **settings)
    parts = [Split(name, numbered().train.source, np.array([row])) for row, name in enumerate(NAMES)]
    with pytest.raises(UserError, match="1 train image for two domains"):
        paired(data=Data("tiny", *parts, input_shape=(8, 8, 1), classes=10))
