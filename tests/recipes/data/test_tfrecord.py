"""TFRecord files: random access, an index that is made once, and one clear line for every bad file."""

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from hookline.recipes.data import tfrecord as module
from hookline.recipes.data.images import decode_image, image_form
from hookline.recipes.data.tfrecord import tfrecord
from tests.support.encoded import encoded
from tests.support.refusals import assert_refused, refusal


def example(features):
    """Return a record."""
    feature = {}
    for name, value in features.items():
        values = value if isinstance(value, list) else [value]
        kind = {bytes: "bytes_list", float: "float_list", int: "int64_list"}[type(values[0])]
        feature[name] = tf.train.Feature(**{kind: {"value": values}})
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def write_records(file, records, compression=""):
    """Write records and return the name of the file."""
    with tf.io.TFRecordWriter(str(file), compression) as writer:
        for record in records:
            writer.write(record)
    return str(file)


def pictures(count, *, classes=3, seed=0, first=0):
    """Return features of pictures of 10 x 10 pixels; the classes take turns."""
    generator = np.random.default_rng(seed)
    return [
        {
            "image/encoded": encoded(generator.integers(0, 256, (10, 10, 3))),
            "image/class/label": first + number % classes,
            "person": number // 6,
        }
        for number in range(count)
    ]


FORM = image_form(8, "crop", 3)


@pytest.fixture(autouse=True)
def cache_home(tmp_path_factory, monkeypatch):
    """The user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    return Path(os.environ["XDG_CACHE_HOME"]) / "hookline"


def load(path, **settings):
    return tfrecord(**{"path": str(path), "image_size": 8, **settings})


def write(file, features):
    return write_records(file, [example(each) for each in features])


def two_files(folder, count=24):
    """Write two files, the first with a third of the records; return the features of all."""
    features = pictures(count)
    write(folder / "a-0.tfrecord", features[: count // 3])
    write(folder / "a-1.tfrecord", features[count // 3 :])
    return features


message_of = partial(refusal, load)


def rows_of(data):
    batch = data.train.source.gather(tf.range(data.train.source.size, dtype=tf.int64))
    return np.rint((batch["inputs"].numpy() + 1) * 127.5).astype(np.uint8), batch["targets"].numpy()


@pytest.mark.parametrize("cache", ["memory", "disk", "none"])
def test_records_of_several_files_are_read_in_any_order(tmp_path, cache):
    features = two_files(tmp_path)
    data = load(tmp_path / "a-*", cache=cache)
    assert (data.name, data.classes, data.class_names, data.input_shape) == ("a-0", 3, (), (8, 8, 3))
    source = data.train.source
    assert source.host_only == (cache != "memory")
    for rows in ([7, 8, 0, 7], range(24)):
        batch = source.gather(tf.constant(list(rows), tf.int64))
        expected = [decode_image(features[row]["image/encoded"], FORM) for row in rows]
        np.testing.assert_allclose((batch["inputs"].numpy() + 1) * 127.5, expected, atol=1e-3)
        np.testing.assert_array_equal(batch["targets"], [row % 3 for row in rows])
    np.testing.assert_array_equal(source.labels, np.arange(24) % 3)
    parts = [data.train.indices, data.validation.indices, data.test.indices]
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(24))


def test_separate_files_become_the_splits(tmp_path):
    train, validation, test = (
        write(tmp_path / f"{name}.tfrecord", pictures(count, seed=count))
        for name, count in (("train", 12), ("val", 3), ("test", 6))
    )
    data = load(train, validation_path=validation, test_path=[test])
    assert (data.train.size, data.validation.size, data.test.size) == (12, 3, 6)
    np.testing.assert_array_equal(data.test.indices, np.arange(15, 21))
    data = load(train, test_path=test, validation_share=3)
    assert (data.train.size, data.validation.size, data.test.size) == (9, 3, 6)
    assert "is in train and in test" in message_of(tmp_path / "t*.tfrecord", test_path=test)


def test_text_labels_are_class_names_and_integers_may_start_at_one(tmp_path):
    features = pictures(12)
    for each in features:
        each["image/class/label"] = [b"dog", b"cat", "bär".encode()][each["image/class/label"]]
    path = write(tmp_path / "a", features)
    data = load(path)
    assert data.class_names == ("bär", "cat", "dog")
    np.testing.assert_array_equal(data.train.source.labels, [2, 1, 0] * 4)
    with pytest.warns(UserWarning, match="1 of 4 classes have no train example, the first is 'emu'"):
        given = load(path, class_names=["dog", "cat", "bär", "emu"], classes=4)
    np.testing.assert_array_equal(given.train.source.labels, [0, 1, 2] * 4)
    assert "'bär'" in message_of(path, class_names=["dog", "cat", "bar"])
    path = write(tmp_path / "b", pictures(12, first=1))
    data = load(path, first_label=1, class_names=["x", "y", "z"])
    np.testing.assert_array_equal(data.train.source.labels, [0, 1, 2] * 4)
    assert "data.first_label" in message_of(path)
    with pytest.warns(UserWarning, match="1 of 4 classes have no train example, the first is '0'"):
        assert load(path, classes=4).classes == 4
    assert "8 labels lie outside 0..1, the first is 2 in row 1" in message_of(path, classes=2)


def test_index_is_reused_until_it_is_stale_or_damaged(tmp_path, cache_home, monkeypatch):
    indexed = []
    index = module._index_file
    monkeypatch.setattr(module, "_index_file", lambda file, keys: indexed.append(file) or index(file, keys))
    features = two_files(tmp_path)
    first = rows_of(load(tmp_path / "a-*"))
    np.testing.assert_equal(rows_of(load(tmp_path / "a-*")), first)
    assert len(indexed) == 2
    (file,) = cache_home.iterdir()
    for change in ("size", "time", "key", "cut", "words"):
        settings = {}
        if change == "size":
            write(tmp_path / "a-1.tfrecord", features[9:])
        elif change == "time":
            os.utime(tmp_path / "a-1.tfrecord", ns=(1, 1))
        elif change == "key":
            settings = {"label_key": "person"}
        else:
            file.write_bytes(b"words" if change == "words" else file.read_bytes()[:-100])
        before = len(indexed)
        for _ in range(2):
            assert load(tmp_path / "a-*", **settings).train.source.size == 23, change
        assert len(indexed) == before + 2, change
    (tmp_path / "file").write_bytes(b"")
    with pytest.warns(UserWarning, match="cannot hold the index"):
        assert load(tmp_path / "a-*", cache_dir=str(tmp_path / "file")).train.source.size == 23


def test_truncated_file_is_reported_with_position(tmp_path):
    path = Path(write(tmp_path / "a", pictures(70)))  # more than one batch of indexing
    whole = path.read_bytes()
    last = len(whole) - 16 - len(example(pictures(70)[69]))
    for length in (last + 1, last + 12, last + 100, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert f"truncated record at {last}" in (found := message_of(path)) or f"behind byte {last}" in found


def test_files_without_valid_examples_are_refused(tmp_path):
    records = [example(each) for each in pictures(6)]
    damaged = bytearray(Path(write_records(tmp_path / "damaged", records)).read_bytes())
    damaged[len(records[0]) + 16 + 40] ^= 1
    for content, expected in (
        (damaged, f"corrupted record at {len(records[0]) + 28}"),
        (b"these are words and no records at all", "cannot be read (corrupted record at 0)"),
        (b"", "holds no record"),
    ):
        (tmp_path / "a").write_bytes(content)
        assert expected in message_of(tmp_path / "a")
    packed = write_records(tmp_path / "a", records, "GZIP")
    assert "expected a whole TFRecord file, uncompressed" in message_of(packed)
    path = write_records(tmp_path / "a", [records[0], b"\xff\xff words"])
    assert "record 1 is not a tf.train.Example (" in message_of(path)


def test_invalid_features_are_named_with_their_record(tmp_path):
    for change, settings, expected in (
        ({}, {"label_key": "lable"}, "record 0 has no feature 'lable'"),
        ({"image/class/label": 0.5}, {}, "record 4: 'image/class/label' holds 1 float"),
        ({"image/class/label": [1, 2]}, {}, "holds 2 int64"),
        ({"image/encoded": 3}, {}, "'image/encoded' holds"),
        ({"image/class/label": b"cat"}, {}, "integers and texts as labels"),
    ):
        features = pictures(6)
        features[4] = {**features[4], **change}
        assert expected in message_of(write(tmp_path / "a", features), **settings)


def test_raw_pixels_have_given_shape(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (12, 6, 8, 3)).astype(np.uint8)
    features = [{"x": image.tobytes(), "y": row % 2} for row, image in enumerate(images)]
    keys = {"image_key": "x", "label_key": "y", "encoding": "raw", "image_size": None}
    path = write(tmp_path / "a", features)
    data = load(path, shape=[6, 8, 3], **keys)
    assert data.input_shape == (6, 8, 3)
    np.testing.assert_array_equal(rows_of(data)[0], images)
    assert load(path, shape=[12, 12, 1], **{**keys, "image_size": 4, "channels": 1}).input_shape == (4, 4, 1)
    assert f"'{path}, record 0' cannot be read as an image (it has 144" in message_of(path, shape=[5, 8, 3], **keys)


def test_record_changed_after_indexing_is_refused(tmp_path):
    features = pictures(24)
    data = load(write(tmp_path / "a", features), cache="none")
    other = encoded(np.zeros((10, 10, 3)))
    write(tmp_path / "a", [{**each, "image/encoded": other} for each in features])
    assert_refused("changed since this run indexed it", data.train.source.gather, tf.constant([0], tf.int64))


def test_settings_out_of_range_are_refused(tmp_path, monkeypatch):
    path = write(tmp_path / "a", [{**each, "same": 0} for each in pictures(12)])
    for settings, expected in (
        ({"path": "no-*"}, "'no-*' matches no file"),
        ({"path": str(tmp_path)}, "is a folder"),
        ({"test_path": "gone"}, "data.test_path 'gone'"),
        ({"encoding": "raw", "shape": [8, 8, 2]}, "data.shape=[8, 8, 2]"),
        ({"classes": 3, "class_names": ["a", "b"]}, "2 different class names for 3 classes"),
        ({"group_key": "person"}, "only there"),
    ):
        assert expected in message_of(**{"path": path, **settings})
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load("~/a").train.source.size == 12
