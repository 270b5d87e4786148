"""Checkpoints: whole or absent, keyed by name, checked when read."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from trainer.errors import UserError
from trainer.run.checkpoint import CheckpointStore


def tensors(value: float) -> dict[str, np.ndarray]:
    return {
        "network/model/dense/kernel": np.full((2, 3), value, np.float32),
        "network/model/half": np.full((2,), value, tf.bfloat16.as_numpy_dtype),
        "optimizer/model/iterations": np.array(7, np.int64),
        "hook/mask": np.array([True, False]),
    }


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "checkpoints")


def test_what_was_saved_comes_back_with_dtypes_and_host_state(store) -> None:
    store.save({"last"}, 7, tensors(1.5), {"early_stopping": {"best": 0.9}})
    loaded = store.load("last")
    assert loaded.step == 7
    assert loaded.host_state == {"early_stopping": {"best": 0.9}}
    for key, value in tensors(1.5).items():
        assert loaded.tensors[key].dtype == value.dtype
        np.testing.assert_array_equal(loaded.tensors[key], value)


def test_tags_move_and_what_no_tag_means_is_removed(store) -> None:
    store.save({"last", "best"}, 1, tensors(1.0), {})
    store.save({"last"}, 2, tensors(2.0), {})
    store.save({"last"}, 3, tensors(3.0), {})
    assert store.tags() == {"best": "step_00000001", "last": "step_00000003"}
    assert sorted(path.name for path in store.directory.iterdir()) == ["index.json", "step_00000001", "step_00000003"]
    assert store.load("best").tensors["network/model/half"][0] == 1.0


def test_one_step_is_written_once_for_two_tags(store) -> None:
    store.save({"last"}, 1, tensors(1.0), {})
    written = (store.directory / "step_00000001" / "tensors.npz").stat().st_mtime_ns
    store.save({"best"}, 1, tensors(1.0), {})
    assert (store.directory / "step_00000001" / "tensors.npz").stat().st_mtime_ns == written
    assert store.tags() == {"best": "step_00000001", "last": "step_00000001"}


def test_flipped_bit_is_noticed(store) -> None:
    store.save({"last"}, 1, tensors(1.0), {})
    path = store.directory / "step_00000001" / "tensors.npz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="is damaged: its sha256 is not the one in manifest.json"):
        store.load("last")


def test_missing_tag_and_missing_file_are_named(store) -> None:
    with pytest.raises(UserError, match="No checkpoint 'best' .* Expected one of: none"):
        store.load("best")
    store.save({"last"}, 1, tensors(1.0), {})
    (store.directory / "step_00000001" / "manifest.json").unlink()
    with pytest.raises(UserError, match="cannot be read"):
        store.load("last")


def test_failed_write_leaves_the_earlier_checkpoint(store, monkeypatch) -> None:
    store.save({"last"}, 1, tensors(1.0), {})

    def full(*arguments, **keywords):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numpy.savez", full)
    with pytest.raises(OSError, match="No space left"):
        store.save({"last"}, 2, tensors(2.0), {})
    assert store.tags() == {"last": "step_00000001"}
    assert store.load("last").step == 1


def test_manifest_is_readable_json_with_dtypes(store) -> None:
    store.save({"last"}, 1, tensors(1.0), {})
    manifest = json.loads((store.directory / "step_00000001" / "manifest.json").read_text())
    assert manifest["step"] == 1
    assert manifest["dtypes"]["network/model/half"] == "bfloat16"
