"""What lies in a directory of checkpoints is told apart by name alone."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hookline.trainer.run import checkpoint_files as module
from hookline.trainer.run.checkpoint_files import step_of, unused

STRANGERS = ["step_100", "step_0000010a", "xstep_00000100", "step_00000100_", "step_00000100.tmp", "STEP_00000100"]
CHECKPOINTS = ["step_00000100", "step_00000100_2", "step_1234567890"]
LEFT = [".index.json.tmp", ".step_00000100.tmp", ".step_00000100_2.gone"]
MINE = [".step_00000100", "step_00000100.gone", ".index.json", ".step_00000100.tmp.bak", ".indexxjson.tmp"]


@given(st.integers(0, 10**12), st.none() | st.integers(2, 99))
def test_the_step_is_read_from_the_name_it_gave(step: int, count: int | None) -> None:
    assert step_of(f"step_{step:08d}{'' if count is None else f'_{count}'}") == step


def test_each_kind_is_found_and_nothing_else(tmp_path: Path) -> None:
    assert {step_of(name) for name in [*STRANGERS, ""]} == {-1}
    for name in [*CHECKPOINTS, *STRANGERS, "damaged_step_00000100", "damaged_step_00000007", *LEFT[1:]]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "tensors.npz").write_bytes(b"x")
    for name in [LEFT[0], *MINE, "step_00000300", "notdamaged_"]:  # a file is no checkpoint
        (tmp_path / name).write_bytes(b"x")
    assert module.checkpoint_names(tmp_path) == set(CHECKPOINTS)
    assert [path.name for path in module.set_aside(tmp_path)] == ["damaged_step_00000007", "damaged_step_00000100"]
    assert [path.name for path in module.leftovers(tmp_path)] == LEFT
    before = {path.name for path in tmp_path.iterdir()}
    module.remove_leftovers(tmp_path)  # files and directories that hold something
    assert {path.name for path in tmp_path.iterdir()} == before - set(LEFT)
    module.remove_leftovers(tmp_path / "absent")
    assert module.checkpoint_names(tmp_path / "absent") == set()


def test_a_name_that_is_taken_gets_the_first_free_number(tmp_path: Path) -> None:
    assert unused(tmp_path, "step_00000001").name == "step_00000001"
    for name in ("step_00000001", "step_00000001_2", "step_00000001_4"):
        (tmp_path / name).mkdir()
    assert unused(tmp_path, "step_00000001") == tmp_path / "step_00000001_3"
