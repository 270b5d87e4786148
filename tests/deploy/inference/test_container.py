import hashlib
import json
import os
import re
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.deploy.inference.container import DTYPES, PACKED, SPARSE, container_sizes, read_container, write_container
from tests.support.refusals import assert_refused, refusal

TENSORS = {
    "bits": np.arange(5, dtype=np.uint8),
    "a/thresholds": np.array([-3, 0, 300], np.int16),
    "scale": np.array([[0.5, -2.0]], np.float32),
    "none": np.empty((0, 3), np.float64),
    "big_endian": np.array([1, 2], ">i4"),
}
MODEL = {"name": "net", "numbers": [1, -2.5, None, True], "text": "é ☃"}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "net.safetensors"
    write_container(path, PACKED, MODEL, TENSORS)
    return path


def refused(path, content: bytes, kind: str = PACKED) -> str:
    """Return the one-line message that refuses a file of this content."""
    path.write_bytes(content)
    line = refusal(read_container, path, kind)
    assert str(path) in line
    assert len(line) < 400
    return line


def forged(entries: dict, data: bytes = b"", metadata: dict | None = None, header: str | None = None) -> bytes:
    """Return the bytes of a file with the given header entries and the matching digest."""
    own = {"format": PACKED, "version": "1", "model": "{}"} if metadata is None else dict(metadata)

    def text(found: dict) -> bytes:
        made = json.dumps({"__metadata__": found, **entries}, separators=(",", ":")).encode()
        return made + b" " * (-len(made) % 8)

    own["sha256"] = hashlib.sha256(text(own) + data).hexdigest()
    raw = text(own) if header is None else header.encode()
    return len(raw).to_bytes(8, "little") + raw + data


def entry(dtype="U8", shape=(4,), offsets=(0, 4)) -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_container_round_trip(file):
    model, tensors = read_container(file, PACKED)
    assert model == MODEL
    assert tensors.keys() == TENSORS.keys()
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(tensors[name], array)
        assert tensors[name].dtype == array.dtype.newbyteorder("=")
        assert not tensors[name].flags.writeable or not tensors[name].size
        assert tensors[name].flags.aligned
    header, data = container_sizes(file)
    assert data == sum(array.nbytes for array in TENSORS.values())
    assert header + data == file.stat().st_size
    assert header % 8 == 0


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_arrays_round_trip_and_load_with_safetensors(data, tmp_path_factory):
    safetensors = pytest.importorskip("safetensors.numpy")
    codes = data.draw(st.lists(st.sampled_from(sorted(DTYPES)), max_size=6))
    shapes = st.lists(st.integers(0, 4), max_size=4)
    random = np.random.default_rng(0)
    arrays = {f"t{n}": random.integers(0, 9, data.draw(shapes)).astype(DTYPES[code]) for n, code in enumerate(codes)}
    path = tmp_path_factory.mktemp("files") / "a"
    write_container(path, SPARSE, {}, {name: array.copy(order="F") for name, array in arrays.items()})
    for found in (read_container(path, SPARSE)[1], safetensors.load_file(path)):
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            assert found[name].shape == array.shape
            np.testing.assert_array_equal(found[name], array)


def test_truncation_or_bit_flip_at_any_byte_is_refused(tmp_path):
    path = tmp_path / "bad"
    write_container(path, PACKED, {"n": 1}, {"a": np.arange(3, dtype=np.uint8), "b": np.ones(1, np.float32)})
    content = path.read_bytes()
    for length in range(len(content)):
        refused(path, content[:length])
    for place in range(len(content)):
        refused(path, content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :])
    refused(path, content + b"\0")


OTHER = [
    (b"", "its format is None|JSON"),
    ((2**23).to_bytes(8, "little") + bytes(2**23), "would take 8,388,608 bytes"),
    (forged({}, header="[" * 10**6), "nested too deeply"),
    (forged({}, header="[]"), ""),
    (forged({}, header='{"__metadata__":{"format":1}}'), "its format is 1"),
    (forged({"x": entry()}, b"abcd", metadata={}), "its format is None"),
    (forged({}, metadata={"format": PACKED, "version": "2", "model": "{}"}), "its version is '2', expected '1'"),
    (forged({}, metadata={"format": PACKED, "version": "1", "model": "["}), "JSON"),
    (forged({"x": entry()}, b"abc"), "too small"),
    *((forged({"x": entry(shape=shape)}, b"abcd"), "") for shape in ((-4,), (-2, -2), (4.0,), (10**9,) * 8, (10**18,))),
    *((forged({"x": entry(dtype)}, b"abcd"), "") for dtype in ("BOOL", "O", ["U8"])),
    (forged({"x": [1]}, b"abcd"), ""),
]  # fmt: skip


def test_invalid_content_is_refused_quickly_with_little_memory(file, tmp_path):
    assert "its format is 'hookline.packed', expected 'hookline.sparse'" in refused(file, file.read_bytes(), SPARSE)
    (tmp_path / "a").write_bytes(forged({"x": entry()}, b"abcd"))  # a correct one is read
    np.testing.assert_array_equal(read_container(tmp_path / "a", PACKED)[1]["x"], list(b"abcd"))
    for content, said in OTHER:
        start = time.perf_counter()
        tracemalloc.start()
        try:
            line = refused(tmp_path / "bad", content)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert re.search(said, line)
        assert peak < 2**23 + 8 * len(content)
        assert time.perf_counter() - start < 5


def test_pipe_directory_and_missing_file_are_refused_without_blocking(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, said in (("pipe", "not a regular file"), (".", "not a regular file"), ("none", "No such file")):
        assert_refused(said, read_container, tmp_path / name, PACKED)
