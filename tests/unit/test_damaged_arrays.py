"""Damaged npy and npz files: whatever byte is wrong, reading them raises what is expected, or gives arrays."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable

import numpy as np
import pytest

from hookline.trainer.errors import ARRAY_FAULTS

ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


def saved(save: Callable[..., None], *arrays: np.ndarray, **named: np.ndarray) -> bytes:
    stream = io.BytesIO()
    save(stream, *arrays, **named)
    return stream.getvalue()


def encrypted(content: bytes) -> bytes:
    """Return an archive whose entries claim to be encrypted, which zipfile refuses by a RuntimeError."""
    marked = bytearray(content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        starts = [each.header_offset for each in archive.infolist()]
    for start in starts:
        marked[start + 6] |= 1
    central = content.index(b"PK\x01\x02")
    marked[central + 8] |= 1
    return bytes(marked)


FILES = {
    "npy": saved(np.save, ARRAY),
    "npz": saved(np.savez, x=ARRAY),
    "compressed npz": saved(np.savez_compressed, x=np.zeros(500)),
}


def read(content: bytes) -> list[np.ndarray]:
    loaded = np.load(io.BytesIO(content), allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return [loaded]
    with loaded:
        return [loaded[name] for name in loaded.files]


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.filterwarnings("ignore")  # NumPy and zipfile warn of some of them before they give up, or continue
def test_a_wrong_byte_or_an_end_raises_a_known_fault_or_none(kind: str) -> None:
    content, caught = FILES[kind], set()
    assert len(read(content)) == 1
    for place in range(len(content)):
        for value in (content[place] ^ 0x01, content[place] ^ 0x80, ord("(")):
            try:
                read(content[:place] + bytes([value]) + content[place + 1 :])
            except ARRAY_FAULTS as error:
                caught.add(type(error))
        with pytest.raises(ARRAY_FAULTS):
            read(content[:place])
    assert len(caught) > 1


def test_entries_that_zip_cannot_read_raise_a_known_fault() -> None:
    with pytest.raises(ARRAY_FAULTS, match="encrypted"):
        read(encrypted(FILES["npz"]))
