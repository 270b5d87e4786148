"""Images cached on disk are decoded once; damaged ones stop a run or are left out, as configured."""

import os

import numpy as np
import pytest
import tensorflow as tf

from hookline.recipes.data import image_folder as module
from hookline.recipes.data.image_folder import image_folder
from tests.support.encoded import encoded
from tests.support.images import write_images
from tests.support.refusals import assert_refused, refusal

CACHES = ("memory", "disk", "none")


@pytest.fixture
def decoded(monkeypatch):
    """Return a list to which the path of every decoded image is added."""
    seen, read = [], module._read
    monkeypatch.setattr(module, "_read", lambda path, form: seen.append(path) or read(path, form))
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


def test_cache_is_rebuilt_once_after_an_image_changes(folder, tmp_path, decoded):
    load(folder)
    before = cache_file(tmp_path)
    image = folder / "class_0" / "00.png"
    for change in ("time", "content", "name"):
        if change == "content":
            image.write_bytes(encoded(np.zeros([9, 9, 3])))
            os.utime(image, ns=(0, 0))
        elif change == "time":
            os.utime(image, ns=(1, 1))
        else:
            image.rename(image.with_name("99.png"))
        found = inputs(load(folder))
        assert cache_file(tmp_path) == before
        np.testing.assert_array_equal(found, inputs(load(folder, cache="none")), change)
        del decoded[:]
        load(folder)
        assert not decoded, change


def test_damaged_cache_is_rebuilt(folder, tmp_path, decoded):
    expected = inputs(load(folder))
    file = cache_file(tmp_path)
    whole = file.read_bytes()
    flipped = whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:]
    for damaged in (whole[: len(whole) // 2], flipped, b"", whole[:5000] + whole[6000:]):
        file.write_bytes(damaged)
        del decoded[:]
        with pytest.warns(UserWarning, match="is damaged"):
            found = inputs(load(folder))
        np.testing.assert_array_equal(found, expected)
        load(folder)
        assert len(decoded) == 64
        assert file.read_bytes() == whole


def test_full_disk_leaves_no_partial_cache(folder, tmp_path, monkeypatch):
    def fail(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        assert_refused("No space left on device", load, folder)
    assert not list((tmp_path / "cache" / "hookline").iterdir())
    (tmp_path / "file").write_bytes(b"")
    assert_refused("cannot hold", load, folder, cache_dir=str(tmp_path / "file"))


def damage_three(folder):
    """Truncate one image, empty another one, and add a text file named as an image; return their paths."""
    within = folder / "class_0" / "03.png"
    within.write_bytes(within.read_bytes()[:-40])
    empty = folder / "class_1" / "05.png"
    empty.write_bytes(b"")
    words = folder / "class_2" / "notes.jpg"
    words.write_text("not a picture")
    return within, empty, words


@pytest.mark.parametrize("cache", CACHES)
def test_skipped_damaged_images_are_named_and_counted(folder, cache, decoded):
    whole = load(folder, cache="memory", split="hash", corrupt="skip")
    within, empty, words = damage_three(folder)
    with pytest.warns(UserWarning, match="left out") as caught:
        data = load(folder, cache=cache, corrupt="skip", split="hash")
    found = [str(each.message) for each in caught]
    assert len(found) == 2
    assert any(f"2 damaged images are left out: '{empty}'" in each and f"'{words}'" in each for each in found)
    assert any(f"1 damaged images are left out: '{within}'" in each for each in found)
    assert data.train.size + data.validation.size + data.test.size == 62
    by_name = {}
    for split in (split for each in (whole, data) for split in (each.train, each.validation, each.test)):
        batch = split.source.gather(tf.constant(split.indices))
        for place, image in enumerate(batch["inputs"].numpy()):
            name = split.name_of(place)
            assert int(batch["targets"][place]) == split.source.labels[split.indices[place]] == int(name[6])
            np.testing.assert_array_equal(by_name.setdefault(name, image), image)
    if cache == "disk":
        del decoded[:]
        empty.unlink()
        words.unlink()
        with pytest.warns(UserWarning, match=f"1 damaged images are left out: '{within}'"):
            load(folder, cache=cache, corrupt="skip", split="hash")
        assert not decoded


@pytest.mark.parametrize("cache", CACHES)
def test_damaged_images_stop_run_and_are_counted(folder, tmp_path, cache):
    _, empty, words = damage_three(folder)
    assert f"'{empty}' cannot be read as an image (it is empty), nor can 1 more" in refusal(load, folder, cache=cache)
    empty.unlink()
    words.unlink()
    if cache != "none":
        assert_refused(r"03.png' cannot be read as an image \(.*\); expected a whole JPEG", load, folder, cache=cache)
        assert not list(tmp_path.glob("cache/hookline/*")), "nothing half done is kept"


def test_damaged_image_is_named_when_its_batch_is_read_without_cache(folder):
    data = load(folder, cache="none")
    row = data.train.indices[5]
    within = sorted(folder.rglob("*.png"))[row]
    within.write_bytes(within.read_bytes()[:-40])
    assert_refused(f"'{within}' cannot be read as an image", data.train.source.gather, tf.constant([row], tf.int64))
