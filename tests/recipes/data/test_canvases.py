"""Digits on canvases: known places, fragments, domains that share nothing, and results that never change."""

import zlib

import numpy as np
import pytest

from hookline.recipes.data.canvases import (
    TARGET_LABELS,
    Clutter,
    cluttered,
    domains,
    pair_domains,
    place_on_canvases,
    several_digits,
)
from hookline.recipes.data.digits import PEAK, digits
from hookline.recipes.data.input_form import TARGET_IMAGES
from hookline.trainer.input.data import ArraySource, Data, Split
from tests.support.batches import whole
from tests.support.refusals import assert_refused


def in_the_box(batch):
    """Return what each canvas shows where its map is 1."""
    return batch["inputs"][batch["map"] == 1].reshape(-1, 8, 8, 1)


def flat_images(count, side=6):
    """Return images of one gray value each: 1, 2, 3, ..."""
    return np.broadcast_to(np.arange(1, count + 1, dtype=np.uint8)[:, None, None], (count, side, side))


@pytest.fixture(scope="module")
def plain():
    return cluttered()


def test_batch_has_inputs_targets_and_map(plain):
    assert (plain.train.size, plain.validation.size, plain.test.size) == (1258, 180, 359)
    assert (plain.input_shape, plain.classes) == ((20, 20, 1), 10)
    batch = whole(plain.test)
    found = {name: (batch[name].shape, batch[name].dtype) for name in ("inputs", "targets", "map")}
    assert found == {
        "inputs": ((359, 20, 20, 1), np.float32),
        "targets": ((359,), np.int64),
        "map": ((359, 20, 20), np.float32),
    }
    assert (batch["inputs"].min(), batch["inputs"].max()) == (-1, 1)
    for inside in batch["map"]:
        expected, (top, left) = np.zeros((20, 20)), np.argwhere(inside)[0]
        expected[top : top + 8, left : left + 8] = 1
        np.testing.assert_array_equal(inside, expected)
        assert expected.sum() == 64
    assert plain.test.source.bytes == 359 * (20 * 20 + 8 + 4 * 8), "canvases are held as bytes"


def test_fragments_only_brighten_canvas_and_keep_image_in_place(plain):
    batch, bare = whole(plain.test), whole(cluttered(fragments=0).test)
    source = whole(digits().test)  # without fragments the box shows the image, and the rest is black
    np.testing.assert_array_equal(in_the_box(bare), source["inputs"])
    np.testing.assert_array_equal(bare["targets"], source["targets"])
    assert (bare["inputs"][..., 0][bare["map"] == 0] == -1).all()
    np.testing.assert_array_equal(batch["map"], bare["map"])
    assert (batch["inputs"] >= bare["inputs"]).all()
    covered = (batch["inputs"] > bare["inputs"]).mean(axis=(1, 2, 3))
    assert (covered > 0).mean() > 0.99
    assert 0.05 < covered.mean() < 8 * 9 / 400


def test_canvases_never_change_between_versions():
    rows = np.arange(50) % 7
    canvases, boxes = place_on_canvases(flat_images(7), rows, Clutter(16, 4, 3), seed=3, stream=1)
    assert boxes[:4].tolist() == [[2, 8, 6, 6], [4, 1, 6, 6], [3, 5, 6, 6], [4, 6, 6, 6]]
    assert zlib.crc32(canvases.tobytes()) == 1047076830


def test_settings_out_of_range_are_refused():
    for make, settings, message in (
        (cluttered, {"path": "a.npz"}, "Set data.source=mnist"),
        (cluttered, {"canvas": 8}, "data.canvas=8 .*at least 9"),
        (cluttered, {"fragment_size": 9}, "data.fragment_size=9 .*from 1 to 8"),
        (cluttered, {"validation_examples": 1}, "fragments to 0"),
        (domains, {"path": "a.npz"}, "Set data.originals=mnist"),
        (domains, {"validation_examples": 1}, "fragments to 0"),
        (several_digits, {"most": 0}, "data.most=0"),
    ):
        assert_refused(message, make, **settings)


NAMES = ("train", "validation", "test")
PLAIN, CLUTTERED = Clutter(9, 0, 2), Clutter(9, 4, 2)


def numbered(*, labels: np.ndarray | None = None) -> Data:
    """Return 240 originals of 8 x 8 pixels, each of one gray value, its row + 1, in splits of 100, 60 and 80."""
    rows = np.arange(240)
    images = np.broadcast_to((rows + 1).astype(np.float32)[:, None, None, None], (240, 8, 8, 1))
    labels = rows % 10 if labels is None else labels
    source = ArraySource({"inputs": images / 127.5 - 1.0, "targets": labels}, lambda batch: batch)
    parts = zip(NAMES, np.split(rows, [100, 160]), strict=True)
    splits = {name: Split(name, source, part) for name, part in parts}
    return Data("numbered", **splits, input_shape=(8, 8, 1), classes=10)


def brightest(images: np.ndarray) -> np.ndarray:
    """Return the brightest gray value of each image, which is 1 + the number of its original."""
    return np.rint((images.max(axis=(1, 2, 3)) + 1.0) * 127.5).astype(int)


def paired(looks: tuple[Clutter, Clutter] = (PLAIN, PLAIN), seed: int = 0, **given) -> dict[str, dict[str, np.ndarray]]:
    data = numbered()
    splits = {name: getattr(data, name) for name in NAMES}
    return {
        name: whole(pair_domains(split, 255, looks, given.get(name), (seed, 3 * stream)))
        for stream, (name, split) in enumerate(splits.items())
    }


def test_no_original_is_in_two_domains_or_two_splits() -> None:
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


def test_fragments_come_from_same_domain_and_split() -> None:
    for looks in ((PLAIN, CLUTTERED), (CLUTTERED, CLUTTERED)):
        plain, found = paired(), paired(looks)
        for name in NAMES:
            for key, look in zip(("inputs", TARGET_IMAGES), looks, strict=True):
                own = set(brightest(plain[name][key]))
                shown = np.unique(np.rint((found[name][key] + 1.0) * 127.5).astype(int))
                assert set(shown) - {0} <= own, (name, key)
                assert (found[name][key] >= plain[name][key]).all()  # the images stay at their places
                assert (found[name][key] > plain[name][key]).any() == bool(look.fragments)


def test_originals_repeat_at_other_places_and_depend_on_seed() -> None:
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
    for name in NAMES:
        np.testing.assert_array_equal(first[name]["inputs"], again[name]["inputs"])
        assert not np.array_equal(np.sort(brightest(first[name]["inputs"])), np.sort(brightest(other[name]["inputs"])))


def test_targets_name_the_digits_on_a_canvas() -> None:
    batch = whole(several_digits(train_examples=300, validation_examples=20, test_examples=20).train)
    originals = whole(digits().train)
    labels = {image.tobytes(): label for image, label in zip(originals["inputs"], originals["targets"], strict=True)}
    cells = batch["inputs"].reshape(300, 3, 8, 3, 8).transpose(0, 1, 3, 2, 4).reshape(300, 9, 64)
    shown = [[labels[cell.tobytes()] for cell in canvas if cell.max() > -1] for canvas in cells]
    assert {len(each) for each in shown} == {1, 2, 3, 4}
    np.testing.assert_array_equal(batch["targets"], [[label in each for label in range(10)] for each in shown])
    assert np.ptp(batch["targets"].mean(axis=0)) < 0.15


def test_mask_covers_only_the_ink_of_the_digit() -> None:
    options = {"train_examples": 50, "validation_examples": 5, "test_examples": 5}
    plain, cluttered_ = (cluttered(fragments=count, targets="mask", **options) for count in (0, 8))
    found, among = whole(plain.train), whole(cluttered_.train)
    alone, ink = found["inputs"], found["targets"]
    np.testing.assert_array_equal(ink, among["targets"])
    np.testing.assert_array_equal(ink[..., 0] == 1, np.rint((alone[..., 0] + 1) * PEAK / 2) > PEAK / 2)
    assert (among["inputs"] > alone).any()
