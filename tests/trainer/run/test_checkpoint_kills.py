"""A save that is cut off anywhere, also by a lack of power, leaves the old or the new, whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
