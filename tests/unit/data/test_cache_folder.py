"""Files of a cache are whole or not there."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from hookline.recipes.data.image_source import written_whole


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


def test_what_a_killed_process_left_is_removed_and_no_more(tmp_path):
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
