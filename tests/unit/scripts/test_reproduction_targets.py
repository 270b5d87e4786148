"""The targets of the results table: their commands compose, mistakes in the file are one line."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.reproduction.estimate import estimate, seconds_before
from scripts.reproduction.plan import Job, commands_of, jobs_of
from scripts.reproduction.results import FILE, TABLE, read_results
from scripts.reproduction.runs import check
from scripts.reproduction.table import render
from scripts.reproduction.targets import read_targets
from tests.support.reproduction import TARGETS, write_targets
from trainer.errors import UserError

OURS = read_targets()


def one_of_each_variant() -> list[Job]:
    return [job for target in OURS.values() for job in jobs_of(target, OURS, target.seeds[:1]).values()]


def with_every_key(jobs: Sequence[Job]) -> list[Job]:
    """Return few jobs that have every choice (data=mnist) and every key (trainer.epochs) of all of them, by recipe."""
    seen: set[tuple[str, str]] = set()
    found = []
    for job in sorted(jobs, key=lambda job: -len(job.overrides)):
        recipe = next(text for text in job.overrides if text.startswith("recipe="))
        parts = {text.partition("=")[0] if "." in text.partition("=")[0] else text for text in job.overrides[:-1]}
        if new := {(recipe, part) for part in parts} - seen:
            seen |= new
            found.append(job)
    return found


def test_every_key_composes():
    """Without TensorFlow, as `test_nothing_needs_tensorflow` sees."""
    check(with_every_key(one_of_each_variant()))


@pytest.mark.long
def test_every_command_composes():
    check(one_of_each_variant())


def test_nothing_needs_tensorflow():
    code = (
        "import sys; sys.path.insert(0, '.'); import scripts.reproduce as command; "
        "code = command.main(['--list', 'only=bnn', 'out=nowhere']); "
        "sys.exit(3 if 'tensorflow' in sys.modules else code)"
    )
    root = Path(__file__).resolve().parents[3]
    found = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert "python train.py -m --jobs 1 recipe=bnn seed=0,1,2,3,4" in found.stdout


def test_the_table_is_what_the_results_render_to():
    rows = read_results(FILE)
    assert rows
    assert FILE.with_name(TABLE).read_text(encoding="utf-8") == render(rows)


def test_the_results_are_of_the_targets():
    """A row that no target has any more, or whose commands are others now, is to be measured again or taken away."""
    for row in read_results(FILE):
        assert row["name"] in OURS
        if "not_run" not in row:
            assert row["commands"] == commands_of(OURS[row["name"]], OURS, row["seeds"])


def test_the_results_tell_nothing_of_the_machine_but_its_processor():
    text = FILE.read_text(encoding="utf-8") + FILE.with_name(TABLE).read_text(encoding="utf-8")
    assert "/tmp" not in text
    assert "/home" not in text


def test_the_recipes_of_the_project_have_a_target():
    configs = Path(__file__).resolve().parents[3] / "configs" / "recipe"
    without = {path.stem for path in configs.glob("*.yaml")} - {target.recipe for target in OURS.values()}
    assert without == {"gan"}  # the twin in the rows of sgan


def test_runs_of_another_target_are_shared():
    jobs = jobs_of(OURS["lenet_300_100_56_times"], OURS, (0, 1))
    assert list(jobs) == [
        "lenet_300_100/dense_0",
        "lenet_300_100_56_times/pruned_0",
        "lenet_300_100/dense_1",
        "lenet_300_100_56_times/pruned_1",
    ]
    pruned = jobs["lenet_300_100_56_times/pruned_1"]
    assert pruned.needs == {"dense": "lenet_300_100/dense_1"}
    filled = pruned.filled({"mnist": "m.npz", "dense": "runs/dense"})
    assert {"data.path=m.npz", "init_from=runs/dense", "seed=1"} <= set(filled)
    assert "hooks.prune.final_sparsity={dense_1: 0.984, dense_2: 0.982, logits: 0.55}" in filled


@given(st.lists(st.integers(0, 99), min_size=1, max_size=4, unique=True), st.sampled_from([*OURS]))
def test_each_run_stands_once_after_what_it_begins_from(seeds: list[int], name: str):
    jobs = jobs_of(OURS[name], OURS, seeds)
    order = [*jobs]
    assert len(jobs) >= len(seeds) * len(OURS[name].runs)
    for job in jobs.values():
        assert all(order.index(needed) < order.index(job.name) for needed in job.needs.values())
        assert job.overrides[-1] == f"seed={job.name.rpartition('_')[2]}"
        assert job.filled(dict.fromkeys((*job.data, *job.needs), "x"))
    assert {int(job.name.rpartition("_")[2]) for job in jobs.values()} == set(seeds)


@given(st.sampled_from([*OURS]))
def test_every_target_is_whole(name: str):
    """Each goal has a source: a paper with its year, a goal of the recipe, or a measure of ours."""
    target = OURS[name]
    assert all(goal.source for goal in target.goals)
    assert all(
        isinstance(goal.figure, str)
        or any(each.isdigit() for each in goal.source)
        or "goal" in goal.source
        or "Larq" in goal.source
        for goal in target.goals
    )
    recipes = {text for variant in target.runs.values() for text in variant.overrides if text.startswith("recipe=")}
    owned = [variant for variant in target.runs.values() if variant.target == name]
    assert not owned or f"recipe={target.recipe}" in recipes


def test_commands_are_such_as_a_shell_takes():
    lines = commands_of(OURS["deep_compression_300_100"], OURS, (0, 1))
    assert (lines[0], lines[-1]) == ("for seed in 0 1; do", "done")
    dense, pruned, export, evaluated = lines[1:-1]
    assert dense.endswith("seed=$seed run_dir=runs/lenet_300_100/dense_$seed")
    assert "init_from=runs/lenet_300_100/dense_$seed" in pruned
    assert pruned.endswith("seed=$seed run_dir=runs/lenet_300_100/pruned_$seed")
    assert '"hooks.prune.final_sparsity={dense_1: 0.92, dense_2: 0.91, logits: 0.74}"' in pruned
    assert export.strip() == ("python scripts/export.py run=runs/lenet_300_100/pruned_$seed format=sparse codebook=5")
    written = "runs/lenet_300_100/pruned_$seed/export/model.sparse.safetensors"
    assert evaluated.strip() == f"python scripts/evaluate.py model={written}"
    (single, *_) = commands_of(OURS["lenet_5"], OURS, (0,))
    assert "run_dir" not in single
    assert "data.path=mnist.npz" in single


def test_two_exports_of_a_run_are_two_files():
    target = OURS["deep_compression_300_100"]
    (name, export), *_ = target.exports.items()
    other = replace(export, options=("format=sparse", "codebook=4"))
    lines = commands_of(replace(target, exports={name: export, "other": other}), OURS, (0,))
    files = [line.partition("output=")[2] for line in lines if "export.py" in line]
    assert len(set(files)) == 2
    assert [line.partition("model=")[2] for line in lines if "evaluate.py" in line] == files


def test_the_estimate_counts_what_is_known():
    jobs = [*jobs_of(OURS["bnn"], OURS, (0, 1)).values()]
    assert estimate(jobs, {}) == "time unknown"
    assert estimate(jobs, {("bnn", "bnn"): 52.0}) == "about 2:00, and 2 runs of unknown time"
    rows = [{"name": "bnn", "seconds": {"bnn": 52.0, "baseline": 22.0, "other": 3.0}}, {"name": "gone"}]
    known = seconds_before(rows, OURS)
    assert known == {("bnn", "bnn"): 52.0, ("baseline", "baseline"): 22.0}
    assert estimate(jobs, known) == "about 3:00"


def changed(**changes: Any) -> dict[str, Any]:
    content = copy.deepcopy(TARGETS)
    content["second"].update(changes)
    return content


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ([], "is no mapping"),
        ({"a": 3}, "a mistake in 'a'"),
        (changed(seed=3), "unknown seed"),
        (changed(seeds=[]), "no seeds"),
        (changed(needs=["cifar"]), "needs cifar"),
        (changed(runs={"pruned": ["recipe=bnn", "init_from={dense}"]}), "{dense} is neither"),
        (changed(runs={"pruned": {"of": "first", "variant": "dense"}}), "no variant 'dense' of 'first'"),
        (changed(runs={"pruned": [3]}), "an override is no text"),
        (changed(runs={"pruned": ["a={b}"], "b": ["c={d}"], "d": ["e=1"]}), "begins from 'b', which begins from"),
        (changed(measures={"a": {"run": "dense", "metric": "m", "as": "number"}}), "'a' of 'dense'"),
        (changed(measures={"a": {"run": "pruned", "metric": "m", "as": "share"}}), "KeyError: 'share'"),
        (changed(measures={"a": {"run": "pruned", "as": "number"}}), "the measure 'a' needs run"),
        (changed(measures={"a": {"export": "x", "value": "accuracy", "as": "number"}}), "'a' of an export"),
        (changed(exports={"x": {"run": "dense", "options": [], "ending": ".x"}}), "an export of 'dense'"),
        (changed(goals=[{"measure": "error", "at_least": "dense"}]), "a goal of 'error' against 'dense'"),
        (changed(goals=[{"measure": "error"}]), "a mistake in 'second'"),
    ],
)
def test_a_mistake_in_the_file_is_one_line(tmp_path: Path, content: Any, word: str):
    path = write_targets(tmp_path / "mine.yaml", content)
    with pytest.raises(UserError) as caught:
        read_targets(path)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_is_none(tmp_path: Path):
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_targets(tmp_path / "nowhere.yaml")
    (tmp_path / "mine.yaml").write_text("a: [")
    with pytest.raises(UserError, match="it is no YAML"):
        read_targets(tmp_path / "mine.yaml")


def test_a_command_line_that_does_not_compose_names_its_run():
    targets = copy.copy(OURS)
    (job,) = jobs_of(targets["custom_gradient"], targets, (0,)).values()
    wrong = type(job)(job.name, ("recipe=bn", "seed=0"), job.variant, {}, ())
    with pytest.raises(UserError, match=r"^custom_gradient/custom_gradient_0: .*Did you mean 'bnn'"):
        check([wrong])
