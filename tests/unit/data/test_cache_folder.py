"""Files of a cache are whole or not there."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from recipes.data.cache_folder import cache_folder, file_stamp, fingerprint, written_whole


def test_the_folder_is_the_users_own(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder(None) == tmp_path / ".cache" / "hookline"
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert str(cache_folder(None)) == "/somewhere/hookline"
    assert cache_folder("~/mine") == tmp_path / "mine"


def test_a_fingerprint_differs_where_anything_does():
    seen = {fingerprint(*values) for values in (("a", 1), ("a", "1"), ("a1",), (["a"], 1), ({"a": 1},), ({"a": 2},))}
    assert len(seen) == 6
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})


def test_a_stamp_differs_where_the_file_does(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"12")
    first = file_stamp(file)
    os.utime(file, ns=(5, 5))
    second = file_stamp(file)
    file.write_bytes(b"123")
    os.utime(file, ns=(5, 5))
    assert len({str(each) for each in (first, second, file_stamp(file))}) == 3


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_file_that_is_not_finished_leaves_the_old_one_and_nothing_else(tmp_path, error):
    file = tmp_path / "deep" / "file"
    with written_whole(file) as stream:
        stream.write(b"old")

    def fail_halfway():
        with written_whole(file) as stream:
            stream.write(b"half")
            assert file.read_bytes() == b"old"
            raise error

    with pytest.raises(error):
        fail_halfway()
    assert [each.name for each in file.parent.iterdir()] == ["file"]
    assert file.read_bytes() == b"old"


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path):
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    host = socket.gethostname()
    orphan = tmp_path / f".file.0123.{int(gone.stdout)}@{host}.partial"
    alive = tmp_path / f".file.0123.{os.getpid()}@{host}.partial"
    elsewhere = tmp_path / f".file.0123.{int(gone.stdout)}@not-{host}.partial"
    for each in (orphan, alive, elsewhere):
        each.write_bytes(b"half")
    with written_whole(tmp_path / "file") as stream:
        stream.write(b"new")
    assert not orphan.exists()
    assert alive.exists()
    assert elsewhere.exists()
