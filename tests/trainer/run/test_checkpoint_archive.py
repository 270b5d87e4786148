"""A malicious archive: refused in one line, before it takes memory, and nothing of it is executed."""

import io
import json
import pickle
import tracemalloc
import zipfile

import numpy as np
import pytest

from hookline.trainer.errors import UserError
from hookline.trainer.run import checkpoint_files
from hookline.trainer.run.checkpoint import CheckpointStore
from hookline.trainer.run.checkpoint_files import write_manifest
from tests.support.refusals import assert_refused

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
    """Make a checkpoint whose hashes are all right, as whoever forges one would; return its store."""
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


def test_a_forged_archive_is_refused_before_it_takes_memory(tmp_path):
    sound = forged(tmp_path / "sound", archive({"a.npy": ZEROS}), SPEC).load("last")
    np.testing.assert_array_equal(sound.tensors["a"], np.zeros(2, np.float32))
    for number, (content, tensors, message) in enumerate(FORGED.values()):
        store = forged(tmp_path / str(number), content, tensors)
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


def test_many_names_for_the_same_bytes_do_not_add_up(tmp_path):
    """Two entries of the directory that point to one member: the sum of their sizes is above that of the file."""
    array = npy(np.zeros(1000, np.float32))
    one = archive({"a.npy": array})
    start = one.index(b"PK\x01\x02")
    entry = one[start : one.index(b"PK\x05\x06")]
    entries = b"".join(entry.replace(b"a.npy", f"{name}.npy".encode()) for name in "abcd")
    end = b"PK\x05\x06" + bytes(4) + (4).to_bytes(2, "little") * 2 + len(entries).to_bytes(4, "little")
    content = one[:start] + entries + end + start.to_bytes(4, "little") + bytes(2)
    specs = {name: {"dtype": "float32", "shape": [1000]} for name in "abcd"}
    assert_refused("its arrays claim more bytes than the file has", forged(tmp_path, content, specs).load, "last")


def test_a_wrong_checksum_inside_the_archive_is_noticed(tmp_path):
    content = bytearray(archive({"a.npy": ZEROS}))
    content[content.index(b"\x93NUMPY") + len(ZEROS) - 1] ^= 1
    assert_refused("Bad CRC-32", forged(tmp_path, bytes(content), SPEC).load, "last")


def test_an_invalid_state_and_a_large_manifest_are_refused(tmp_path, monkeypatch):
    for number, state in enumerate((b"[]", b"\xff", b"[" * 100_000)):
        with pytest.raises(UserError, match="state.json is damaged"):
            forged(tmp_path / str(number), archive({"a.npy": ZEROS}), SPEC, state=state).load("last")
    store = forged(tmp_path, archive({"a.npy": ZEROS}), SPEC)
    monkeypatch.setattr("hookline.trainer.run.checkpoint_files.MAX_JSON_BYTES", 100)
    assert_refused("No checkpoint in .* is sound", store.newest)
    assert "is larger than 100 bytes" in store.problems()[0]


OTHERS = [("files", {"../../secret": {"sha256": "", "bytes": 1}}), ("files", None), ("step", -1), ("number", "1")]
OTHERS += [("step", True), ("tags", "last"), ("environment", []), ("tensors", ["a"])]


def test_a_manifest_with_invalid_fields_is_refused(tmp_path):
    for number, (key, value) in enumerate(OTHERS):
        store = forged(tmp_path / str(number), archive({"a.npy": ZEROS}), SPEC)
        path = store.directory / "step_00000001" / "manifest.json"
        content = {**json.loads(path.read_text()), key: value}
        del content[checkpoint_files.DIGEST]
        path.write_text(json.dumps({**content, checkpoint_files.DIGEST: checkpoint_files._digest(content)}))
        assert_refused("No checkpoint in .* is sound", store.newest)
        (problem,) = store.problems()
        assert "manifest.json is damaged" in problem
