"""Checkpoints: complete or absent, keyed by name, verified on load, and kept as long as requested."""

import hashlib
import json
import threading

import ml_dtypes
import numpy as np
import pytest

from hookline.trainer.run.checkpoint import CheckpointStore
from hookline.trainer.run.checkpoint_files import checkpoint_names, leftovers, set_aside, step_of
from tests.support.workers import run_python


def tensors(value):
    return {
        "network/model/dense/kernel": np.full((2, 3), value, np.float32),
        "network/model/half": np.full((2,), value, ml_dtypes.bfloat16),
        "network/model/empty": np.zeros((0, 3), np.float16),
        "optimizer/model/iterations": np.array(7, np.int64),
        "hook/mask": np.array([True, False]),
        "file": np.array([1 + 2j], np.complex64),
    }


def save(store, tags, step):
    """Save, and return once it is written."""
    store.save(tags, step, tensors(step), {"run": {"step": step}})
    store.wait()


def names(store):
    return sorted(path.name.removeprefix("step_0000000") for path in store.directory.glob("[!i]*"))


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "checkpoints")


def test_checkpoint_round_trips_tensors_dtypes_state_and_environment(tmp_path):
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
    directory = store.directory / "step_00000007"
    manifest = json.loads((directory / "manifest.json").read_text())
    assert (manifest["format"], manifest["step"], manifest["tags"]) == (3, 7, ["last"])
    assert manifest["tensors"]["network/model/half"] == {"dtype": "bfloat16", "shape": [2]}
    assert {path.name for path in directory.iterdir()} - {"manifest.json"} == manifest["files"].keys()
    for name, expected in manifest["files"].items():
        content = (directory / name).read_bytes()
        assert expected == {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    with np.load(directory / "tensors.npz", allow_pickle=False) as file:
        np.testing.assert_array_equal(file["hook/mask"], [True, False])


def test_newest_last_and_best_checkpoints_are_kept(store):
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
    again.keep_last = 3
    for step in (7, 8):
        save(again, {"last"}, step)
    written = (index := store.directory / "index.json").read_text()
    index.unlink()  # as if the last writer had been killed before writing it
    store.sweep()  # which does not know how many to keep
    assert index.read_text() == written


def test_step_saved_again_becomes_the_last_and_the_best_is_kept(store):
    save(store, {"last"}, 1)
    save(store, {"last", "best"}, 2)
    store.save({"last"}, 2, tensors(2.5), {"run": {"again": True}})
    assert store.tags() == {"best": "step_00000002", "last": "step_00000002_2"}
    assert store.newest().state == {"run": {"again": True}}
    assert store.load("best").state == {"run": {"step": 2}}
    assert names(store) == ["1", "2", "2_2"]
    save(store, {"best"}, 3)
    assert names(store) == ["1", "2_2", "3"]


def test_newest_checkpoint_is_the_one_written_last(store):
    assert store.newest() is None
    save(store, {"last"}, 300)
    save(store, {"best"}, 400)
    assert store.newest().step == 400
    save(store, {"last"}, 1)  # training went back
    assert store.newest().step == CheckpointStore(store.directory).newest().step == 1


def test_unreadable_tensors_and_state_are_not_written(store):
    save(store, {"last"}, 1)
    store.save({"last"}, 2, {"names": np.array(["a", None], object)}, {})
    store.wait()
    with pytest.raises(TypeError, match="not JSON serializable"):
        store.save({"last"}, 3, tensors(1.0), {"hooks": {"a": object()}})
    (problem,) = store.problems()
    assert "Unknown dtype of 'names' 'object'" in problem
    assert names(store) == ["1"]


LEFT = [".index.json.17.tmp", ".step_00000100.tmp", ".step_00000100_2.gone"]
CHECKPOINTS = {"step_00000100", "step_00000100_2", "step_1234567890"}
STRANGERS = ["step_100", "step_0000010a", "xstep_00000100", "step_00000100_", "step_00000100.tmp"]
MINE = [".step_00000100", ".index.json", ".step_00000100.tmp.bak", ".indexxjson.tmp"]


def test_names_are_recognized_and_only_leftovers_are_swept(store):
    store.sweep()
    assert not store.directory.exists()
    assert {step_of(name) for name in [*STRANGERS, ""]} == {-1}
    for name in [*CHECKPOINTS, *STRANGERS, "damaged_step_00000100", "damaged_step_00000007", *LEFT[1:]]:
        (store.directory / name).mkdir(parents=True)
        (store.directory / name / "tensors.npz").write_bytes(b"x")
    for name in [LEFT[0], *MINE, "step_00000300", "notdamaged_"]:  # a file is not a checkpoint
        (store.directory / name).write_bytes(b"x")
    assert checkpoint_names(store.directory) == CHECKPOINTS
    assert [path.name for path in set_aside(store.directory)] == ["damaged_step_00000007", "damaged_step_00000100"]
    assert [path.name for path in leftovers(store.directory)] == LEFT
    before = {path.name for path in store.directory.iterdir()}
    store.sweep()
    assert {path.name for path in store.directory.iterdir()} == before - set(LEFT)


SECONDS = 10.0


class Disk:
    def __init__(self):
        self.written = []
        self.full = False
        self.begun, self.gate = threading.Semaphore(0), threading.Semaphore(0)

    def write(self, snapshot):
        self.begun.release()
        assert self.gate.acquire(timeout=SECONDS)
        if self.full:
            return False
        self.written.append((snapshot.step, set(snapshot.tags)))
        return True

    def open(self):
        self.gate.release(100)


def test_save_waits_for_the_previous_one_but_not_for_the_disk(store):
    disk = Disk()
    store._write = disk.write
    store.save({"best"}, 1, {}, {})
    assert disk.begun.acquire(timeout=SECONDS)
    assert disk.written == []  # saving does not wait for the disk
    later = threading.Thread(target=store.save, args=[{"last"}, 2, {}, {}])
    later.start()
    later.join(0.05)
    assert later.is_alive()
    disk.open()
    later.join(SECONDS)
    store.wait()
    assert disk.written == [(1, {"best"}), (2, {"last"})]


def test_failed_writes_are_kept_and_written_before_the_next_save(store):
    disk = Disk()
    store._write = disk.write
    before = threading.active_count()
    disk.open()
    disk.full = True
    for step, tags in ((1, {"best", "last"}), (2, {"last"}), (3, {"best"}), (4, {"last"})):
        store.save(tags, step, {}, {})
        store.wait()
    assert store.unsaved() == {"best": 3, "last": 4}
    store.finish()
    assert (disk.written, len(store.unsaved())) == ([], 2)
    disk.full = False
    store.save({"last"}, 5, {}, {})
    store.wait()
    assert disk.written == [(3, {"best"}), (5, {"last"})]
    assert store.unsaved() == {}
    assert threading.active_count() == before


def test_process_exit_waits_for_pending_writes(tmp_path):
    source = f"""
import pathlib, numpy
from hookline.trainer.run.checkpoint import CheckpointStore
store = CheckpointStore(pathlib.Path({str(tmp_path)!r}))
store.save({{"last"}}, 1, {{"a": numpy.zeros(1_000_000)}}, {{}})
raise SystemExit(3)
"""
    run_python("-c", source, code=3)
    assert (tmp_path / "index.json").exists()
