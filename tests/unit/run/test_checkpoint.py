"""Checkpoints: whole or absent, keyed by name, checked when read, kept as long as they should be."""

from __future__ import annotations

import hashlib
import json

import ml_dtypes
import numpy as np
import pytest

from hookline.trainer.run.checkpoint import CheckpointStore


def tensors(value: float) -> dict[str, np.ndarray]:
    return {
        "network/model/dense/kernel": np.full((2, 3), value, np.float32),
        "network/model/half": np.full((2,), value, ml_dtypes.bfloat16),
        "network/model/empty": np.zeros((0, 3), np.float16),
        "optimizer/model/iterations": np.array(7, np.int64),
        "hook/mask": np.array([True, False]),
        "file": np.array([1 + 2j], np.complex64),
    }


def save(store: CheckpointStore, tags: set[str], step: int) -> None:
    """Save, and return when it is written: a later save would give way to it otherwise."""
    store.save(tags, step, tensors(step), {"run": {"step": step}})
    store.wait()


def names(store: CheckpointStore) -> list[str]:
    return sorted(path.name.removeprefix("step_0000000") for path in store.directory.glob("[!i]*"))


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "checkpoints")


def test_what_was_saved_comes_back_with_dtypes_state_and_environment(tmp_path) -> None:
    store = CheckpointStore(tmp_path / "run" / "checkpoints", environment={"threads": 2, "flags": ("avx2", "fma")})
    state = {"run": {"best": 0.9}, "hooks": {"early_stopping": {"waited": [3]}}}
    store.save({"last"}, 7, tensors(1.5), state)
    state["hooks"]["early_stopping"]["waited"].append(4)  # changes while it is written
    loaded = store.load("last")
    assert (loaded.step, loaded.environment) == (7, {"threads": 2, "flags": ["avx2", "fma"]})
    assert loaded.state == {"run": {"best": 0.9}, "hooks": {"early_stopping": {"waited": [3]}}}
    assert loaded.tensors.keys() == tensors(1.5).keys()
    for key, value in tensors(1.5).items():
        assert (loaded.tensors[key].dtype, loaded.tensors[key].shape) == (value.dtype, value.shape)
        np.testing.assert_array_equal(loaded.tensors[key], value)
    assert store.problems() == []


def test_the_newest_of_the_last_and_the_best_stay(store) -> None:
    save(store, {"last", "best"}, 1)
    for step in (2, 3, 4):
        save(store, {"last"}, step)
    again = CheckpointStore(store.directory)  # another process finds what this one saved
    assert again.tags() == store.tags() == {"best": "step_00000001", "last": "step_00000004"}
    assert names(store) == ["1", "3", "4"]
    assert store.load("best").tensors["network/model/half"][0] == 1.0
    save(again, {"best"}, 5)
    assert names(store) == ["3", "4", "5"]
    again.keep_last = 1
    save(again, {"last"}, 6)
    assert names(store) == ["5", "6"]


def test_a_step_that_is_saved_again_takes_the_place_of_the_earlier_one(store) -> None:
    save(store, {"last"}, 1)
    save(store, {"last", "best"}, 2)
    store.save({"last"}, 2, tensors(2.5), {"run": {"again": True}})
    assert store.tags() == {"best": "step_00000002", "last": "step_00000002_2"}
    assert store.newest().state == {"run": {"again": True}}
    assert store.load("best").state == {"run": {"step": 2}}
    assert names(store) == ["1", "2", "2_2"]
    save(store, {"best"}, 3)
    assert names(store) == ["1", "2_2", "3"]


def test_the_newest_is_the_one_that_was_written_last(store) -> None:
    assert store.newest() is None
    save(store, {"last"}, 300)
    save(store, {"best"}, 400)
    assert store.newest().step == 400
    save(store, {"last"}, 200)  # training went back
    assert store.newest().step == CheckpointStore(store.directory).newest().step == 200


def test_the_files_are_an_ordinary_npz_and_a_manifest_with_every_hash(store) -> None:
    save(store, {"last"}, 1)
    directory = store.directory / "step_00000001"
    manifest = json.loads((directory / "manifest.json").read_text())
    assert (manifest["format"], manifest["step"], manifest["tags"]) == (3, 1, ["last"])
    assert manifest["tensors"]["network/model/half"] == {"dtype": "bfloat16", "shape": [2]}
    assert {path.name for path in directory.iterdir()} - {"manifest.json"} == manifest["files"].keys()
    for name, expected in manifest["files"].items():
        content = (directory / name).read_bytes()
        assert expected == {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    with np.load(directory / "tensors.npz", allow_pickle=False) as file:
        np.testing.assert_array_equal(file["hook/mask"], [True, False])


def test_what_could_not_be_read_again_is_not_written(store, monkeypatch) -> None:
    save(store, {"last"}, 1)
    store.save({"last"}, 2, {"names": np.array(["a", None], object)}, {})
    store.wait()
    with pytest.raises(TypeError, match="not JSON serializable"):
        store.save({"last"}, 3, tensors(1.0), {"hooks": {"a": object()}})
    (problem,) = store.problems()
    assert "'names' has the dtype object" in problem
    assert names(store) == ["1"]
    monkeypatch.setattr("hookline.trainer.run.checkpoint_files.MAX_JSON_BYTES", 100)
    other = CheckpointStore(store.directory.parent / "other")
    other.save({"last"}, 1, {}, {"hooks": "x" * 100})
    (problem,) = other.problems()
    assert "The state of the run and its hooks takes" in problem


def test_leftovers_of_killed_writers_go_and_nothing_else(store) -> None:
    store.sweep()
    assert not store.directory.exists()
    save(store, {"last"}, 1)
    for name in (".step_00000002.tmp", ".step_00000001_2.gone", "damaged_step_00000000", "mine", ".step_mine"):
        (store.directory / name / "inside").mkdir(parents=True)
    (store.directory / ".index.json.tmp").write_text("{")
    store.sweep()
    left = {path.name for path in store.directory.iterdir()}
    assert left == {".step_mine", "damaged_step_00000000", "index.json", "mine", "step_00000001"}
    save(store, {"last"}, 2)
    assert left < {path.name for path in store.directory.iterdir()}
