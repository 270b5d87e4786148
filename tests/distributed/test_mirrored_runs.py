"""Runs on several replicas: from the command line to their files on disk, and resumed with another number."""

import json
import shutil
import warnings

import numpy as np
import pytest

from hookline.scripts.planning.trace import plan_run, replica_sums
from hookline.scripts.verify import choose_pair, replay
from hookline.trainer.config.command import parse_command
from hookline.trainer.config.preflight import preflight
from hookline.trainer.errors import UserError
from hookline.trainer.run.blueprint import from_config
from hookline.trainer.run.build_run import build_run
from hookline.trainer.run.checkpoint import CheckpointStore
from hookline.trainer.run.checkpoint_files import read_manifests
from hookline.trainer.run.finished import read_config
from hookline.trainer.run.session import prepare
from tests.support.command import run_small
from tests.support.replicas import on_replicas, replica_loop, values
from tests.support.resumed import go_on

TWO = ("trainer.strategy=mirrored", "trainer.replicas=2")
SHORT = ("trainer.epochs=null", "trainer.steps=6", "trainer.report_every_steps=1", "trainer.batch_size=32")
GENTLE = ("optimizer.learning_rate=1e-5", "+hooks=synchronized_batch_norm")  # above it, rounding may flip a sign
KEEPING = ("hooks.checkpoint.every_epochs=0.0764", "hooks.checkpoint.every_seconds=0", "hooks.checkpoint.keep_last=5")
"""Every three steps."""


def losses(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss/total"] for line in lines if line["split"] == "train"]


def tensors(run, tag="last"):
    return dict(CheckpointStore(run / "checkpoints").load(tag).tensors)


def parts_of(recipe, *overrides):
    small = ["model.units=[16,16]"] if recipe in ("baseline", "bnn") else []
    (job,) = preflight(parse_command([f"recipe={recipe}", "trainer.compile=off", *small, *SHORT, *overrides]))
    return prepare(job.config, job.recipe)


AUGMENTED = ("trainer.placement=host", "+augment=[shift,noise]", "trainer.class_sampling=balanced")


def test_two_replicas_match_one_and_the_run_resumes_on_one(tmp_path):
    run = tmp_path / "two"
    for name, more in (("one", ()), ("two", (*TWO, *KEEPING))):
        summary = run_small("baseline", *SHORT, *GENTLE, *AUGMENTED, *more, run_dir=tmp_path / name)
    assert summary["replicas"] == {"strategy": "mirrored", "count": 2, "examples": 16}
    np.testing.assert_allclose(losses(run), losses(tmp_path / "one"), rtol=1e-5, atol=1e-5)
    whole, first = tensors(run), min(each.step for each in read_manifests(run / "checkpoints"))
    assert replay(read_config(str(run), []), *choose_pair(run / "checkpoints", 1)) == []
    for manifest in read_manifests(run / "checkpoints"):
        if manifest.step > first:
            shutil.rmtree(manifest.path)
    (run / "summary.json").unlink()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        summary = go_on(run, "trainer.strategy=none", "trainer.replicas=null")
    assert any("replicas was 2 and is 1; the bits may differ" in str(each.message) for each in told)
    assert (summary["resumed_at"], summary["replicas"]["count"]) == ([first], 1)
    for key, value in tensors(run).items():
        if not key.startswith("accumulators"):
            np.testing.assert_allclose(value, whole[key], rtol=1e-4, atol=1e-5, err_msg=key)


@pytest.mark.long
@pytest.mark.parametrize("recipe", ["center_loss", "gan", "sgan", "retrieval", "gradient_reversal"])
def test_variables_of_all_replicas_have_the_same_bits(recipe):
    more = ["trainer.classes_per_batch=4"] if recipe == "retrieval" else []
    small = ["model.filters=[2,2,2]"] if recipe == "center_loss" else []
    parts = parts_of(recipe, *TWO, *more, *small)
    before = values(parts.loop)
    assert parts.loop.run(0, 4) == (4, [])
    after = values(parts.loop)
    assert any(not np.array_equal(before[key], value) for key, value in after.items())


def test_plan_reports_examples_and_sums_of_replicas():
    parts = parts_of("baseline", *TWO)
    facts = plan_run(parts).facts
    assert facts["replicas"] == "2 of 16 examples each; on CPU:0, CPU:1"
    trained = sum(4 * int(np.prod(v.shape)) for v in parts.trainer.networks["model"].trainable_variables.values())
    sums = replica_sums(parts.loop.graph)
    assert trained <= sums[0] <= trained + 4 * 200  # beside the gradients: statistics, losses, metrics
    assert facts["sums over replicas"].endswith(f"a step, in {len(sums)} messages")
    assert replica_sums(replica_loop(1).graph) == []


def test_too_few_classes_per_replica_are_refused():
    (job,) = preflight(parse_command(["recipe=retrieval", "trainer.batch_size=40", "trainer.classes_per_batch=4"]))
    with pytest.raises(UserError, match="4 replicas received with trainer.classes_per_batch=4. .* two of them"):
        build_run(from_config(job.config), on_replicas(4))
