"""Images from folders: the right class, the right split, the right pixels, and one clear line for every bad folder."""

import os
import shutil
from functools import partial

import numpy as np
import pytest

from hookline.recipes.data.image_folder import image_folder, list_images
from hookline.recipes.data.images import decode_image
from tests.support.batches import whole
from tests.support.encoded import encoded
from tests.support.refusals import refusal

COLOURS = {"blue": (0, 0, 200), "green": (0, 200, 0), "red": (200, 0, 0)}


def write_flat(folder, count=10, *, seed=0, names=tuple(COLOURS)):
    """Write images of each class's color, all different by a little noise."""
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        generator = np.random.default_rng([seed, *name.encode()])
        for number in range(count):
            pixels = np.array(COLOURS[name]) + generator.integers(0, 50, (10, 14, 3))
            (folder / name / f"{number:03}.png").write_bytes(encoded(pixels))
    return str(folder)


def write_splits(folder, **counts):
    for seed, (split, count) in enumerate((counts or {"train": 6, "validation": 2, "test": 3}).items()):
        write_flat(folder / split, count, seed=seed)
    return str(folder)


def load(path, **settings):
    return image_folder(**{"path": str(path), "image_size": 8, **settings})


def sizes(data):
    return data.train.size, data.validation.size, data.test.size


message_of = partial(refusal, load)


def test_splits_and_classes_come_from_folders(tmp_path):
    data = load(write_splits(tmp_path / "pets"))
    assert (data.name, data.classes, data.class_names) == ("pets", 3, ("blue", "green", "red"))
    assert sizes(data) == (18, 6, 9)
    assert data.input_shape == (8, 8, 3)
    assert data.train.source is data.test.source
    assert data.train.source.bytes == 33 * (8 * 8 * 3 + 8)  # one byte per value
    for split in data.splits:
        batch = whole(split)
        assert (batch["inputs"].dtype, batch["targets"].dtype) == (np.float32, np.int64)
        np.testing.assert_array_equal(batch["targets"], np.repeat([0, 1, 2], split.size // 3))
        np.testing.assert_array_equal(split.source.labels[split.indices], batch["targets"])
        brightest = batch["inputs"].mean(axis=(1, 2)).argmax(axis=1)
        np.testing.assert_array_equal(brightest, 2 - batch["targets"], "blue is the last channel, red the first")


def test_names_match_rows_and_classes_without_images_are_reported(tmp_path):
    path = write_splits(tmp_path, train=10, test=3)
    (tmp_path / "train" / "blue" / "002.png").write_bytes(b"no image")
    with pytest.warns(UserWarning, match=r"002\.png"):
        data = load(path, corrupt="skip", validation_share=0.2, test_share=0.9, split="hash")
    names = [data.train.name_of(place) for place in range(data.train.size)]
    assert len(names) == len(set(names)) < 29
    for name, image in zip(names, whole(data.train)["inputs"], strict=True):
        channel = image.mean(axis=(0, 1)).argmax()
        assert name.startswith(f"train/{('red', 'green', 'blue')[channel]}/")
    assert data.test.name_of(data.test.size - 1) == "test/red/002.png"
    (tmp_path / "train" / "blue" / "002.png").unlink()
    (tmp_path / "test" / "red").rename(tmp_path / "test" / "Red")
    assert "no train example, the first is 'Red'" in message_of(path)
    shutil.rmtree(tmp_path / "test" / "Red")
    with pytest.warns(UserWarning, match="1 of 3 classes have no test example, the first is 'red'"):
        data = load(path)
    np.testing.assert_array_equal(np.unique(whole(data.test)["targets"]), [0, 1])


def test_class_folders_are_split_by_class_seed_and_share(tmp_path):
    path = write_flat(tmp_path, 16)
    first, again, other = (load(path, validation_share=0.25, test_share=12, seed=seed) for seed in (0, 0, 1))
    parts = [first.train.indices, first.validation.indices, first.test.indices]
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(48))
    for split, count in ((first.train, 8), (first.validation, 4), (first.test, 4)):
        np.testing.assert_array_equal(np.bincount(whole(split)["targets"]), [count] * 3)
    np.testing.assert_array_equal(first.test.indices, again.test.indices)
    assert not np.array_equal(first.test.indices, other.test.indices)
    images = {}
    for share in (0.25, 0.5, 1):  # a smaller share is part of a larger one, and the test split stays
        data = load(path, train_share=share, validation_share=0.25, test_share=12)
        images[share] = {each.tobytes() for each in whole(data.train)["inputs"]}
        assert np.ptp(np.bincount(whole(data.train)["targets"])) == 0
        np.testing.assert_array_equal(whole(data.test)["inputs"], whole(first.test)["inputs"])
    assert [len(each) for each in images.values()] == [6, 12, 24]
    assert images[0.25] < images[0.5] < images[1]


def test_unusable_folders_are_refused(tmp_path, monkeypatch):
    (tmp_path / "set.zip").write_bytes(b"")
    (tmp_path / "empty" / "train" / "red").mkdir(parents=True)
    write_flat(tmp_path / "one", names=["red"])
    shutil.rmtree(write_splits(tmp_path / "half") + "/test")
    (tmp_path / "half" / "test").mkdir()
    for name, expected in (
        ("nowhere", "does not exist"),
        ("set.zip", "is a file"),
        ("empty", "No JPEG, PNG, BMP or GIF"),
        ("one", "holds one class, 'red'"),
        ("half", "test folder"),
    ):
        assert expected in message_of(tmp_path / name), name
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(write_splits(tmp_path / "data"))
    assert load(".").name == load("~/data").name == "data"


def test_same_file_in_two_splits_is_refused_or_kept_only_in_test(tmp_path):
    path = write_splits(tmp_path)
    # Copy two training images and one validation image into the test split, under other names.
    shutil.copy(tmp_path / "train" / "red" / "000.png", tmp_path / "test" / "red" / "copy.png")
    shutil.copy(tmp_path / "train" / "green" / "001.png", tmp_path / "test" / "blue" / "copy.png")
    shutil.copy(tmp_path / "validation" / "blue" / "000.png", tmp_path / "test" / "blue" / "other.png")
    assert f"3 images of '{path}' are in two splits, such as '{path}/train/green/001.png'" in message_of(path)
    shutil.copy(tmp_path / "train" / "red" / "001.png", tmp_path / "train" / "red" / "twin.png")  # no leak
    with pytest.warns(UserWarning, match="3 images of .* are in two splits"):
        data = load(path, duplicates="drop")
    assert sizes(data) == (18 + 1 - 2, 6 - 1, 9 + 3)
    train, validation, test = ({each.tobytes() for each in whole(split)["inputs"]} for split in data.splits)
    assert not (train | validation) & test


def test_settings_out_of_range_are_refused(tmp_path):
    path = write_flat(tmp_path)
    for settings, name in (
        ({"fit": "crp"}, "'crop'"),
        ({"split": "group"}, "group_pattern=null"),
        ({"group_pattern": "(.)"}, "only there"),
        ({"split": "group", "group_pattern": "bl(u)e"}, "not found in 20 of 30 images"),
        ({"train_share": 0.04}, "2 of 3 classes have no train example"),
        ({"validation_share": 0.6, "test_share": 0.4}, "some left to train on"),
    ):
        assert name in message_of(path, **settings), settings


def folder_of(root, *files):
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")
    return str(root)


def names(listing):
    return [os.path.relpath(path, listing.folder) for path in listing.paths]


def test_every_skipped_path_except_litter_is_named_once(tmp_path):
    stray = ["readme.md", "more/a/0.png", "train/notes.txt", "train/a/deep/0.png", "test/a/0.tiff"]
    litter = [".git/x", "__MACOSX/a", "train/Thumbs.db", "train/a/desktop.ini", "train/a/._0.png"]
    found = list_images(folder_of(tmp_path, "train/a/0.png", "test/b/0.png", *stray, *litter))
    expected = ["more", "readme.md", "train/notes.txt", "train/a/deep", "test/a/0.tiff"]
    assert sorted(os.path.relpath(path, tmp_path) for path in found.skipped) == sorted(expected)
    assert names(found) == ["train/a/0.png", "test/b/0.png"]


@pytest.mark.parametrize(("fit", "channels"), [("crop", 3), ("stretch", 1)])
def test_predictions_prepare_images_like_training(tmp_path, fit, channels):
    data = load(write_flat(tmp_path, 20), image_size=[8, 7], fit=fit, channels=channels)
    files = [data.train.name_of(position) for position in range(data.train.size)]
    pixels = np.stack([decode_image((tmp_path / file).read_bytes(), data.preparation) for file in files])
    np.testing.assert_array_equal(data.preparation.of_images(pixels), whole(data.train)["inputs"])
