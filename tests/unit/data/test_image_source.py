"""Images held on the disk are decoded once, and damaged ones stop a run or are left out, as told."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest
import tensorflow as tf

from recipes.data import image_source, pixel_cache
from recipes.data.image_folder import image_folder
from tests.support.images import write_images
from trainer.errors import UserError
from trainer.input.batches import TrainingBatches
from trainer.step.python_errors import python_errors

CACHES = ("memory", "disk", "none")


@pytest.fixture
def decoded(monkeypatch):
    """The images that were decoded, in a list that grows."""
    seen = []
    load = image_source._load
    monkeypatch.setattr(image_source, "_load", lambda images, row: seen.append(images.name(row)) or load(images, row))
    return seen


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write_images(tmp_path / "images")


def load(folder, **settings):
    return image_folder(**{"path": str(folder), "image_size": 8, "cache": "disk", **settings})


def inputs(data):
    return data.train.source.gather(tf.range(data.train.source.size, dtype=tf.int64))["inputs"].numpy()


def cache_file(tmp_path):
    (found,) = (tmp_path / "cache" / "hookline").iterdir()
    return found


def test_a_second_run_decodes_nothing_and_reads_the_same(folder, decoded):
    first = inputs(load(folder))
    assert len(decoded) == 64
    np.testing.assert_array_equal(inputs(load(folder)), first)
    assert len(decoded) == 64
    np.testing.assert_array_equal(inputs(load(folder, cache="memory")), first)


@pytest.mark.parametrize("settings", [{"image_size": 9}, {"fit": "stretch"}, {"channels": 1}, {"train_share": 0.5}])
def test_other_options_have_another_file(folder, tmp_path, decoded, settings):
    load(folder)
    load(folder, **settings)
    assert len(decoded) > 64
    del decoded[:]
    load(folder)
    assert not decoded
    assert len(list((tmp_path / "cache" / "hookline").iterdir())) == 2


@pytest.mark.parametrize("change", ["content", "time", "name"])
def test_a_changed_image_makes_the_cache_stale_and_replaces_it(folder, tmp_path, decoded, change):
    load(folder)
    image, other = folder / "class_0" / "00.png", folder / "class_1" / "00.png"
    if change == "content":
        image.write_bytes(other.read_bytes())
        os.utime(image, ns=(0, 0))
    elif change == "time":
        os.utime(image, ns=(1, 1))
    else:
        image.rename(image.with_name("99.png"))
    found = inputs(load(folder, duplicates="drop"))
    del decoded[:]
    np.testing.assert_array_equal(found, inputs(load(folder, cache="none", duplicates="drop")))
    load(folder, duplicates="drop")
    assert not decoded


def test_a_stale_file_is_replaced_and_not_kept_beside_the_new_one(folder, tmp_path, decoded):
    load(folder)
    before = cache_file(tmp_path)
    os.utime(folder / "class_0" / "00.png", ns=(1, 1))
    load(folder)
    assert len(decoded) == 128
    assert cache_file(tmp_path) == before


def cut(data):
    return data[: len(data) // 2]


def flipped(data):
    return data[:1000] + bytes([data[1000] ^ 1]) + data[1001:]


@pytest.mark.parametrize(
    "damage",
    [cut, flipped, lambda data: data[:-30], lambda data: b"", lambda data: data[:5000] + data[6000:]],
    ids=["cut", "one bit", "end lost", "empty", "middle lost"],
)
def test_a_damaged_cache_is_made_anew(folder, tmp_path, decoded, damage):
    expected = inputs(load(folder))
    file = cache_file(tmp_path)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.warns(UserWarning, match="is damaged; the images are decoded again"):
        found = inputs(load(folder))
    np.testing.assert_array_equal(found, expected)
    assert len(decoded) == 128
    load(folder)
    assert len(decoded) == 128


def test_the_cache_lies_where_the_user_wants_it(folder, tmp_path):
    load(folder, cache_dir=str(tmp_path / "here" / "deep"))
    assert len(list((tmp_path / "here" / "deep").iterdir())) == 1
    assert not (tmp_path / "cache").exists()


def test_a_disk_without_room_is_told_before_decoding(folder, tmp_path, decoded, monkeypatch):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(pixel_cache.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(
        UserError, match=r"cannot hold the decoded images \(0.0 GiB are free\).*Give another data.cache_dir"
    ):
        load(folder)
    assert not decoded
    assert not list((tmp_path / "cache" / "hookline").iterdir())


def test_a_disk_that_fills_up_leaves_nothing_behind(folder, tmp_path, monkeypatch):
    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UserError, match=r"cannot hold the decoded images \(No space left on device\)") as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache" / "hookline").iterdir())


def test_a_cache_folder_that_is_a_file_is_told(folder, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError, match="cannot hold the decoded images"):
        load(folder, cache_dir=str(tmp_path / "file"))


def damage_three(folder):
    """Damage one image within, one from its beginning, and make one a text; return their names."""
    within = folder / "class_0" / "03.png"
    within.write_bytes(within.read_bytes()[:-40])
    empty = folder / "class_1" / "05.png"
    empty.write_bytes(b"")
    words = folder / "class_2" / "notes.jpg"
    words.write_text("not a picture")
    return within, empty, words


@pytest.mark.parametrize("cache", CACHES)
def test_damaged_images_can_be_skipped_and_are_named_and_counted(folder, cache):
    whole = load(folder, cache="memory", split="hash", corrupt="skip")
    within, empty, words = damage_three(folder)
    with pytest.warns(UserWarning, match="left out") as caught:
        data = load(folder, cache=cache, corrupt="skip", split="hash")
    found = [str(each.message) for each in caught]
    assert len(found) == 2
    assert (
        f"2 damaged images are left out: '{empty}' cannot be read as an image (it is empty); also '{words}'." in found
    )
    assert any(each.startswith(f"1 damaged image is left out: '{within}' cannot be") for each in found)
    assert data.train.size + data.validation.size + data.test.size == 62
    kept = np.delete(inputs(whole), [3, 16 + 5], axis=0)
    np.testing.assert_array_equal(inputs(data), kept)
    np.testing.assert_array_equal(data.train.source.labels, np.repeat(range(4), [15, 15, 16, 16]))


def test_the_disk_remembers_what_it_skipped(folder, decoded):
    within, empty, words = damage_three(folder)
    empty.unlink()
    words.unlink()
    for _ in range(2):
        with pytest.warns(UserWarning, match=f"1 damaged image is left out: '{within}'"):
            load(folder, corrupt="skip")
    assert len(decoded) == 63


@pytest.mark.parametrize("cache", CACHES)
def test_damaged_images_stop_a_run_and_all_are_counted(folder, tmp_path, cache):
    _, empty, words = damage_three(folder)
    with pytest.raises(UserError) as caught:
        load(folder, cache=cache)
    assert f"'{empty}' cannot be read as an image (it is empty), nor can 1 more: '{words}'." in str(caught.value)
    empty.unlink()
    words.unlink()
    if cache != "none":
        with pytest.raises(UserError, match=r"03.png' cannot be read as an image \(.*\); expected a whole JPEG"):
            load(folder, cache=cache)
        assert not list(tmp_path.glob("cache/hookline/*")), "nothing half done is kept"


def test_without_a_cache_a_damaged_image_is_named_when_its_batch_is_made(folder):
    data = load(folder, cache="none")
    row = data.train.indices[5]
    within = sorted(folder.rglob("*.png"))[row]
    within.write_bytes(within.read_bytes()[:-40])
    with pytest.raises(UserError, match=f"'{within}' cannot be read as an image"):
        data.train.source.gather(tf.constant([row], tf.int64))
    batches = TrainingBatches(data.train, batch_size=data.train.size, seed=0)
    with pytest.raises(UserError, match=f"'{within}' cannot be read as an image"), python_errors():
        next(batches.iterator(0))


def test_a_class_of_damaged_images_alone_is_refused(folder):
    for image in (folder / "class_2").iterdir():
        image.write_bytes(image.read_bytes()[:-40])
    warnings.filterwarnings("ignore", "16 damaged images are left out")  # undone by pytest
    with pytest.raises(UserError, match="1 of 4 classes have no train image, the first is 'class_2'"):
        load(folder, corrupt="skip")
