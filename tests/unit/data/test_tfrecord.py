"""TFRecord files: read at random, indexed once, and one clear line for every bad file."""

from __future__ import annotations

import inspect
import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import yaml

from recipes.data import tfrecord_index
from recipes.data.image_decoding import decode_image
from recipes.data.image_form import ImageForm
from recipes.data.tfrecord import tfrecord
from tests.support.encoded import encoded
from tests.support.records import example, pictures, write_records
from trainer.errors import UserError
from trainer.input.batches import TrainingBatches
from trainer.step.python_errors import python_errors

CONFIG = Path(__file__).parents[3] / "configs" / "data" / "tfrecord.yaml"
FORM = ImageForm(8, 8, 3, "crop")


@pytest.fixture(autouse=True)
def cache_home(tmp_path_factory, monkeypatch):
    """The user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    return Path(os.environ["XDG_CACHE_HOME"]) / "hookline"


@pytest.fixture
def indexed(monkeypatch):
    """The files that were indexed, in a list that grows."""
    seen = []
    index = tfrecord_index._index_file
    monkeypatch.setattr(tfrecord_index, "_index_file", lambda file, keys: seen.append(file) or index(file, keys))
    return seen


def load(path, **settings):
    return tfrecord(**{"path": str(path), "image_size": 8, **settings})


def write(file, features):
    return write_records(file, [example(each) for each in features])


def two_files(folder, count=24):
    """Two files of which the first holds a third; return their features."""
    features = pictures(count)
    write(folder / "a-0.tfrecord", features[: count // 3])
    write(folder / "a-1.tfrecord", features[count // 3 :])
    return features


def message_of(path, **settings):
    with pytest.raises(UserError) as caught:
        load(path, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def rows_of(data):
    batch = data.train.source.gather(tf.range(data.train.source.size, dtype=tf.int64))
    return np.rint((batch["inputs"].numpy() + 1) * 127.5).astype(np.uint8), batch["targets"].numpy()


@pytest.mark.parametrize("cache", ["memory", "disk", "none"])
def test_every_record_of_several_files_is_found_at_random(tmp_path, cache):
    features = two_files(tmp_path)
    data = load(tmp_path / "a-*", cache=cache)
    assert (data.name, data.classes, data.class_names, data.input_shape) == ("a-0", 3, (), (8, 8, 3))
    source = data.train.source
    assert source.host_only == (cache != "memory")
    for rows in ([23], [7, 8, 0, 7], range(24)):
        batch = source.gather(tf.constant(list(rows), tf.int64))
        expected = [decode_image(features[row]["image/encoded"], FORM) for row in rows]
        np.testing.assert_allclose((batch["inputs"].numpy() + 1) * 127.5, expected, atol=1e-3)
        np.testing.assert_array_equal(batch["targets"], [row % 3 for row in rows])
    np.testing.assert_array_equal(source.labels, np.arange(24) % 3)
    parts = [data.train.indices, data.validation.indices, data.test.indices]
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(24))
    drawn = next(TrainingBatches(data.train, batch_size=4, seed=0).iterator(5))
    assert drawn["inputs"].shape == (4, 8, 8, 3)


def test_files_of_their_own_are_the_splits(tmp_path):
    train, validation, test = (
        write(tmp_path / f"{name}.tfrecord", pictures(count, seed=count))
        for name, count in (("train", 12), ("val", 3), ("test", 6))
    )
    data = load(train, validation_path=validation, test_path=[test])
    assert (data.train.size, data.validation.size, data.test.size) == (12, 3, 6)
    np.testing.assert_array_equal(data.test.indices, np.arange(15, 21))
    data = load(train, test_path=test, validation_share=3)
    assert (data.train.size, data.validation.size, data.test.size) == (9, 3, 6)
    assert "is in train and in test; expected each file in one" in message_of(tmp_path / "t*.tfrecord", test_path=test)


def test_texts_are_names_of_classes(tmp_path):
    features = pictures(12)
    for each in features:
        each["image/class/label"] = [b"dog", b"cat", "bär".encode()][each["image/class/label"]]
    path = write(tmp_path / "a", features)
    data = load(path)
    assert data.class_names == ("bär", "cat", "dog")
    np.testing.assert_array_equal(data.train.source.labels, [2, 1, 0] * 4)
    with pytest.warns(UserWarning, match="1 of 4 classes have no example to train on, the first is 'emu'"):
        given = load(path, class_names=["dog", "cat", "bär", "emu"], classes=4)
    np.testing.assert_array_equal(given.train.source.labels, [0, 1, 2] * 4)
    assert "Unknown class in the records 'bär'" in message_of(path, class_names=["dog", "cat", "bar"])


def test_integers_may_begin_at_one(tmp_path):
    path = write(tmp_path / "a", pictures(12, first=1))
    data = load(path, first_label=1, class_names=["x", "y", "z"])
    assert data.class_names == ("x", "y", "z")
    np.testing.assert_array_equal(data.train.source.labels, [0, 1, 2] * 4)
    found = message_of(path)
    assert "1 of 4 classes have no example to train on, the first is '0'" in found
    assert "Check data.label_key and data.first_label" in found
    with pytest.warns(UserWarning, match="1 of 4 classes have no example to train on, the first is '0'"):
        assert load(path, classes=4).classes == 4
    assert "8 labels lie outside 0..1, the first is 2 in row 1" in message_of(path, classes=2)


def test_a_second_run_reads_no_record_to_index(tmp_path, indexed, cache_home):
    two_files(tmp_path)
    first = rows_of(load(tmp_path / "a-*"))
    assert [Path(each).name for each in sorted(indexed)] == ["a-0.tfrecord", "a-1.tfrecord"]
    again = rows_of(load(tmp_path / "a-*"))
    assert len(indexed) == 2
    for expected, found in zip(first, again, strict=True):
        np.testing.assert_array_equal(found, expected)
    load(tmp_path / "a-*", cache_dir=str(tmp_path / "mine"))
    assert len(list((tmp_path / "mine").iterdir())) == len(list(cache_home.iterdir())) == 1


@pytest.mark.parametrize("change", ["size", "time", "key", "index cut", "index of words"])
def test_an_index_that_does_not_belong_is_made_anew(tmp_path, indexed, cache_home, change):
    features = two_files(tmp_path)
    load(tmp_path / "a-*")
    settings = {}
    if change == "size":
        write(tmp_path / "a-1.tfrecord", features[9:])
    elif change == "time":
        os.utime(tmp_path / "a-1.tfrecord", ns=(1, 1))
    elif change == "key":
        settings = {"label_key": "person"}
    else:
        (index,) = cache_home.iterdir()
        index.write_bytes(b"words" if change == "index of words" else index.read_bytes()[:-100])
    assert load(tmp_path / "a-*", **settings).train.source.size == (23 if change == "size" else 24)
    assert len(indexed) == 4
    load(tmp_path / "a-*", **settings)
    assert len(indexed) == 4


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path):
    two_files(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.warns(UserWarning, match="cannot hold the index of the records .* every run makes it again"):
        data = load(tmp_path / "a-*", cache_dir=str(tmp_path / "file"))
    assert data.train.source.size == 24


@pytest.mark.parametrize(("kind", "remedy"), [("GZIP", "gzip -dc"), ("ZLIB", "zlib.decompress")])
def test_compressed_files_are_refused_with_the_remedy(tmp_path, kind, remedy):
    path = write_records(tmp_path / "a", [example(each) for each in pictures(6)], kind)
    found = message_of(path)
    assert f"'{path}' is compressed ({kind}), and compressed files cannot be read at random. Unpack it: " in found
    assert remedy in found


def test_a_file_that_is_cut_off_is_named_with_the_place(tmp_path):
    path = Path(write(tmp_path / "a", pictures(70)))  # more than a batch of the indexing
    whole = path.read_bytes()
    last = len(whole) - 16 - len(example(pictures(70)[69]))
    for length in (last + 1, last + 11, last + 12, last + 100, len(whole) - 1):
        path.write_bytes(whole[:length])
        found = message_of(path)
        assert f"'{path}' is cut off: its last record is not whole, from byte {last} of {length} on; expected" in found


def test_a_wrong_checksum_is_named_with_the_place(tmp_path):
    records = [example(each) for each in pictures(6)]
    path = Path(write_records(tmp_path / "a", records))
    data = bytearray(path.read_bytes())
    data[len(records[0]) + 16 + 40] ^= 1
    path.write_bytes(data)
    assert f"'{path}' is damaged: what is at byte {len(records[0]) + 28} has a wrong checksum" in message_of(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"these are words and no records at all", "is no TFRecord file: its first checksum is wrong"),
        (b"", "holds no record; expected a TFRecord file with examples"),
        (b"word", "is cut off: its last record is not whole, from byte 0 of 4 on"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    (tmp_path / "a").write_bytes(content)
    assert f"'{tmp_path}/a' {message}" in message_of(tmp_path / "a")


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        (
            {},
            {"label_key": "lable"},
            "record 0 has no feature 'lable'. It has: image/class/label, image/encoded, person.",
        ),
        ({}, {"image_key": "image/encode"}, "Did you mean 'image/encoded'? It has: "),
        ({"image/class/label": 0.5}, {}, "record 4: feature 'image/class/label' holds 1 float values; expected one of"),
        (
            {"image/class/label": [1, 2]},
            {},
            "holds 2 int64 values; expected one of bytes or int64. Set data.label_key.",
        ),
        ({"image/encoded": 3}, {}, "feature 'image/encoded' holds 1 int64 values; expected one of bytes"),
        ({"image/class/label": b"one"}, {}, "data.label_key names numbers in some records and texts in others"),
    ],
)
def test_features_that_do_not_fit_are_named_with_their_record(tmp_path, change, settings, message):
    features = pictures(6)
    features[4] = {**features[4], **change}
    assert message in message_of(write(tmp_path / "a", features), **settings)


def test_numbers_in_one_file_and_texts_in_another_are_refused(tmp_path):
    features = pictures(12)
    write(tmp_path / "a0", features[:6])
    write(tmp_path / "a1", [{**each, "image/class/label": b"one"} for each in features[6:]])
    assert "data.label_key names numbers in some files and texts in others" in message_of(tmp_path / "a?")


def test_records_that_are_no_examples_are_refused(tmp_path):
    path = write_records(tmp_path / "a", [example(pictures(1)[0]), b"\xff\xff words"])
    assert "record 1 is no tf.train.Example (" in message_of(path)


def test_raw_pixels_have_the_shape_that_is_given(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (12, 6, 8, 3)).astype(np.uint8)
    features = [{"x": image.tobytes(), "y": row % 2} for row, image in enumerate(images)]
    keys = {"image_key": "x", "label_key": "y", "encoding": "raw", "image_size": None}
    path = write(tmp_path / "a", features)
    data = load(path, shape=[6, 8, 3], **keys)
    assert data.input_shape == (6, 8, 3)
    np.testing.assert_array_equal(rows_of(data)[0], images)
    assert load(path, shape=[12, 12, 1], **{**keys, "image_size": 4, "channels": 1}).input_shape == (4, 4, 1)
    found = message_of(path, shape=[5, 8, 3], **keys)
    assert f"'{path}, record 0' cannot be read as an image (it has 144 bytes, and data.shape [5, 8, 3])" in found


@pytest.mark.parametrize("cache", ["memory", "none"])
def test_damaged_images_can_be_skipped(tmp_path, cache):
    features = pictures(24)
    features[5]["image/encoded"] = features[5]["image/encoded"][:-40]
    features[6]["image/encoded"] = b"words"
    path = write(tmp_path / "a", features)
    with pytest.warns(UserWarning, match=f"2 damaged images are left out: '{path}, record 5'.*also '{path}, record 6'"):
        data = load(path, cache=cache, corrupt="skip")
    np.testing.assert_array_equal(data.train.source.labels, np.delete(np.arange(24) % 3, [5, 6]))
    np.testing.assert_array_equal(rows_of(data)[0][5], decode_image(features[7]["image/encoded"], FORM))
    if cache == "memory":
        assert f"'{path}, record 5' cannot be read as an image" in message_of(path)


def test_a_record_that_changes_after_it_was_indexed_stops_the_run(tmp_path):
    features = pictures(24)
    path = write(tmp_path / "a", features)
    data = load(path, cache="none")
    other = encoded(np.zeros((10, 10, 3)))
    write(tmp_path / "a", [{**each, "image/encoded": other} for each in features])
    batches = TrainingBatches(data.train, batch_size=4, seed=0)
    with pytest.raises(UserError, match="changed since this run indexed it"), python_errors():
        next(batches.iterator(0))


def test_groups_stay_together_and_hashes_do_not_move(tmp_path):
    path = write(tmp_path / "a", pictures(60))
    data = load(path, split="group", group_key="person", validation_share=0.2, test_share=0.2)
    for split, groups in ((data.train, 6), (data.validation, 2), (data.test, 2)):
        np.testing.assert_array_equal(np.unique(split.indices // 6, return_counts=True)[1], [6] * groups)
    few, many = load(path, split="hash"), load(write(tmp_path / "b", pictures(90)), split="hash")
    assert set(few.test.indices) == {row for row in many.test.indices if row < 60}
    assert few.test.size < many.test.size
    other = write(tmp_path / "c", pictures(6))
    assert "Group '0' is in train and in test" in message_of(path, test_path=other, split="group", group_key="person")


def test_files_that_are_not_there_are_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert f"data.path 'no-*' matches no file; expected TFRecord files. Working directory: {tmp_path}." in message_of(
        "no-*"
    )
    assert "data.test_path 'gone' matches no file" in message_of(write(tmp_path / "a", pictures(6)), test_path="gone")
    assert f"data.path '{tmp_path}' is a folder; expected files, such as '{tmp_path}/*.tfrecord'." in message_of(
        tmp_path
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load("~/a").train.source.size == 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"path": []}, "Received data.path=[]; expected names of TFRecord files"),
        ({"path": [3]}, "Received data.path=[3]"),
        ({"path": " "}, "Received data.path=' '"),
        ({"image_key": None}, "Received data.image_key=None; expected the name of a feature"),
        ({"group_key": 3, "split": "group"}, "Received data.group_key=3"),
        ({"encoding": "jpeg"}, "Unknown data.encoding 'jpeg'. Expected one of: image, raw."),
        ({"encoding": "raw"}, "Received data.shape=None with data.encoding=raw; expected height, width and channels"),
        ({"encoding": "raw", "shape": [8, 8]}, "Received data.shape=[8, 8]"),
        ({"encoding": "raw", "shape": [8, 8, 2]}, "Received data.shape=[8, 8, 2]"),
        ({"shape": [8, 8, 3]}, "Received data.shape=[8, 8, 3] with data.encoding=image"),
        ({"image_size": None}, "Received data.image_size=None; expected a number of pixels"),
        ({"first_label": 0.5}, "Received data.first_label=0.5; expected an integer"),
        ({"classes": 1}, "Received data.classes=1; expected an integer of 2 or more, or null"),
        ({"classes": 3, "class_names": ["a", "b"]}, "Received data.classes=3 and 2 names of classes"),
        ({"label_key": "same"}, "The records hold one class; expected 2 or more. Check data.label_key."),
        ({"cache": "dsk"}, "Unknown data.cache 'dsk'. Did you mean 'disk'?"),
        ({"split": "hsh"}, "Unknown data.split 'hsh'. Did you mean 'hash'?"),
        ({"split": "group"}, "Received data.split=group and data.group_key=null; expected both"),
        ({"group_key": "person"}, "data.group_key with data.split=stratified, where it counts for nothing"),
        ({"validation_share": 0.5, "test_share": 0.5}, "sum below 1"),
    ],
)
def test_settings_out_of_range_are_refused(tmp_path, settings, message):
    path = write(tmp_path / "a", [{**each, "same": 0} for each in pictures(12)])
    with pytest.raises(UserError) as caught:
        tfrecord(**{"path": path, "image_size": 8, **settings})
    assert message in str(caught.value)


def test_the_config_lists_every_argument_with_its_default_and_asks_for_the_path():
    config = yaml.safe_load(CONFIG.read_text())
    assert config.pop("_target_") == "recipes.data.tfrecord.tfrecord"
    assert config.pop("path") == "???"
    arguments = dict(inspect.signature(tfrecord).parameters)
    assert arguments.pop("path").default is inspect.Parameter.empty
    assert config == {name: parameter.default for name, parameter in arguments.items()}
