"""The plan of a run: what it says of the run, what will be reported, and what it holds in memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.command import run_small
from tests.support.plan import pair_loop, plan_of
from trainer.config.command import parse_command
from trainer.config.preflight import Job, preflight
from trainer.input.source import ArraySource
from trainer.plan.live_bytes import live_bytes
from trainer.plan.markdown import as_markdown
from trainer.plan.memory import estimate_memory
from trainer.plan.plan import Plan
from trainer.plan.run import plan_run
from trainer.run.assembly import Assembly
from trainer.run.session import prepare

SMALL = ("model.units=[16,16]", "trainer.epochs=2", "trainer.batch_size=128", "trainer.compile=off")


def job_of(*overrides: str) -> Job:
    (job,) = preflight(parse_command(overrides))
    return job


def planned(*overrides: str) -> tuple[Plan, Assembly]:
    job = job_of("recipe=baseline", *overrides)
    parts = prepare(job.config)
    return plan_run(job.config, job.recipe, parts), parts


def held(plan: Plan) -> dict[str, int]:
    return {each.name: each.bytes for each in plan.memory}


def names_of(lines: list[dict[str, Any]], split: str) -> set[str]:
    return {name for line in lines if line["split"] == split for name in line} - {"step", "epoch", "split", "seconds"}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Plan, Assembly, list[dict[str, Any]], Path]:
    """Return the plan of a small run of center loss, what it was made of, and what the run then reported."""
    directory = tmp_path_factory.mktemp("plan") / "run"
    overrides = ("+hooks=center_loss", "hooks.center_loss.warm_up_epochs=1")
    run_small("baseline", *overrides, run_dir=directory)
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return *planned(*SMALL, *overrides), lines, directory


def test_the_metrics_are_those_that_the_run_then_reports(run):
    plan, _, lines, _ = run
    assert set(plan.metrics.training) == names_of(lines, "train")
    assert set(plan.metrics.evaluation) == names_of(lines, "validation") == names_of(lines, "test")
    assert "center/ratio" in plan.metrics.training
    assert "metric/center_ratio" in plan.metrics.evaluation


def test_the_monitor_is_named_with_the_step_from_which_it_counts(run):
    plan, _, _, _ = run
    assert plan.metrics.monitor == "loss/cross_entropy of the validation split, minimal, counted from step 10 on"
    assert planned(*SMALL)[0].metrics.monitor == "loss/cross_entropy of the validation split, minimal"


def test_the_run_shows_the_same_plan_in_full(run):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    plan, _, _, directory = run
    events = [
        value.tensor.string_val[0].decode()
        for file in (directory / "tensorboard" / "train").iterdir()
        for event in EventFileLoader(str(file)).Load()
        for value in event.summary.value
        if value.tag.startswith("run/plan")
    ]
    assert events == [as_markdown(plan)]


def test_the_facts_of_the_run_are_said(run):
    plan, _, _, _ = run
    assert plan.facts == {
        "recipe": "baseline",
        "steps": "20 of 128 examples: 2 epochs",
        "data": "1,258 train, 180 validation, 359 test; on the device",
        "evaluation": "every epoch, 256 examples at a time",
        "XLA": "off",
    }
    by_steps, _ = planned(
        "model.units=[4]", "trainer.epochs=null", "trainer.steps=59", "trainer.evaluate_every_epochs=3",
        "trainer.placement=host", "trainer.compile=on",
    )  # fmt: skip
    assert by_steps.facts["steps"] == "59 of 64 examples: 3.002 epochs"
    assert by_steps.facts["data"].endswith("; on the host")
    assert by_steps.facts["evaluation"].startswith("every 3 epochs")
    assert by_steps.facts["XLA"] == "compiles the step"
    assert "data on the host" in held(by_steps)


def test_memory_counts_data_variables_slots_state_and_gradients_exactly(run):
    plan, parts, _, _ = run
    (network,) = parts.trainer.networks.values()
    found = held(plan)
    images, labels = 1797 * 64, 1797 * 8
    assert found["data on the device"] == parts.training.split.source.bytes == images + labels
    trained = sum(np.prod(each.shape) * 4 for each in network.trainable_variables.values())
    state = sum(np.prod(each.shape) * 4 for each in network.state_variables.values())
    assert found["variables of the networks"] == trained + state
    assert found["variables of the optimizers"] == 2 * trained + 8
    assert found["state of the hooks"] == 10 * 16 * 4
    assert found["gradients"] == trained
    assert plan.total_bytes == sum(size for name, size in found.items() if name != "an evaluation")


def test_activations_grow_with_the_batch_and_hold_at_least_what_the_backward_pass_needs():
    activations = {}
    for batch in (64, 512):
        plan, _ = planned("model.units=[64,64]", "trainer.compile=off", f"trainer.batch_size={batch}")
        activations[batch] = held(plan)["activations"]
        # Inputs, and for each hidden layer its product, its normed form and its activation.
        least = batch * 4 * (64 + 2 * 2 * 64)
        assert least <= activations[batch] <= 6 * least
    assert 6 < activations[512] / activations[64] < 8.5


def test_an_evaluation_that_takes_more_than_a_step_counts_in_its_place():
    plan, _ = planned("model.units=[64]", "trainer.batch_size=2", "trainer.compile=off", "trainer.steps=3",
                      "trainer.epochs=null", "trainer.evaluation_batch_size=359")  # fmt: skip
    found = {each.name: each for each in plan.memory}
    assert found["an evaluation"].bytes > found["activations"].bytes + found["gradients"].bytes
    assert [each.name for each in plan.memory if not each.adds] == ["gradients", "activations"]


def test_gradients_are_not_counted_among_the_activations_again():
    plan, parts = planned("model.units=[256,256]", "trainer.batch_size=2", "trainer.compile=off")
    activations, gradients = held(plan)["activations"], held(plan)["gradients"]
    everything = live_bytes(parts.loop.loop_graph, open_size=2).peak
    assert gradients > 256 * 256 * 4
    assert everything - gradients <= activations < everything - gradients / 2


def test_splits_of_one_source_count_once_and_files_not_at_all(run):
    class Files(ArraySource):
        held_bytes = 0

    plan, parts, _, _ = run
    settings = job_of("recipe=baseline", *SMALL).config["trainer"]
    arrays = {"inputs": np.zeros((5, 3), np.float32), "targets": np.zeros(5, np.int64)}
    other = parts.evaluated["test"].split
    source = other.source
    for replaced, size in ((ArraySource(arrays, dict), 5 * 12 + 5 * 8), (Files(arrays, dict), 0)):
        object.__setattr__(other, "source", replaced)
        memory = {each.name: each for each in estimate_memory(parts, plan, settings)}
        assert memory["data on the device"].bytes == source.bytes + size
        assert memory["data on the device"].note == "1,802 examples"
    object.__setattr__(other, "source", source)


def test_objectives_follow_one_another_so_the_gradients_of_the_largest_count(run):
    _, parts, _, _ = run
    loop = pair_loop()
    several = replace(parts, trainer=loop.trainer, loop=loop)
    settings = job_of("recipe=baseline", *SMALL).config["trainer"]
    found = {each.name: each.bytes for each in estimate_memory(several, plan_of(loop), settings)}
    assert found["gradients"] == 99 * 4
    assert found["variables of the networks"] == 396 + 80 + 396 + 64


def test_the_advice_of_hooks_stands_in_the_plan():
    plan, _ = planned(*SMALL, "trainer.monitor_mode=max")
    ((hook, line),) = plan.advice
    assert hook == "advisor"
    assert line in as_markdown(plan)
