"""The doctor of a run: every damage is one line and exit code 1; what is sound trains again to the same bits."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from scripts.replay import rate_changes, train_again
from scripts.verify import Options, main, parse
from tests.support.command import run_small
from trainer.errors import UserError
from trainer.run.checkpoint_content import Checkpoint, read_checkpoint, write_checkpoint
from trainer.run.checkpoint_manifest import read_manifest
from trainer.run.checkpoint_tensors import tensors_digest
from trainer.run.checkpoint_writer import Snapshot


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Return a run that kept its last two checkpoints, one epoch apart."""
    run = tmp_path_factory.mktemp("verify") / "run"
    run_small("baseline", "hooks.checkpoint.every_seconds=0", "trainer.report_every_steps=5", run_dir=run)
    return run


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def steps_of(run: Path) -> list[int]:
    return sorted(read_manifest(path).step for path in (run / "checkpoints").glob("step_*"))


def checkpoint(run: Path, place: int = -1) -> Path:
    return run / "checkpoints" / f"step_{steps_of(run)[place]:08d}"


def verdict(capsys, run: Path, *arguments: str) -> tuple[int, list[str]]:
    code = main([f"run={run}", *arguments])
    return code, capsys.readouterr().out.splitlines()


def changed_json(path: Path, change: Callable[[dict], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def changed_lines(run: Path, change: Callable[[list[str]], None]) -> None:
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines()
    change(lines)
    path.write_text("\n".join(lines) + "\n")


def forged(path: Path, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    """Change the tensors of a checkpoint and give it the right hashes."""
    manifest = read_manifest(path)
    loaded = read_checkpoint(manifest)
    change(loaded.tensors)
    shutil.rmtree(path)
    state = json.dumps(loaded.state).encode()
    snapshot = Snapshot(frozenset(manifest.tags), loaded.step, loaded.tensors, state)
    write_checkpoint(path, snapshot, manifest.number, loaded.environment)


def test_a_sound_run_is_called_so(whole: Path, capsys) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    assert verdict(capsys, whole) == (0, [f"{whole} is sound; checkpoints: 2."])
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda run: (run / "config.yaml").unlink(), "config.yaml cannot be read: No such file"),
    "config cut off": (lambda run: (run / "config.yaml").write_text("a: [1"), "config.yaml is damaged: it is not YAML"),
    "config of another kind": (lambda run: (run / "config.yaml").write_text("- 1"), "it is not what a run writes"),
    "config edited": (
        lambda run: (run / "config.yaml").write_text((run / "config.yaml").read_text().replace("seed: 0", "seed: 7")),
        "config.yaml has changed since step_.*, step_.* were written",
    ),
    "environment cut off": (lambda run: os.truncate(run / "environment.json", 10), "environment.json is damaged"),
    "no environment": (lambda run: (run / "environment.json").unlink(), "environment.json cannot be read"),
    "summary cut off": (lambda run: os.truncate(run / "summary.json", 100), "summary.json is damaged: it is not JSON"),
    "no metrics": (lambda run: (run / "metrics.jsonl").unlink(), "metrics.jsonl cannot be read: No such file"),
    "garbled line": (lambda run: changed_lines(run, lambda lines: lines.insert(1, "{")), "Line 2 of .* is damaged"),
    "empty line": (lambda run: changed_lines(run, lambda lines: lines.insert(1, "")), "Line 2 of .* is damaged"),
    "line of no report": (lambda run: changed_lines(run, lambda lines: lines.insert(1, "3")), "Line 2 of .* damaged"),
    "line twice": (lambda run: changed_lines(run, lambda lines: lines.insert(0, lines[0])), "second one of train at"),
    "last line cut off": (lambda run: os.truncate(run / "metrics.jsonl", 1000), "Line .* is damaged|no validation"),
    "flipped bit in tensors": (lambda run: flip(checkpoint(run) / "tensors.npz"), "its sha256 is not the one"),
    "flipped bit in state": (lambda run: flip(checkpoint(run, 0) / "state.json"), "state.json is damaged: its sha256"),
    "no manifest": (lambda run: (checkpoint(run) / "manifest.json").unlink(), "manifest.json cannot be read"),
    "checkpoint gone": (lambda run: shutil.rmtree(checkpoint(run)), "index.json names step_.*, which is not there"),
    "index cut off": (lambda run: os.truncate(run / "checkpoints" / "index.json", 9), "index.json is damaged"),
    "set aside": (lambda run: (run / "checkpoints" / "damaged_step_00000001").mkdir(), "was set aside: it is damaged"),
    "no checkpoints": (lambda run: shutil.rmtree(run / "checkpoints"), "holds no sound checkpoint, although"),
    "another last step": (
        lambda run: changed_json(run / "summary.json", lambda summary: summary.update(steps=7)),
        "The checkpoint 'last' is of step .*, but summary.json gives 7",
    ),
    "another best step": (
        lambda run: changed_json(run / "summary.json", lambda summary: summary["best"].update(step=7)),
        "no validation at step 7, which is the best one in summary.json",
    ),
    "another best value": (
        lambda run: changed_json(run / "summary.json", lambda summary: summary["best"].update(value=0.125)),
        "metrics.jsonl gives .* but summary.json gives 0.125",
    ),
    "another digest": (
        lambda run: changed_json(run / "summary.json", lambda summary: summary.update(digest="0" * 64)),
        "The variables of the checkpoint 'last' are not those whose digest summary.json gives",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_a_damage_is_a_line_and_exit_code_1(run: Path, capsys, damage, message: str) -> None:
    damage(run)
    code, lines = verdict(capsys, run)
    assert code == 1
    assert lines
    assert all(line.startswith("Damaged: ") for line in lines)
    assert any(re.search(message, line) for line in lines)


def test_the_digest_of_the_summary_is_that_of_the_last_checkpoint(run: Path, capsys) -> None:
    digest = tensors_digest(read_checkpoint(read_manifest(checkpoint(run))).tensors)
    changed_json(run / "summary.json", lambda summary: summary.update(digest=digest))
    assert verdict(capsys, run)[0] == 0


def test_the_best_of_a_checkpoint_is_compared_with_the_metrics(run: Path, capsys) -> None:
    path = checkpoint(run)
    manifest = read_manifest(path)
    loaded = read_checkpoint(manifest)
    best = json.loads((run / "summary.json").read_text())["best"]
    for value, code in ((best["value"], 0), (0.0, 1)):
        state = json.dumps({**loaded.state, "run": {"best": {**best, "value": value}}}).encode()
        shutil.rmtree(path)
        snapshot = Snapshot(frozenset(manifest.tags), loaded.step, loaded.tensors, state)
        write_checkpoint(path, snapshot, manifest.number, {})
        assert verdict(capsys, run)[0] == code


def test_a_run_that_was_killed_is_sound_and_its_leftovers_are_noted(run: Path, capsys) -> None:
    (run / "summary.json").unlink()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99, "spl')
    (run / "checkpoints" / ".step_00000099.tmp").mkdir()
    code, lines = verdict(capsys, run)
    assert code == 0
    assert [line.split()[0] for line in lines[:-1]] == ["Note:"] * 3
    text = "\n".join(lines)
    assert "There is no summary.json" in text
    assert "is cut off" in text
    assert ".step_00000099.tmp was left by a writer that was killed" in text


def test_a_run_without_metrics_and_checkpoints_by_its_config_is_sound(run: Path, capsys) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["hooks"] |= {"metrics_jsonl": None, "checkpoint": None}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    (run / "metrics.jsonl").unlink()
    shutil.rmtree(run / "checkpoints")
    assert verdict(capsys, run) == (0, [f"{run} is sound; checkpoints: 0."])


def test_the_last_steps_trained_again_give_the_same_bits(run: Path, capsys) -> None:
    first, last = steps_of(run)
    code, lines = verdict(capsys, run, f"replay={last - first}")
    digest = tensors_digest(read_checkpoint(read_manifest(checkpoint(run))).tensors)
    assert lines[0] == f"Steps {first} to {last} give the same bits again: sha256 {digest}."
    assert code == 0


def test_a_replay_notices_one_bit_and_says_what_differs(run: Path, capsys) -> None:
    first, last = steps_of(run)
    changed = "network/model/dense_1/kernel"

    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors[changed].view(np.uint32)[0, 0] ^= 1

    forged(checkpoint(run), change)
    digest = tensors_digest(read_checkpoint(read_manifest(checkpoint(run))).tensors)
    changed_json(run / "summary.json", lambda summary: summary.update(digest=digest))
    code, lines = verdict(capsys, run, "replay=1")
    assert code == 1
    (line,) = lines
    assert line.startswith(f"Damaged: Steps {first} to {last} give other bits, sha256 ")
    assert line.endswith(f": '{changed}' differ.")


def test_training_again_reports_where_the_run_did_and_leaves_out_what_it_left_out() -> None:
    made, resets = [], []

    class Loop:
        accumulators = SimpleNamespace(reset=lambda: resets.append(made[-1]))

        def run(self, start: int, steps: int) -> tuple[int, list[str]]:
            end = 7 if start <= 7 < start + steps else start + steps  # step 7 is held back
            made.append((start, end))
            return end, ["gradient"] * (end == 7)

    parts = SimpleNamespace(loop=Loop(), total_steps=100, steps_per_epoch=50.0)
    train_again({"evaluate_every_epochs": 1, "report_every_steps": 5}, parts, 3, 12)
    assert made == [(3, 5), (5, 7), (8, 10), (10, 12)]
    assert resets == [(3, 5), (8, 10)]


def at(step: int, *returns: tuple[int, float]) -> Checkpoint:
    backs = [{"to": to, "rate_factor": factor} for to, factor in returns]
    return Checkpoint(step, {}, {"run": {"returns": backs}}, {})


def test_the_rates_of_a_run_that_went_back_are_those_of_the_way_that_it_came() -> None:
    assert rate_changes(at(4), at(9)) == {}
    assert rate_changes(at(4, (2, 0.5)), at(9, (2, 0.5))) == {}  # all before the older one was written
    assert rate_changes(at(4), at(9, (4, 0.5))) == {4: 0.5}
    assert rate_changes(at(4), at(9, (6, 0.5), (8, 0.5))) == {6: 0.5, 8: 0.5}
    assert rate_changes(at(4), at(9, (6, 0.5), (6, 0.25))) == {6: 0.25}  # twice to the same
    assert rate_changes(at(4), at(9, (6, 0.5), (8, 0.5), (6, 0.25))) == {6: 0.25}  # what lay behind it is void
    assert rate_changes(at(4, (3, 0.5)), at(9, (3, 0.5), (9, 0.5))) == {9: 0.5}
    with pytest.raises(UserError, match="went back to step 3, before the checkpoint of step 4 .* Expected replay="):
        rate_changes(at(4), at(9, (3, 0.5)))


def test_training_again_lowers_the_rates_where_the_run_did() -> None:
    made: list[object] = []

    def run(start: int, steps: int) -> tuple[int, list[str]]:
        made.append((start, start + steps))
        return start + steps, []

    others: list[float] = []
    replicas = [
        SimpleNamespace(networks={"a": SimpleNamespace(lower_rate=note)}) for note in (made.append, others.append)
    ]
    loop = SimpleNamespace(accumulators=SimpleNamespace(reset=lambda: None), run=run, trainers=replicas)
    parts = SimpleNamespace(loop=loop, total_steps=100, steps_per_epoch=50.0)
    settings = {"evaluate_every_epochs": 1, "report_every_steps": 5}
    train_again(settings, parts, 3, 12, {3: 0.5, 7: 0.25, 10: 0.125, 12: 0.0625})
    assert made == [0.5, (3, 5), (5, 7), 0.25, (7, 10), 0.125, (10, 12), 0.0625]
    assert others == [0.5, 0.25, 0.125, 0.0625]


def test_a_damaged_run_is_not_trained_again(run: Path, capsys) -> None:
    flip(checkpoint(run) / "tensors.npz")
    code, lines = verdict(capsys, run, "replay=1")
    assert code == 1
    assert lines[0] == "Note: nothing was trained again, because the run is damaged."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "No run was given"),
        (["run="], "No run was given"),
        (["rum=a"], "Unknown option 'rum'. Did you mean 'run'?"),
        (["run=a", "replay=0"], "Invalid replay: 0. Expected a number of steps, 1 or more."),
        (["run=a", "replay=true"], "Invalid replay: True"),
        (["run=a", "replay=all"], "Invalid replay: 'all'"),
    ],
)
def test_a_wrong_command_line_is_named(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(arguments)
    assert message in str(caught.value)


def test_options_are_read() -> None:
    assert parse(["run=a b", "replay=3"]) == Options("a b", 3)


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_a_directory_that_is_no_run_is_exit_code_2(tmp_path: Path, capsys, name: str) -> None:
    (tmp_path / "empty").mkdir()
    assert main([f"run={tmp_path / name}"]) == 2
    assert "is no run directory. Expected one, with config.yaml and checkpoints." in capsys.readouterr().err


def test_more_steps_than_lie_between_the_checkpoints_are_exit_code_2(run: Path, capsys) -> None:
    first, last = steps_of(run)
    assert main([f"run={run}", f"replay={last - first + 1}"]) == 2
    text = capsys.readouterr().err
    assert f"No checkpoint lies {last - first + 1} steps before the newest one, of step {last}." in text
    assert f"Expected at most {last - first}." in text
