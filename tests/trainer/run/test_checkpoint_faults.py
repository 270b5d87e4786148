"""Damaged checkpoints and failing disks: the newest sound checkpoint is found, and training is never stopped."""

import io
import itertools
import json
import os
import pickle
import shutil
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from hookline.trainer.errors import UserError
from hookline.trainer.run import checkpoint_files
from hookline.trainer.run.checkpoint import CheckpointStore
from hookline.trainer.run.checkpoint_files import DamagedError, read_manifest, write_manifest
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
def test_damaged_checkpoint_is_skipped_for_the_previous_one(directory, kind):
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


def test_flipped_bit_in_a_manifest_is_detected_or_harmless(directory):
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


def test_newest_is_an_error_if_no_checkpoint_is_sound(directory):
    gone = Path(shutil.copytree(directory, directory / "gone"))
    for step in (ONE, TWO, THREE):
        truncate(directory / step / "tensors.npz")
        shutil.rmtree(gone / step)
    for place in (directory, directory, gone):  # damaged, all set aside, and only the index
        assert_refused(r"No checkpoint in .* is sound", CheckpointStore(place).newest)
    assert len(list(directory.glob("damaged_*"))) == 3


def test_older_format_is_refused_and_left_untouched(tmp_path):
    checkpoint = tmp_path / "step_00000007"
    checkpoint.mkdir()
    (checkpoint / "manifest.json").write_text(json.dumps({"format": 1, "step": 7, "sha256": "0", "dtypes": {}}))
    (tmp_path / "index.json").write_text('{"last": "step_00000007"}')
    store = CheckpointStore(tmp_path)
    for call in (store.newest, store.tags, lambda: store.load("last")):
        assert_refused("step_00000007 is in format 1", call)
    assert checkpoint.exists()


def test_disk_failure_at_any_operation_leaves_sound_checkpoints(directory, tmp_path_factory, monkeypatch):
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


def test_save_killed_at_any_point_leaves_the_old_or_the_new_state(tmp_path):
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


# A malicious archive is refused in one line, before it takes memory, and none of it is executed.

RAN = []
MEMORY = 4 * 2**20


class Harm:
    def __reduce__(self):
        return RAN.append, ("harm",)


def npy(array, *, pickled=False):
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=(1, 0), allow_pickle=pickled)
    return file.getvalue()


def header(shape, descr="'<f4'", order="False"):
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode("latin1")


def archive(members, compression=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as made:
        for name, content in members.items():
            made.writestr(name, content)
    return file.getvalue()


def forged(directory, content, tensors, *, state=b"{}"):
    """Make a checkpoint with valid hashes, as a forger would, and return its store."""
    checkpoint = directory / "step_00000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "tensors.npz").write_bytes(content)
    (checkpoint / "state.json").write_bytes(state)
    manifest = {"step": 1, "number": 1, "tags": ["last"], "tensors": tensors, "environment": {}}
    write_manifest(checkpoint, manifest)
    return CheckpointStore(directory)


def spec(dtype="float32", shape=(2,)):
    return {"a": {"dtype": dtype, "shape": list(shape) if isinstance(shape, tuple) else shape}}


ZEROS = npy(np.zeros(2, np.float32))
BOMB = npy(np.zeros(2**24, np.float32))
PICKLED = npy(np.array([Harm()], object), pickled=True)
SPEC = spec()

FORGED = {
    "a packed bomb": (archive({"a.npy": BOMB}, zipfile.ZIP_DEFLATED), spec(shape=(2**24,)), "'a.npy' is compressed"),
    "a pickled object": (archive({"a.npy": PICKLED}), SPEC, "'a' is not float32"),
    "a pickle for an array": (archive({"a.npy": pickle.dumps(Harm())}), SPEC, "'a' is not float32"),
    "an object dtype": (archive({"a.npy": PICKLED}), spec("object", (1,)), "is damaged: 'object'"),
    "an absurd shape": (
        archive({"a.npy": header("(1000000000000,)")}),
        spec(shape=(10**12,)),
        r"'a' is not float32 of shape \[10000",
    ),
    "a shape beyond integers": (archive({"a.npy": ZEROS}), spec(shape=(2**62, 2**62)), "'a' is not"),
    "a shape of truths": (archive({"a.npy": ZEROS}), spec(shape=[True, 2]), r"of shape \[True, 2\]"),
    "a dtype that is code": (archive({"a.npy": ZEROS}), spec(dtype="__import__('os')"), "is damaged: .__import__"),
    "another dtype": (archive({"a.npy": ZEROS}), spec(dtype="int32"), "'a' is not int32"),
    "code in the header": (archive({"a.npy": header("(RAN.append(1),)") + bytes(8)}), SPEC, "'a' is not"),
    "a header that never ends": (archive({"a.npy": b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 70000}), SPEC, "'a' is not"),
    "an escape in the header": (archive({"a.npy": header("\x1b[2J") + bytes(8)}), SPEC, "'a' is not"),
    "too little": (archive({"a.npy": ZEROS[:-1]}), SPEC, "'a' is not"),
    "further arrays": (archive({"a.npy": ZEROS, "b.npy": ZEROS}), SPEC, "not those of its manifest"),
    "a name that leads out": (archive({"../../a.npy": ZEROS}), SPEC, "not those of its manifest"),
    "no archive": (b"no archive", SPEC, "File is not a zip file"),
    "a spec that is none": (archive({"a.npy": ZEROS}), {"a": 1}, "not subscriptable"),
}


def test_forged_archive_is_refused_before_it_takes_memory(tmp_path):
    sound = forged(tmp_path / "sound", archive({"a.npy": ZEROS}), SPEC).load("last")
    np.testing.assert_array_equal(sound.tensors["a"], np.zeros(2, np.float32))
    for number, (content, specs, message) in enumerate(FORGED.values()):
        store = forged(tmp_path / str(number), content, specs)
        tracemalloc.start()
        try:
            with pytest.raises(UserError, match=message) as caught:
                store.load("last")
            assert tracemalloc.get_traced_memory()[1] < MEMORY
        finally:
            tracemalloc.stop()
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 500 + len(str(tmp_path))
        assert RAN == []
        assert_refused("all that were written are damaged", store.newest)


def test_archive_entries_that_share_bytes_are_refused(tmp_path):
    """Several directory entries point to one member, so that the sum of their sizes exceeds the size of the file."""
    array = npy(np.zeros(1000, np.float32))
    one = archive({"a.npy": array})
    start = one.index(b"PK\x01\x02")
    entry = one[start : one.index(b"PK\x05\x06")]
    entries = b"".join(entry.replace(b"a.npy", f"{name}.npy".encode()) for name in "abcd")
    end = b"PK\x05\x06" + bytes(4) + (4).to_bytes(2, "little") * 2 + len(entries).to_bytes(4, "little")
    content = one[:start] + entries + end + start.to_bytes(4, "little") + bytes(2)
    specs = {name: {"dtype": "float32", "shape": [1000]} for name in "abcd"}
    assert_refused("its arrays claim more bytes than the file has", forged(tmp_path, content, specs).load, "last")


def test_wrong_checksum_inside_the_archive_is_detected(tmp_path):
    content = bytearray(archive({"a.npy": ZEROS}))
    content[content.index(b"\x93NUMPY") + len(ZEROS) - 1] ^= 1
    assert_refused("Bad CRC-32", forged(tmp_path, bytes(content), SPEC).load, "last")


def test_invalid_state_and_large_manifest_are_refused(tmp_path, monkeypatch):
    for number, state in enumerate((b"[]", b"\xff", b"[" * 100_000)):
        with pytest.raises(UserError, match="state.json is damaged"):
            forged(tmp_path / str(number), archive({"a.npy": ZEROS}), SPEC, state=state).load("last")
    store = forged(tmp_path, archive({"a.npy": ZEROS}), SPEC)
    monkeypatch.setattr("hookline.trainer.run.checkpoint_files.MAX_JSON_BYTES", 100)
    assert_refused("No checkpoint in .* is sound", store.newest)
    assert "is larger than 100 bytes" in store.problems()[0]


OTHERS = [("files", {"../../secret": {"sha256": "", "bytes": 1}}), ("files", None), ("step", -1), ("number", "1")]
OTHERS += [("step", True), ("tags", "last"), ("environment", []), ("tensors", ["a"])]


def test_manifest_with_invalid_fields_is_refused(tmp_path):
    for number, (key, value) in enumerate(OTHERS):
        store = forged(tmp_path / str(number), archive({"a.npy": ZEROS}), SPEC)
        path = store.directory / "step_00000001" / "manifest.json"
        content = {**json.loads(path.read_text()), key: value}
        del content[checkpoint_files.DIGEST]
        path.write_text(json.dumps({**content, checkpoint_files.DIGEST: checkpoint_files._digest(content)}))
        assert_refused("No checkpoint in .* is sound", store.newest)
        (problem,) = store.problems()
        assert "manifest.json is damaged" in problem
