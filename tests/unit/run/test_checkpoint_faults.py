"""Damage on the disk and disks that refuse: the newest sound checkpoint is found, and training is never stopped."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.support.killed_saves import is_whole, look, save, tensors
from trainer.errors import UserError
from trainer.run.checkpoint import CheckpointStore
from trainer.run.checkpoint_disk import DamagedError
from trainer.run.checkpoint_manifest import read_manifest

FILES = ("tensors.npz", "state.json", "manifest.json")


@pytest.fixture
def directory(tmp_path) -> Path:
    """Return checkpoints of the steps 1 (the best), 2 and 3."""
    for step in (1, 2, 3):
        save(tmp_path, step)
    return tmp_path


def flip(path: Path, place: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "flipped bit": lambda path: flip(path, path.stat().st_size // 2),
    "flipped first bit": lambda path: flip(path, 0),
    "flipped last bit": lambda path: flip(path, path.stat().st_size - 1),
    "truncated": truncate,
    "empty": lambda path: os.truncate(path, 0),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "missing": lambda path: path.unlink(),
    "garbage": lambda path: path.write_bytes(b"\xff" * 100),
    "directory": lambda path: (path.unlink(), path.mkdir()),
    "nested": lambda path: path.write_text("[" * 100_000),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_past_a_damaged_checkpoint_to_the_one_before(directory: Path, file: str, damage) -> None:
    damage(directory / "step_00000003" / file)
    store = CheckpointStore(directory)
    with pytest.raises(UserError, match=f"step_00000003/{file}"):
        store.load("last")
    assert store.problems() == []
    found = store.newest()
    assert found.step == 2
    assert is_whole(found)
    (problem,) = store.problems()
    assert f"step_00000003/{file}" in problem
    assert problem.endswith("It is set aside as damaged_step_00000003.")
    assert store.tags() == {"best": "step_00000001", "last": "step_00000002"}
    assert look(directory)["problems"] == []  # the index names what is there again
    assert save(directory, 3) == []
    assert sorted(path.name for path in directory.iterdir()) == [
        "damaged_step_00000003", "index.json", "step_00000001", "step_00000002", "step_00000003",
    ]  # fmt: skip
    assert look(directory)["step"] == 3


def test_no_flipped_bit_of_a_manifest_goes_unnoticed_or_changes_anything(directory: Path) -> None:
    path = directory / "step_00000003" / "manifest.json"
    size, sound = path.stat().st_size, read_manifest(path.parent)
    refused = 0
    for place in range(0, size, 2):
        flip(path, place, bit=place % 8)
        try:
            assert read_manifest(path.parent) == sound
        except DamagedError:
            refused += 1
        flip(path, place, bit=place % 8)
    assert refused > 0.45 * size


def test_several_damaged_ones_are_all_set_aside_and_the_oldest_sound_one_is_found(directory: Path) -> None:
    truncate(directory / "step_00000003" / "tensors.npz")
    (directory / "step_00000002" / "manifest.json").unlink()
    found = look(directory)
    assert (found["step"], found["tags"]) == (1, {"best": "step_00000001", "last": "step_00000001"})
    assert len(found["problems"]) == 2


def test_where_nothing_is_sound_training_does_not_start_over_unasked(directory: Path) -> None:
    for step in (1, 2, 3):
        truncate(directory / f"step_{step:08d}" / "tensors.npz")
    for _ in range(2):  # also when all have been set aside
        with pytest.raises(UserError, match=r"No checkpoint in .* is sound: .* damaged or gone\. Expected one"):
            CheckpointStore(directory).newest()
    assert len(list(directory.glob("damaged_*"))) == 3


def test_all_checkpoints_gone_but_the_index_is_not_a_new_run(directory: Path) -> None:
    for step in (1, 2, 3):
        shutil.rmtree(directory / f"step_{step:08d}")
    store = CheckpointStore(directory)
    with pytest.raises(UserError, match="damaged or gone"):
        store.newest()
    (problem,) = store.problems()
    assert "names step_00000001, step_00000002, step_00000003, which is not there" in problem


def test_a_pointer_to_nothing_is_told_and_the_others_are_found(directory: Path) -> None:
    shutil.rmtree(directory / "step_00000003")
    found = look(directory)
    assert (found["step"], found["tags"]) == (2, {"best": "step_00000001", "last": "step_00000002"})
    (problem,) = found["problems"]
    assert problem.endswith("index.json names step_00000003, which is not there.")
    assert look(directory)["problems"] == []


@pytest.mark.parametrize(
    "index", ["", "{", "[]", '{"tags": {"best": "../step_00000001"}, "kept": [], "number": 3}', '{"tags": {}}', "\0"]
)
def test_a_damaged_index_is_told_and_made_anew_from_the_manifests(directory: Path, index: str) -> None:
    (directory / "index.json").write_text(index)
    store = CheckpointStore(directory)
    assert store.tags() == {"best": "step_00000001", "last": "step_00000003"}
    (problem,) = store.problems()
    assert "index.json is damaged" in problem
    assert store.tags() == {"best": "step_00000001", "last": "step_00000003"}
    assert store.problems() == []  # told once
    assert store.newest().step == 3
    assert look(directory)["problems"] == []


def test_a_missing_index_is_made_anew(directory: Path) -> None:
    (directory / "index.json").unlink()
    assert look(directory)["tags"] == {"best": "step_00000001", "last": "step_00000003"}
    assert json.loads((directory / "index.json").read_text())["tags"] == CheckpointStore(directory).tags()


def test_a_run_goes_on_numbering_after_its_newest_was_set_aside(directory: Path) -> None:
    (directory / "step_00000003" / "manifest.json").unlink()
    CheckpointStore(directory).newest()
    save(directory, 4)
    assert look(directory)["tags"] == {"best": "step_00000004", "last": "step_00000004"}


def test_an_older_format_is_refused_and_left_alone(tmp_path) -> None:
    checkpoint = tmp_path / "step_00000007"
    checkpoint.mkdir()
    (checkpoint / "manifest.json").write_text(json.dumps({"format": 1, "step": 7, "sha256": "0", "dtypes": {}}))
    (tmp_path / "index.json").write_text('{"last": "step_00000007"}')
    store = CheckpointStore(tmp_path)
    for call in (store.newest, store.tags, lambda: store.load("last")):
        with pytest.raises(UserError, match="step_00000007 is in format 1. Expected format 3: use the version"):
            call()
    assert checkpoint.exists()


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file grow above a size, in bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_told_once_a_save_and_takes_nothing(directory: Path) -> None:
    before = sorted(directory.rglob("*"))
    store = CheckpointStore(directory)
    with largest_file(1000):
        for step in (4, 5):
            store.save({"last", "best"}, step, tensors(step), {})
            store.wait()
    problems = store.problems()
    assert [problem.partition(": ")[0] for problem in problems] == [
        f"The checkpoint of step {step} could not be written" for step in (4, 5)
    ]
    assert all(problem.endswith("File too large. Earlier ones stay.") for problem in problems)
    assert sorted(directory.rglob("*")) == before
    assert look(directory)["step"] == 3
    store.save({"last"}, 6, tensors(6), {"run": {"step": 6}})
    assert store.newest().step == 6
    assert store.problems() == []


def test_a_read_only_directory_is_told_and_can_still_be_read(directory: Path, monkeypatch) -> None:
    truncate(directory / "step_00000003" / "state.json")

    def refuse(*arguments, **keywords):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "replace", refuse)
    monkeypatch.setattr(Path, "mkdir", refuse)
    store = CheckpointStore(directory)
    assert store.newest().step == 2
    store.save({"last"}, 4, tensors(4), {})
    store.wait()
    problems = store.problems()
    assert problems[0].endswith("It could not be set aside: Read-only file system.")
    assert problems[-1] == "The checkpoint of step 4 could not be written: Read-only file system. Earlier ones stay."
    assert (directory / "step_00000003").exists()
    assert store.newest().step == 2


def test_a_disk_that_refuses_at_any_operation_stops_nothing(directory: Path, tmp_path_factory, monkeypatch) -> None:
    root, countdown, told = tmp_path_factory.mktemp("refusing"), [0], []

    def refusing(function):
        def call(*arguments, **keywords):
            countdown[0] -= 1
            if countdown[0] == 0:
                raise OSError(28, "No space left on device")
            return function(*arguments, **keywords)

        return call

    for number in range(1, 60):
        here = root / str(number)
        shutil.copytree(directory, here)
        store = CheckpointStore(here)
        with monkeypatch.context() as patch:
            for module, name in ((os, "replace"), (os, "fsync"), (os, "mkdir"), (os, "open")):
                patch.setattr(module, name, refusing(getattr(module, name)))
            countdown[0] = number
            store.save({"last"}, 4, tensors(4), {"run": {"step": 4}})
            store.wait()
            over = countdown[0] > 0
        problems = store.problems()
        told.append(bool(problems))
        found = look(here)
        assert found["whole"] and found["tagged are whole"] and found["problems"] == []  # noqa: PT018
        assert found["step"] == 4 or "step 4 could not be written: No space left on device. Earlier" in problems[0]
        store.save({"last"}, 5, tensors(5), {"run": {"step": 5}})
        store.wait()
        assert store.problems() == []
        assert not list(here.glob(".*"))
        assert look(here)["step"] == 5
        if over:
            break
    assert sum(told) > 10
    assert not told[-1]


def test_what_raises_in_the_background_is_told(directory: Path, monkeypatch) -> None:
    def broken(*arguments, **keywords):
        raise MemoryError("no memory")

    monkeypatch.setattr(np.lib.format, "write_array", broken)
    assert save(directory, 4) == ["The checkpoint of step 4 could not be written: no memory. Earlier ones stay."]
