"""A user's own arrays: npz, folders and pairs of npy files, in memory and read row by row."""

import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from hookline.recipes.data.arrays import arrays
from hookline.trainer.input.batches import TrainingBatches
from tests.support.batches import assert_same_bits, eager_batches, whole
from tests.support.refusals import refusal


def columns(size=60):
    generator = np.random.default_rng(0)
    return {
        "inputs": generator.integers(0, 256, (size, 4, 4), np.uint8),
        "targets": (np.arange(size) % 3).astype(np.uint8),
    }


def parts(*names, size=60):
    return {
        f"{'x' if key == 'inputs' else 'y'}_{name}": array for name in names for key, array in columns(size).items()
    }


def npz(folder, **arrays_):
    np.savez(folder / "own.npz", **arrays_)
    return str(folder / "own.npz")


def npy(folder, **arrays_):
    (folder / "own").mkdir(exist_ok=True)
    for name, array in arrays_.items():
        np.save(folder / "own" / f"{name}.npy", array)
    return str(folder / "own")


def sizes(data):
    return [data.train.size, data.validation.size, data.test.size]


def message_of(path, **options):
    return refusal(arrays, path=path, **options)


@pytest.mark.parametrize("write", [npz, npy])
def test_arrays_are_split_by_class_or_by_group(tmp_path, write):
    data = arrays(path=write(tmp_path, **columns()), validation=0.1, test=15, class_names=["ant", "bee", "cat"])
    assert sizes(data) == [39, 6, 15]
    people = np.arange(60) // 5
    grouped = arrays(path=write(tmp_path, **columns(), person=people), split="group", groups="person", validation=0.2)
    held = [set(people[split.indices]) for split in (grouped.train, grouped.validation, grouped.test)]
    assert not held[0] & held[1] | held[0] & held[2] | held[1] & held[2]
    assert data.train.source is data.validation.source is data.test.source
    assert (data.name, data.input_shape, data.classes) == ("own", (4, 4, 1), 3)
    assert data.class_names == ("ant", "bee", "cat")
    np.testing.assert_array_equal(np.bincount(whole(data.test)["targets"]), [5, 5, 5])
    found = whole(data.train)
    np.testing.assert_allclose(found["inputs"][..., 0], columns()["inputs"][found["index"]] / 127.5 - 1, atol=1e-6)
    np.testing.assert_array_equal(found["targets"], columns()["targets"][found["index"]])
    assert found["targets"].dtype == np.int64


@pytest.mark.parametrize(("cache", "alias"), [("memory", "val"), ("none", "valid")])
def test_existing_splits_are_kept(tmp_path, alias, cache):
    data = arrays(path=npy(tmp_path, **parts("train", alias), **parts("test", size=9)), cache=cache)
    assert sizes(data) == [60, 60, 9]
    assert len({id(split.source) for split in (data.train, data.validation, data.test)}) == 3
    data = arrays(path=npz(tmp_path, **parts("train"), **parts("test", size=9)))
    assert sizes(data) == [54, 6, 9]


def test_pair_of_npy_files_needs_no_folder(tmp_path):
    folder = Path(npy(tmp_path, pixels=columns()["inputs"], classes=columns()["targets"]))
    data = arrays(path=str(folder / "pixels.npy"), targets=str(folder / "classes.npy"))
    assert (data.name, data.train.size) == ("pixels", 42)
    assert "Set data.targets=" in message_of(str(folder / "pixels.npy"))
    assert "own labels" in message_of(str(folder), targets=str(folder / "classes.npy"))


def test_rows_read_from_file_match_those_in_memory_bit_for_bit(tmp_path):
    path = npy(tmp_path, **{**columns(), "inputs": columns()["inputs"].astype(">i4")})
    held, read = (arrays(path=path, cache=cache) for cache in ("memory", "none"))
    batches = [TrainingBatches(data.train, batch_size=8, seed=1, placement="host") for data in (held, read)]
    assert_same_bits(*(eager_batches(each, 0, 12) for each in batches))
    assert read.train.source.bytes == 60 * (16 * 4 + 8)


def test_bad_arrays_are_refused(tmp_path):
    for changes, expected in (
        ({"targets": np.arange(60) % 3 - 1}, "a label is -1; expected classes from 0 on"),
        ({"targets": np.arange(59) % 3}, "60 inputs but 59 labels"),
        ({"inputs": np.zeros([60, 3, 32, 32], np.uint8)}, "[channels, height, width]"),
        ({"targets": None}, "x_train and y_train"),
    ):
        given = {key: value for key, value in {**columns(), **changes}.items() if value is not None}
        assert expected in message_of(npz(tmp_path, **given))
    for changes, options, expected in (
        ({"x_test": np.zeros([60, 5, 4], np.uint8)}, {}, "own.npz, x_test: inputs of shape [5, 4]"),
        ({"x_test": np.zeros([60, 4, 4], np.float32)}, {}, "dtype float32 would be scaled differently"),
        ({"y_test": np.arange(60) % 9}, {"classes": 8}, "own.npz, y_test: 6 labels lie outside 0..7"),
    ):
        assert expected in message_of(npz(tmp_path, **{**parts("train", "test"), **changes}), **options)


def test_invalid_options_and_paths_are_refused(tmp_path):
    path = npz(tmp_path, **columns())
    for options, expected in (
        ({"cache": "none"}, "an npz"),
        ({"split": "hash"}, "data.keys"),
        ({"groups": "person"}, "data.groups with data.split=group"),
        ({"split": "group", "groups": "preson"}, "data.groups=preson is not an array"),
        ({"classes": 2}, "labels lie outside 0..1"),
        ({"validation": 60}, "some left to train on"),
        ({"path": str(tmp_path / "absent.npz")}, "absent.npz' does not exist"),
        ({"path": str(tmp_path)}, "holds no npy file"),
    ):
        assert expected in message_of(**{"path": path, **options})


@pytest.mark.parametrize("cache", ["memory", "none"])
def test_sample_weights_stay_with_their_examples_in_every_split(tmp_path, cache):
    own = {"sample_weight_train": np.arange(60) / 7.0, "sample_weight_test": np.ones((9, 1), np.int32)}
    data = arrays(path=npy(tmp_path, **parts("train"), **parts("test", size=9), **own), cache=cache)
    for split in (data.train, data.validation):
        found = whole(split)
        np.testing.assert_allclose(found["sample_weights"], found["index"] / 7.0, rtol=1e-6)
    batch = TrainingBatches(data.train, batch_size=8, seed=0).batch(tf.constant(3, tf.int64))
    np.testing.assert_allclose(batch["sample_weights"], batch["index"].numpy() / 7.0, rtol=1e-6)
    np.testing.assert_array_equal(whole(data.test)["sample_weights"], np.ones(9))


def test_invalid_sample_weights_are_refused(tmp_path):
    for weights, expected in (
        (np.ones(59), r"\[59\]"),
        (np.where(np.arange(60) == 7, -1.0, 1.0), "1 weights are negative or not finite, the first is -1.0 in row 7"),
        (np.full(60, np.nan), "60 weights are negative or not finite"),
        (np.zeros(60), "all weights are 0"),
        ((np.arange(60) == 0) * 1.0, "of the split (validation|test) are 0"),
    ):
        found = message_of(npz(tmp_path, **parts("train"), sample_weight_train=weights))
        assert re.search(r"own.npz, sample_weight_train: .*" + expected, found)


def test_unused_arrays_are_named_in_one_warning(tmp_path):
    more = {"sample_weight_train": np.ones(60), "who": np.arange(60), "about": 1, "sample_weight_test": 1, "y_tset": 1}
    path = npz(tmp_path, **parts("train"), **more)
    with pytest.warns(UserWarning, match=r"about, sample_weight_test, y_tset\. .*'y_test'") as caught:
        arrays(path=path, split="group", groups="who")
    assert len(caught) == 1


def test_several_inputs_and_targets_become_dicts_by_name(tmp_path):
    rng = np.random.default_rng(0)
    own = {"x_train_b": rng.normal(size=(30, 2)), "x_train_a": rng.integers(0, 256, (30, 4, 4), np.uint8)}
    targets = {"y_train_v": rng.normal(size=30), "y_train_u": np.arange(30) % 3}
    weights = {"sample_weight_train": np.ones(30)}
    data = arrays(path=npz(tmp_path, **own, **targets, **weights))
    assert (data.input_shape, data.model_shape, data.classes) == ((), {"b": (2,), "a": (4, 4, 1)}, 0)
    found = data.train.source.gather(tf.constant(data.train.indices[:7]))
    assert {*found} == {"inputs", "targets", "sample_weights"}
    pixels = own["x_train_a"][data.train.indices[:7]] / 127.5 - 1
    np.testing.assert_allclose(found["inputs"]["a"][..., 0], pixels, atol=1e-6)
    np.testing.assert_allclose(found["inputs"]["b"], own["x_train_b"][data.train.indices[:7]], rtol=1e-6)
    np.testing.assert_array_equal(found["targets"]["u"], targets["y_train_u"][data.train.indices[:7]])
    one = arrays(path=npz(tmp_path, **own, y_train=np.arange(30) % 3))
    assert (one.classes, one.train.labels.dtype, list(one.preparations)) == (3, np.int64, ["b", "a"])
    assert "Add y_test_u" in message_of(npz(tmp_path, **own, **targets, x_test_a=1, x_test_b=1, y_test_v=1))
    assert "data.cache=auto" in message_of(npy(tmp_path, **own, **targets), cache="none")
    assert "30 inputs but 29" in message_of(npz(tmp_path, **own, y_train_u=targets["y_train_u"][:29]))


def test_predictions_prepare_arrays_like_training(tmp_path):
    for shape, options in (((6, 6), {}), ((3, 6, 6), {"channels": "first"}), ((7,), {"scale": "none"})):
        inputs = np.random.default_rng(3).integers(0, 256, (60, *shape), np.uint8)
        data = arrays(path=npz(tmp_path, x_train=inputs, y_train=np.arange(60) % 3), **options)
        held = data.train.source.gather(tf.range(60, dtype=tf.int64))["inputs"]
        np.testing.assert_array_equal(data.preparation.of_arrays(inputs), held)
