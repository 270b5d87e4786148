"""The verify command: damage is reported with exit code 1, and a replay must train to the same bits."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hookline.scripts.verify import main, rate_changes
from hookline.trainer.run import checkpoint_files as files
from tests.support.command import run_small
from tests.support.refusals import assert_one_line, assert_refused


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Return a run that kept its last two checkpoints, one epoch apart."""
    run = tmp_path_factory.mktemp("verify") / "run"
    np.save(run.parent / "x_train.npy", np.random.default_rng(0).normal(size=(1800, 6)))
    np.save(run.parent / "y_train.npy", np.arange(1800) % 10)
    own = f"data=arrays data.path={run.parent} data.cache=none hooks.checkpoint.every_seconds=0"  # data on the host
    run_small("baseline", *own.split(), "trainer.report_every_steps=5", run_dir=run)
    return run


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def steps_of(run: Path) -> list[int]:
    return sorted(files.read_manifest(path).step for path in (run / "checkpoints").glob("step_*"))


def checkpoint(run: Path, place: int = -1) -> Path:
    return run / "checkpoints" / f"step_{steps_of(run)[place]:08d}"


def verdict(capsys, run: Path, *arguments: str) -> tuple[int, list[str]]:
    return main([f"run={run}", *arguments]), capsys.readouterr().out.splitlines()


def summary(run: Path, **changes: object) -> None:
    content = json.loads((run / "summary.json").read_text())
    best = content["best"] | changes.pop("best", {})
    (run / "summary.json").write_text(json.dumps({**content, "best": best, **changes}))


def line(run: Path, *texts: str, at: slice = slice(1, 1)) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    lines[at] = [text or lines[0] for text in texts]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def rewritten(path: Path, tensors: dict[str, np.ndarray] | None = None, **state: object) -> None:
    """Change a checkpoint and update its hashes."""
    manifest = files.read_manifest(path)
    loaded = files.read_checkpoint(manifest)
    shutil.rmtree(path)
    content = json.dumps({**loaded.state, **state}).encode()
    snapshot = files.Snapshot(frozenset(manifest.tags), loaded.step, {**loaded.tensors, **(tensors or {})}, content)
    files.write_checkpoint(path, snapshot, manifest.number, loaded.environment)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def another_best(run: Path) -> None:
    best = json.loads((run / "summary.json").read_text())["best"]
    rewritten(checkpoint(run), run={"best": {**best, "value": 0.0}})


OTHER = {"loss/total": 0.125}
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda run: (run / "config.yaml").unlink(), "config.yaml cannot be read"),
    "config edited": (
        lambda run: shutil.copy(run / "environment.json", run / "config.yaml"),
        "since step_.*, step.* were",
    ),
    "no recipe": (lambda run: (run / "overrides.txt").write_text(""), "overrides.txt names 0 recipes"),
    "environment cut off": (lambda run: os.truncate(run / "environment.json", 10), "environment.json is damaged"),
    "garbled line": (lambda run: line(run, "{"), "Line 2 of .* is damaged"),
    "line twice": (lambda run: line(run, ""), "second one of train at"),
    "last line cut off": (lambda run: os.truncate(run / "metrics.jsonl", 1000), "Line .* is damaged|no validation"),
    "flipped bit in tensors": (lambda run: flip(checkpoint(run) / "tensors.npz"), "sha256 is not the one"),
    "no manifest": (lambda run: (checkpoint(run) / "manifest.json").unlink(), "manifest.json cannot be read"),
    "checkpoint gone": (lambda run: shutil.rmtree(checkpoint(run)), "index.json names step_.*, which is not there"),
    "set aside": (lambda run: (run / "checkpoints" / "damaged_step_00000001").mkdir(), "was set aside"),
    "another last step": (lambda run: summary(run, steps=7), "'last' is of step .*, but summary.json gives 7"),
    "another best value": (lambda run: summary(run, best={"value": 0.125}), "summary.json gives 0.125"),
    "another best loss": (lambda run: summary(run, best={"values": OTHER}), "for validation at .* gives 0.125"),
    "another test loss": (lambda run: summary(run, test=OTHER), "for test at .*, but summary.json gives 0.125"),
    "another last loss": (lambda run: summary(run, final=OTHER), "for train at .*, but summary.json gives 0.125"),
    "no test": (lambda run: line(run, at=slice(-1, None)), "no test at step .*, of which summary.json gives values"),
    "line removed": (lambda run: line(run, at=slice(1)), "reports until step .*, but the state of step_.* counts"),
    "another digest": (lambda run: summary(run, digest="0" * 64), "not those whose digest"),
    "another best in a checkpoint": (another_best, "metrics.jsonl gives"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_damage_is_reported_with_exit_code_1(run, capsys, damage, message):
    damage(run)
    code, lines = verdict(capsys, run, "replay=1")
    assert code == 1
    assert lines[0] == "Note: nothing was trained again, because the run is damaged."
    assert all(each.startswith("Damaged: ") for each in lines[1:])
    assert any(re.search(message, each) for each in lines)


def test_killed_run_is_sound_and_its_leftovers_are_noted(run, capsys, monkeypatch):
    (run / "summary.json").unlink()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99, "spl')
    (run / "checkpoints" / ".step_00000099.tmp").mkdir()
    names_of, retired = files.checkpoint_names, iter([{"step_00000001"}])  # gone at the second read, as during training
    monkeypatch.setattr(files, "checkpoint_names", lambda path: names_of(path) | next(retired, set()))
    code, lines = verdict(capsys, run)
    assert code == 0
    assert [each.split()[0] for each in lines[:-1]] == ["Note:"] * 3
    for word in ("no summary.json", "is cut off", ".step_00000099.tmp was left by a writer"):
        assert word in "\n".join(lines)


def test_replay_detects_a_single_wrong_bit_and_writes_nothing(run, capsys):
    first, last = steps_of(run)
    tensors = files.read_checkpoint(files.read_manifest(checkpoint(run))).tensors
    kernel = "network/model/dense_1/kernel"
    tensors[kernel] = tensors[kernel].copy()
    tensors[kernel].view(np.uint32)[0, 0] ^= 1
    rewritten(checkpoint(run), tensors)
    summary(run, digest=files.tensors_digest(tensors))
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert verdict(capsys, run) == (0, [f"{run} is sound; checkpoints: 2."])  # by the digest of the last checkpoint
    code, (told,) = verdict(capsys, run, f"replay={last - first}")
    assert code == 1
    assert told.startswith(f"Damaged: Steps {first} to {last} give different bits, sha256 ")
    assert told.endswith(f": '{kernel}' differ.")  # all others have the same
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def at(step: int, *returns: tuple[int, float]) -> files.Checkpoint:
    backs = [{"to": to, "rate_factor": factor} for to, factor in returns]
    return files.Checkpoint(step, {}, {"run": {"returns": backs}}, {})


def test_rate_changes_after_going_back_leave_out_discarded_steps():
    assert rate_changes(at(4, (2, 0.5)), at(9, (2, 0.5))) == {}  # before the older one was written
    assert rate_changes(at(4), at(9, (4, 0.5))) == {4: 0.5}
    assert rate_changes(at(4), at(9, (6, 0.5), (6, 0.25))) == {6: 0.25}  # twice to the same step
    assert rate_changes(at(4), at(9, (6, 0.5), (8, 0.5), (6, 0.25))) == {6: 0.25}  # later changes are discarded
    assert rate_changes(at(4, (3, 0.5)), at(9, (3, 0.5), (9, 0.5))) == {9: 0.5}
    assert_refused("went back to step 3, before the checkpoint of step 4", rate_changes, at(4), at(9, (3, 0.5)))


def test_wrong_usage_gives_exit_code_2(run, capsys, tmp_path):
    first, last = steps_of(run)
    for arguments, word in (
        ([f"run={tmp_path / 'missing'}"], "not a run directory"),
        ([f"run={run}", f"replay={last - first + 1}"], f"at most {last - first}."),
    ):
        assert_one_line(main, arguments, word, capsys)
