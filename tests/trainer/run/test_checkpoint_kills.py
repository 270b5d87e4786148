"""A save that is cut off anywhere leaves the old or the new, whole; and what is renamed is on the disk before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hookline.trainer.run.checkpoint import CheckpointStore

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("power", [(), ("power",)], ids=["kill", "power cut"])
@pytest.mark.parametrize("before", [0, 3])
def test_a_save_that_is_cut_off_anywhere_leaves_the_old_or_the_new(tmp_path, before, power):
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.killed_saves", str(tmp_path), str(before), *power],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    cuts = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["killed"] for each in cuts] == [True] * (len(cuts) - 1) + [False]
    assert len(cuts) > 20
    assert {each["step"] for each in cuts} == {before or None, before + 1}
    for each in cuts:
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


def recorded(monkeypatch, directory):
    """Return a list that fills with the writes, syncs and renames below a directory, by their paths from it."""
    calls = []
    opened, fsync, renamed = os.open, os.fsync, os.replace

    def relative(path):
        return os.path.relpath(path, directory)

    def open_(file, flags, *arguments, **keywords):
        if str(file).startswith(str(directory)) and flags & os.O_CREAT:
            calls.append(("write", relative(file)))
        return opened(file, flags, *arguments, **keywords)

    def sync(descriptor):
        calls.append(("sync", relative(os.readlink(f"/proc/self/fd/{descriptor}"))))
        fsync(descriptor)

    def rename(source, target):
        calls.append(("rename", relative(target)))
        renamed(source, target)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", rename)
    return calls


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="tells what is synced by its descriptor")
def test_everything_is_synced_before_its_name_and_the_manifest_comes_last(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, keep_last=1)
    store.save({"last"}, 1, {"a": np.zeros(3)}, {})
    store.wait()
    calls = recorded(monkeypatch, tmp_path)
    store.save({"last"}, 2, {"a": np.ones(3)}, {})
    store.wait()
    monkeypatch.undo()
    index = f".index.json.{os.getpid()}.tmp"
    files = [f".step_00000002.tmp/{name}" for name in ("tensors.npz", "state.json", "manifest.json")]
    assert calls == [
        *((kind, file) for file in files for kind in ("write", "sync")),
        *(("sync", ".step_00000002.tmp"), ("rename", "step_00000002"), ("sync", ".")),
        *(("write", index), ("sync", index), ("rename", "index.json"), ("sync", ".")),
        *(("rename", ".step_00000001.gone"), ("sync", ".")),
    ]
