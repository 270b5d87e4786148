"""Damage on the disk and disks that refuse: the newest sound checkpoint is found, and training is never stopped."""

import itertools
import json
import os
import shutil
from pathlib import Path

import pytest

from hookline.trainer.run.checkpoint import CheckpointStore
from hookline.trainer.run.checkpoint_files import DamagedError, read_manifest
from tests.support.killed_saves import is_whole, look, save, tensors
from tests.support.refusals import assert_refused
from tests.support.workers import run_python

ONE, TWO, THREE = (f"step_{step:08d}" for step in (1, 2, 3))


@pytest.fixture
def directory(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step)
    return tmp_path


def flip(path, place, bit=0):
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


DAMAGES = {
    "tensors.npz, a flipped bit": lambda path: flip(path, path.stat().st_size // 2),
    "tensors.npz, truncated": truncate,
    "tensors.npz, longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "state.json, a flipped bit": lambda path: flip(path, path.stat().st_size // 2),
    "state.json, missing": lambda path: path.unlink(),
    "manifest.json, missing": lambda path: path.unlink(),
    "manifest.json, a directory": lambda path: (path.unlink(), path.mkdir()),
    "manifest.json, nested": lambda path: path.write_text("[" * 100_000),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_past_a_damaged_checkpoint_to_the_one_before(directory, kind):
    file = kind.partition(",")[0]
    DAMAGES[kind](directory / THREE / file)
    store = CheckpointStore(directory)
    if file == "manifest.json":  # nothing else says that it was the last one
        assert store.load("last").step == 2
        assert f"{THREE}/{file}" in store.problems()[0]
    else:
        assert_refused(f"{THREE}/{file}", store.load, "last")
        assert store.problems() == []
    found = store.newest()
    assert (found.step, is_whole(found)) == (2, True)
    (problem,) = store.problems()
    assert f"{THREE}/{file}" in problem
    assert store.tags() == {"best": ONE, "last": TWO}
    assert look(directory)["problems"] == []
    assert save(directory, 3) == []
    names = sorted(path.name for path in directory.iterdir())
    assert names == [f"damaged_{THREE}", "index.json", ONE, TWO, THREE]
    assert look(directory)["step"] == 3


def test_no_flipped_bit_of_a_manifest_goes_unnoticed_or_changes_anything(directory):
    path = directory / THREE / "manifest.json"
    size, sound, refused = path.stat().st_size, read_manifest(path.parent), 0
    for place in range(0, size, 2):
        flip(path, place, bit=place % 8)
        try:
            assert read_manifest(path.parent) == sound
        except DamagedError:
            refused += 1
        flip(path, place, bit=place % 8)
    assert refused > 0.45 * size


def test_if_nothing_is_sound_training_does_not_silently_start_over(directory):
    gone = Path(shutil.copytree(directory, directory / "gone"))
    for step in (ONE, TWO, THREE):
        truncate(directory / step / "tensors.npz")
        shutil.rmtree(gone / step)
    for place in (directory, directory, gone):  # damaged, all set aside, and the index alone
        assert_refused(r"No checkpoint in .* is sound", CheckpointStore(place).newest)
    assert len(list(directory.glob("damaged_*"))) == 3


def test_an_older_format_is_refused_and_left_alone(tmp_path):
    checkpoint = tmp_path / "step_00000007"
    checkpoint.mkdir()
    (checkpoint / "manifest.json").write_text(json.dumps({"format": 1, "step": 7, "sha256": "0", "dtypes": {}}))
    (tmp_path / "index.json").write_text('{"last": "step_00000007"}')
    store = CheckpointStore(tmp_path)
    for call in (store.newest, store.tags, lambda: store.load("last")):
        assert_refused("step_00000007 is in format 1", call)
    assert checkpoint.exists()


def test_a_disk_that_refuses_at_any_operation_stops_nothing(directory, tmp_path_factory, monkeypatch):
    root, countdown, reported = tmp_path_factory.mktemp("refusing"), [0], []
    before = {path.relative_to(directory) for path in directory.rglob("*")}

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
        reported.append(bool(problems))
        found = look(here)
        assert (found["whole"], found["tagged are whole"], found["problems"]) == (True, True, [])
        if found["step"] != 4:
            assert "step 4 could not be written: No space left on device" in problems[0]
            assert {path.relative_to(here) for path in here.rglob("*")} == before
        store.save({"last"}, 5, tensors(5), {"run": {"step": 5}})
        store.wait()
        assert store.problems() == []
        assert not list(here.glob(".*"))
        assert look(here)["step"] == 5
        if over:
            break
    assert sum(reported) > 10
    assert not reported[-1]


def test_a_save_that_is_cut_off_anywhere_leaves_the_old_or_the_new(tmp_path):
    lines = [json.loads(line) for line in run_python("-m", "tests.support.killed_saves", tmp_path)[0].splitlines()]
    for before, power in itertools.product((0, 3), (False, True)):
        cuts = [each for each in lines if (each["before"], each["power"]) == (before, power)]
        assert [each["killed"] for each in cuts] == [True] * (len(cuts) - 1) + [False]
        assert len(cuts) > 20
        assert {each["step"] for each in cuts} == {before or None, before + 1}
        for each in cuts:
            check_cut(before, each)


def check_cut(before, each):
    new = each["step"] == before + 1
    assert (each["whole"], each["tagged are whole"], each["problems"]) == (True, True, [])
    best = "step_00000001" if before == 3 and not new else f"step_{before + 1:08d}"
    old = {"best": best, "last": f"step_{before:08d}"} if before else {}
    assert each["tags"] == ({"best": best, "last": f"step_{before + 1:08d}"} if new else old)
    then = each["then"]
    assert (then["problems"], then["step"], then["whole"], then["tagged are whole"]) == ([], before + 2, True, True)
    previous = {each["step"]} - {None}
    kept = {before + 2, *previous, *({1} if before == 3 and not new else set())}
    assert then["names"] == ["index.json", *(f"step_{step:08d}" for step in sorted(kept))]
