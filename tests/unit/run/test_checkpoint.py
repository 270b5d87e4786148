"""Checkpoints: whole or absent, keyed by name, checked when read, kept as long as they should be."""

from __future__ import annotations

import hashlib
import json

import ml_dtypes
import numpy as np
import pytest

from trainer.errors import UserError
from trainer.run.checkpoint import CheckpointStore


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
    return sorted(path.name for path in store.directory.iterdir())


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "checkpoints")


def test_what_was_saved_comes_back_with_dtypes_state_and_environment(tmp_path) -> None:
    store = CheckpointStore(tmp_path / "run" / "checkpoints", environment={"threads": 2, "flags": ("avx2", "fma")})
    store.save({"last"}, 7, tensors(1.5), {"run": {"best": 0.9}, "hooks": {"early_stopping": {"waited": 3}}})
    loaded = store.load("last")
    assert loaded.step == 7
    assert loaded.state == {"run": {"best": 0.9}, "hooks": {"early_stopping": {"waited": 3}}}
    assert loaded.environment == {"threads": 2, "flags": ["avx2", "fma"]}
    assert loaded.tensors.keys() == tensors(1.5).keys()
    for key, value in tensors(1.5).items():
        assert loaded.tensors[key].dtype == value.dtype
        assert loaded.tensors[key].shape == value.shape
        np.testing.assert_array_equal(loaded.tensors[key], value)
    assert store.problems() == []


def test_order_and_endianness_in_memory_do_not_matter(store) -> None:
    array = np.arange(6).reshape(2, 3)
    store.save({"last"}, 1, {"turned": np.asfortranarray(array), "big": array.astype(">i4"), "cut": array[:, 1:]}, {})
    loaded = store.load("last").tensors
    np.testing.assert_array_equal(loaded["turned"], array)
    np.testing.assert_array_equal(loaded["big"], array)
    np.testing.assert_array_equal(loaded["cut"], array[:, 1:])


def test_the_newest_of_the_last_and_the_best_stay(store) -> None:
    save(store, {"last", "best"}, 1)
    for step in (2, 3, 4):
        save(store, {"last"}, step)
    assert store.tags() == {"best": "step_00000001", "last": "step_00000004"}
    assert names(store) == ["index.json", "step_00000001", "step_00000003", "step_00000004"]
    assert store.load("best").tensors["network/model/half"][0] == 1.0
    save(store, {"best"}, 5)
    assert names(store) == ["index.json", "step_00000003", "step_00000004", "step_00000005"]


@pytest.mark.parametrize("keep_last", [1, 3])
def test_as_many_of_the_last_stay_as_asked_for(tmp_path, keep_last: int) -> None:
    store = CheckpointStore(tmp_path, keep_last=keep_last)
    for step in range(1, 6):
        save(store, {"last"}, step)
    assert names(store) == ["index.json", *(f"step_{step:08d}" for step in range(6 - keep_last, 6))]
    store.keep_last = 1
    save(store, {"last"}, 6)
    assert names(store) == ["index.json", "step_00000006"]


def test_a_step_that_is_saved_again_takes_the_place_of_the_earlier_one(store) -> None:
    save(store, {"last"}, 1)
    save(store, {"last", "best"}, 2)
    store.save({"last"}, 2, tensors(2.5), {"run": {"again": True}})
    assert store.tags() == {"best": "step_00000002", "last": "step_00000002_2"}
    assert store.newest().state == {"run": {"again": True}}
    assert store.load("best").state == {"run": {"step": 2}}
    assert names(store) == ["index.json", "step_00000001", "step_00000002", "step_00000002_2"]
    save(store, {"best"}, 3)
    assert names(store) == ["index.json", "step_00000001", "step_00000002_2", "step_00000003"]


def test_the_newest_is_the_one_that_was_written_last_whatever_its_tag_and_step(store) -> None:
    assert store.newest() is None
    save(store, {"last"}, 300)
    save(store, {"best"}, 400)
    assert store.newest().step == 400
    save(store, {"last"}, 200)  # training went back
    assert store.newest().step == 200
    assert CheckpointStore(store.directory).newest().step == 200


def test_another_process_finds_what_this_one_saved(store) -> None:
    save(store, {"last", "best"}, 1)
    save(store, {"last"}, 2)
    again = CheckpointStore(store.directory)
    assert again.tags() == store.tags()
    assert again.newest().step == 2
    save(again, {"last"}, 3)
    assert again.tags() == {"best": "step_00000001", "last": "step_00000003"}


def test_the_state_may_change_while_it_is_written(store) -> None:
    waited = [1]
    store.save({"last"}, 1, tensors(1.0), {"waited": waited})
    waited.append(2)
    assert store.load("last").state == {"waited": [1]}


def test_missing_tag_is_named(store) -> None:
    with pytest.raises(UserError, match="No checkpoint 'best' .* Expected one of: none"):
        store.load("best")
    assert store.tags() == {}
    save(store, {"last"}, 1)
    with pytest.raises(UserError, match="No checkpoint 'best' .* Expected one of: last"):
        store.load("best")


def test_manifest_is_readable_json_with_every_hash(store) -> None:
    save(store, {"last"}, 1)
    directory = store.directory / "step_00000001"
    manifest = json.loads((directory / "manifest.json").read_text())
    assert (manifest["format"], manifest["step"], manifest["tags"]) == (3, 1, ["last"])
    assert manifest["tensors"]["network/model/half"] == {"dtype": "bfloat16", "shape": [2]}
    others = {path.name for path in directory.iterdir()} - {"manifest.json"}
    assert others == manifest["files"].keys()
    for name, expected in manifest["files"].items():
        content = (directory / name).read_bytes()
        assert expected == {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}


def test_tensors_are_an_ordinary_npz_without_pickle(store) -> None:
    save(store, {"last"}, 3)
    with np.load(store.directory / "step_00000003" / "tensors.npz", allow_pickle=False) as file:
        np.testing.assert_array_equal(file["network/model/dense/kernel"], tensors(3)["network/model/dense/kernel"])


def test_objects_are_not_written(store) -> None:
    save(store, {"last"}, 1)
    store.save({"last"}, 2, {"names": np.array(["a", None], object)}, {})
    store.wait()
    (problem,) = store.problems()
    assert problem.startswith("The checkpoint of step 2 could not be written: 'names' has the dtype object.")
    assert names(store) == ["index.json", "step_00000001"]


def test_a_state_that_is_no_json_is_an_error_at_once(store) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        store.save({"last"}, 1, tensors(1.0), {"hooks": {"a": object()}})


def test_a_state_that_could_not_be_read_again_is_not_written(store, monkeypatch) -> None:
    monkeypatch.setattr("trainer.run.checkpoint_disk.MAX_JSON_BYTES", 100)
    store.save({"last"}, 1, {}, {"hooks": "x" * 100})
    (problem,) = store.problems()
    assert "step 1 could not be written: The state of the run and its hooks takes" in problem


def test_leftovers_of_killed_writers_go_and_nothing_else(store) -> None:
    store.sweep()
    assert not store.directory.exists()
    save(store, {"last"}, 1)
    for name in (".step_00000002.tmp", ".step_00000001_2.gone", "damaged_step_00000000", "mine", ".step_mine"):
        (store.directory / name / "inside").mkdir(parents=True)
    (store.directory / ".index.json.tmp").write_text("{")
    store.sweep()
    assert names(store) == [".step_mine", "damaged_step_00000000", "index.json", "mine", "step_00000001"]
    save(store, {"last"}, 2)
    assert {".step_mine", "damaged_step_00000000", "mine"} < set(names(store))
