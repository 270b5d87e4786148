"""A user's own arrays: npz, folders and pairs of npy files, in memory and read row by row."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import yaml

from recipes.data import machine_memory
from recipes.data.arrays import arrays
from recipes.data.host_rows import HostRows
from tests.support.batches import assert_same_bits, eager_batches
from trainer.errors import UserError
from trainer.input.batches import EvaluationBatches, TrainingBatches
from trainer.input.source import ArraySource

CONFIG = Path(__file__).parents[3] / "configs" / "data" / "arrays.yaml"


def columns(size=60):
    generator = np.random.default_rng(0)
    return {
        "inputs": generator.integers(0, 256, (size, 4, 4), np.uint8),
        "targets": (np.arange(size) % 3).astype(np.uint8),
    }


def parts(*names, size=60):
    found = {}
    for name in names:
        for key, array in columns(size).items():
            found[f"{'x' if key == 'inputs' else 'y'}_{name}"] = array
    return found


def npz(folder, **arrays_):
    np.savez(folder / "own.npz", **arrays_)
    return str(folder / "own.npz")


def npy(folder, **arrays_):
    (folder / "own").mkdir(exist_ok=True)
    for name, array in arrays_.items():
        np.save(folder / "own" / f"{name}.npy", array)
    return str(folder / "own")


def whole(split):
    batch = EvaluationBatches(split, batch_size=split.size).batch(tf.constant(0, tf.int64))
    return {name: tensor.numpy() for name, tensor in batch.items()}


def message_of(path, **options):
    with pytest.raises(UserError) as caught:
        arrays(path=path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("write", [npz, npy])
def test_inputs_and_targets_are_split_with_a_share_of_every_class(tmp_path, write):
    data = arrays(path=write(tmp_path, **columns()), validation=0.1, test=15)
    assert [data.train.size, data.validation.size, data.test.size] == [39, 6, 15]
    assert data.train.source is data.validation.source is data.test.source
    assert (data.name, data.input_shape, data.classes) == ("own", (4, 4, 1), 3)
    np.testing.assert_array_equal(np.bincount(whole(data.test)["targets"]), [5, 5, 5])
    found = whole(data.train)
    np.testing.assert_allclose(found["inputs"][..., 0], columns()["inputs"][found["index"]] / 127.5 - 1, atol=1e-6)
    assert found["targets"].dtype == np.int64


@pytest.mark.parametrize("cache", ["memory", "none"])
@pytest.mark.parametrize("alias", ["validation", "val", "valid"])
def test_parts_that_there_are_stay_what_they_are(tmp_path, alias, cache):
    data = arrays(path=npy(tmp_path, **parts("train", alias), **parts("test", size=9)), cache=cache)
    assert [data.train.size, data.validation.size, data.test.size] == [60, 60, 9]
    assert len({id(split.source) for split in (data.train, data.validation, data.test)}) == 3
    data = arrays(path=npz(tmp_path, **parts("train"), **parts("test", size=9)))
    assert [data.train.size, data.validation.size, data.test.size] == [54, 6, 9]


def test_a_pair_of_files_needs_no_folder(tmp_path):
    folder = Path(npy(tmp_path, pixels=columns()["inputs"], classes=columns()["targets"]))
    data = arrays(path=str(folder / "pixels.npy"), targets=str(folder / "classes.npy"))
    assert (data.name, data.train.size) == ("pixels", 42)
    assert "Set data.targets=" in message_of(str(folder / "pixels.npy"))
    assert "does not exist" in message_of(str(folder / "pixels.npy"), targets=str(folder / "clases.npy"))
    assert "which has its own labels" in message_of(str(folder), targets=str(folder / "classes.npy"))


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64", ">i4"])
def test_rows_read_from_the_file_are_those_in_memory_bit_for_bit(tmp_path, dtype):
    path = npy(tmp_path, **{**columns(), "inputs": columns()["inputs"].astype(dtype)})
    held, read = (arrays(path=path, cache=cache) for cache in ("memory", "none"))
    assert isinstance(held.train.source, ArraySource)
    assert isinstance(read.train.source, HostRows)
    for split in ("train", "validation", "test"):
        np.testing.assert_array_equal(getattr(held, split).indices, getattr(read, split).indices)
    batches = [TrainingBatches(data.train, batch_size=8, seed=1, placement="host") for data in (held, read)]
    assert_same_bits(*(eager_batches(each, 0, 12) for each in batches))
    assert read.train.source.bytes == 60 * (16 * np.dtype(dtype).itemsize + 8)


def test_large_inputs_stay_in_their_files_unless_told_otherwise(tmp_path, monkeypatch):
    path = npy(tmp_path, **columns())
    assert isinstance(arrays(path=path).train.source, ArraySource)
    monkeypatch.setattr(machine_memory, "AUTO_BYTES", 60 * 16 - 1)
    assert isinstance(arrays(path=path).train.source, HostRows)
    assert isinstance(arrays(path=path, cache="memory").train.source, ArraySource)
    assert isinstance(arrays(path=npz(tmp_path, **columns())).train.source, ArraySource)
    monkeypatch.setattr(machine_memory, "SHARE", 1e-12)
    assert "expected at most half. Set data.cache=none." in message_of(path, cache="memory")
    assert "Write its arrays as npy files into a folder" in message_of(npz(tmp_path, **columns()))


def test_opening_reads_labels_but_no_inputs_and_holds_none(tmp_path):
    folder = Path(npy(tmp_path, targets=np.arange(1 << 16) % 7))
    with (folder / "inputs.npy").open("wb") as file:
        shape = (1 << 16, 1 << 22)
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        file.truncate(file.tell() + (1 << 38))  # 256 GiB of holes
    data = arrays(path=str(folder), split="random")
    assert data.train.source.bytes > 1 << 38
    batch = TrainingBatches(data.train, batch_size=2, seed=0).batch(tf.constant(3, tf.int64))
    np.testing.assert_array_equal(batch["inputs"], -1)
    np.testing.assert_array_equal(batch["targets"], batch["index"].numpy() % 7)


def test_a_bad_row_of_a_file_is_named_when_it_is_read(tmp_path):
    inputs = columns()["inputs"].astype(np.float32)
    inputs[17, 0, 0] = np.nan
    path = npy(tmp_path, **{**columns(), "inputs": inputs})
    assert "1 values are NaN or infinite, the first in row 17" in message_of(path)
    source = arrays(path=path, cache="none").train.source
    source.gather(tf.constant([16, 18], tf.int64))
    with pytest.raises(UserError, match="inputs.npy', row 17: NaN or infinite"):
        source.gather(tf.constant([16, 17], tf.int64))


def test_groups_stay_together_and_keys_decide_for_ever(tmp_path):
    people, names = np.arange(60) // 5, np.array([f"photo {row}" for row in range(60)])
    path = npy(tmp_path, **columns(), person=people)
    data = arrays(path=path, split="group", groups="person", validation=0.2)
    held = [set(people[split.indices]) for split in (data.train, data.validation, data.test)]
    assert not held[0] & held[1] | held[0] & held[2] | held[1] & held[2]
    beside = (Path(path) / "person.npy").rename(tmp_path / "beside.npy")
    np.save(Path(path) / "name.npy", names)
    before = arrays(path=path, split="hash", keys="name")
    order = np.random.default_rng(1).permutation(60)
    np.save(Path(path) / "name.npy", names[order])
    after = arrays(path=path, split="hash", keys="name")
    for split in ("train", "validation", "test"):
        assert set(names[getattr(before, split).indices]) == set(names[order][getattr(after, split).indices])
    (Path(path) / "name.npy").unlink()
    assert arrays(path=path, split="group", groups=str(beside), validation=0.2).train.size == data.train.size


def test_classes_are_counted_or_given_and_may_have_names(tmp_path):
    path = npz(tmp_path, **columns())
    assert arrays(path=path, class_names=["ant", "bee", "cat"]).class_names == ("ant", "bee", "cat")
    with pytest.warns(UserWarning, match="2 of 5 classes have no training example, the first is 3"):
        assert arrays(path=path, classes=5).classes == 5
    with pytest.warns(UserWarning, match="1 of 4 classes have no training example, the first is 0"):
        arrays(path=npz(tmp_path, **{**columns(), "targets": columns()["targets"] + 1}))
    assert arrays(path=npz(tmp_path, **{**columns(), "targets": columns()["targets"][:, None]})).classes == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"targets": np.arange(60) % 3 - 1},
            "targets: 20 labels lie outside 0..2147483647, the first is -1",
        ),
        ({"targets": np.arange(60) * 1000}, "a label is 59000, and there are 60 examples"),
        ({"targets": np.zeros(60, np.int64)}, "all labels are 0"),
        ({"targets": np.zeros(60)}, "labels of dtype float64"),
        ({"targets": np.eye(60, dtype=np.int64)}, "Give class numbers, not one-hot rows"),
        ({"targets": np.zeros(59, np.int64)}, "all labels are 0"),
        ({"targets": np.arange(59) % 3}, "60 inputs but 59 labels"),
        ({"inputs": np.zeros([60, 3, 32, 32], np.uint8)}, "look like [channels, height, width]"),
        ({"inputs": np.zeros(60)}, "inputs of shape []"),
        ({"inputs": np.full([60, 2], "a")}, "inputs of dtype <U1"),
        ({"targets": None}, "expected x_train and y_train"),
        ({"inputs": np.zeros([0, 2]), "targets": np.zeros(0, np.int64)}, "no examples"),
    ],
)
def test_bad_arrays_are_refused(tmp_path, changes, message):
    given = {key: value for key, value in {**columns(), **changes}.items() if value is not None}
    assert message in message_of(npz(tmp_path, **given))


def test_parts_must_fit_one_another(tmp_path):
    path = npz(tmp_path, **{**parts("train", "test"), "x_test": np.zeros([60, 5, 4], np.uint8)})
    assert "own.npz, x_test: inputs of shape [5, 4]; expected [4, 4]" in message_of(path)
    path = npz(tmp_path, **{**parts("train", "test"), "x_test": np.zeros([60, 4, 4], np.float32)})
    assert "inputs of dtype float32 beside uint8 to train on" in message_of(path)
    path = npz(tmp_path, **{**parts("train", "test"), "y_test": np.arange(60) % 9})
    with pytest.warns(UserWarning, match="6 of 9 classes have no training example"):
        arrays(path=path)
    assert "own.npz, y_test: 6 labels lie outside 0..7, the first is 8 in row 8" in message_of(path, classes=8)
    assert "holds x_val and x_valid; expected one of" in message_of(npz(tmp_path, **parts("train", "val", "valid")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache": "disk"}, "Unknown data.cache 'disk'"),
        ({"cache": "none"}, "an npz, of which no single rows can be read"),
        ({"split": "stratifed"}, "Unknown data.split 'stratifed'. Did you mean 'stratified'"),
        ({"split": "group"}, "data.split=group needs groups; set data.groups to the array"),
        ({"split": "hash"}, "data.split=hash needs keys; set data.keys"),
        ({"groups": "person"}, "data.groups=person received with data.split=stratified.*expected data.split=group"),
        ({"split": "group", "keys": "person"}, "data.keys=person received with data.split=group"),
        ({"split": "group", "groups": "preson"}, "data.groups=preson names no array of .* inputs, targets"),
        ({"classes": 1}, "data.classes=1; expected 2 or more"),
        ({"classes": 2}, "labels lie outside 0..1"),
        ({"class_names": ["ant"]}, "1 class names"),
        ({"validation": 1.5}, "validation fraction 1.5"),
        ({"validation": 60}, "to leave some to train on"),
    ],
)
def test_options_out_of_range_are_refused(tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        arrays(path=npz(tmp_path, **columns()), **options)


def test_a_path_that_leads_nowhere_is_named(tmp_path):
    assert "data.path is empty" in message_of(" ")
    assert "absent.npz' does not exist" in message_of(str(tmp_path / "absent.npz"))
    assert "holds no npy file; expected x_train.npy" in message_of(str(tmp_path))
    (tmp_path / "text.npz").write_text("hello")
    assert "text.npz' is no npz file" in message_of(str(tmp_path / "text.npz"))
    assert "holds other; expected x_train and y_train" in message_of(npz(tmp_path, other=np.zeros(3)))


def test_the_config_lists_every_argument_with_its_default():
    config = yaml.safe_load(CONFIG.read_text())
    assert config.pop("_target_") == "recipes.data.arrays.arrays"
    assert config.pop("path") == "???"
    defaults = {name: each.default for name, each in inspect.signature(arrays).parameters.items() if name != "path"}
    assert config == defaults
    assert CONFIG.read_text().startswith("# ")


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


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(59), r"float64 of shape \[59\]; expected a number for each of 60 examples"),
        (np.full(60, "1"), "<U1 of shape"),
        (np.where(np.arange(60) == 7, -1.0, 1.0), "1 weights are negative or not finite, the first is -1.0 in row 7"),
        (np.full(60, np.nan), "60 weights are negative or not finite"),
        (np.zeros(60), "all weights are 0"),
        ((np.arange(60) == 0) * 1.0, "all weights of the split (validation|test) are 0"),
    ],
)
def test_weights_that_are_none_are_refused(tmp_path, weights, message):
    found = message_of(npz(tmp_path, **parts("train"), sample_weight_train=weights))
    assert re.search(r"own.npz, sample_weight_train: .*" + message, found)


def test_arrays_that_nothing_reads_are_named_in_one_line(tmp_path):
    path = npz(tmp_path, **parts("train"), sample_weights_train=np.ones(60), who=np.arange(60), about=1)
    with pytest.warns(UserWarning, match="nothing reads") as caught:
        arrays(path=path, split="group", groups="who")
    assert [str(each.message) for each in caught] == [
        f"'{path}' holds arrays that nothing reads: about, sample_weights_train. Did you mean 'sample_weight_train'?"
    ]
