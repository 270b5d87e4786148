"""The plan of a run: its facts, the metrics that will be reported, and the memory it needs."""

import json
from typing import Any

import numpy as np
import pytest

from hookline.scripts.planning.plan import Plan, as_markdown
from hookline.scripts.planning.trace import plan_run
from hookline.trainer.config.command import parse_command
from hookline.trainer.config.preflight import preflight
from hookline.trainer.run.run import Run
from hookline.trainer.run.session import prepare
from tests.support.command import run_small

SMALL = ("model.units=[16,16]", "trainer.epochs=2", "trainer.batch_size=128", "trainer.compile=off")


def planned(*overrides: str) -> tuple[Plan, Run]:
    (job,) = preflight(parse_command(["recipe=baseline", *overrides]))
    parts = prepare(job.config, job.recipe)
    return plan_run(parts), parts


def held(plan: Plan) -> dict[str, int]:
    return {each.name: each.bytes for each in plan.memory}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Plan, Run, list[dict[str, Any]]]:
    """Return the plan of a small run with center loss, the planned run, and the lines that such a run reported."""
    directory = tmp_path_factory.mktemp("plan") / "run"
    overrides = ("+hooks=center_loss", "hooks.center_loss.warm_up_epochs=1")
    run_small("baseline", *overrides, run_dir=directory)
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return *planned(*SMALL, *overrides), lines


def test_planned_metrics_are_those_that_the_run_reports(run):
    plan, _, lines = run
    assert "minimal, counted from step 10 on" in plan.monitor
    assert plan.facts["steps"] == "20 of 128 examples: 2 epochs"
    assert plan.facts["data"].startswith("1,258 train, 180 validation, 359 test")
    for split, planned_names in (("train", plan.training), ("validation", plan.evaluation), ("test", plan.evaluation)):
        names = {name for line in lines if line["split"] == split for name in line}
        assert set(planned_names) == names - {"step", "epoch", "split", "seconds"}
    assert "center/ratio" in plan.training
    assert "metric/center_ratio" in plan.evaluation


def test_memory_counts_data_variables_slots_state_and_gradients_exactly(run):
    plan, parts, _ = run
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


def test_activation_bytes_grow_with_batch_size_and_stay_within_bounds():
    activations = {}
    for batch in (64, 512):
        plan, _ = planned("model.units=[64,64]", "trainer.compile=off", f"trainer.batch_size={batch}")
        activations[batch] = held(plan)["activations"]
        # At least the inputs, and two tensors of its width for each of the two hidden layers.
        least = batch * 4 * (64 + 2 * 2 * 64)
        assert least <= activations[batch] <= 6 * least
    assert 6 < activations[512] / activations[64] < 8.5


def test_advice_of_hooks_is_in_the_plan():
    plan, _ = planned(*SMALL, "trainer.monitor_mode=max")
    ((hook, line),) = plan.advice
    assert hook == "advisor"
    assert line in as_markdown(plan)
