"""NaN in data, loss, gradient, weight or statistic: nothing of the step is written, and the run stops or goes on."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from hooks.monitors.nan_guard import NanGuard
from scripts.verify import main as verify
from tests.support.command import run_small
from tests.support.poison import PLACES, Poison
from tests.support.resumed import PLUGIN, check_same, metrics, run_cut
from tests.support.toy import toy_loop, toy_network, values_of
from trainer.errors import NonFiniteError
from trainer.run.checkpoint import CheckpointStore

NAMED = {
    "data": "losses cross_entropy, total",
    "loss": "losses poison, total",
    "gradient": "gradients of ",
    "weight": "losses cross_entropy, total",
    "statistic": "new state of ",
}
SHORT = ("trainer.report_every_steps=4", "trainer.epochs=2")


def poison(place: str, *steps: int) -> str:
    return f"+hooks.poison={{_target_:tests.support.poison.Poison,place:{place},steps:{list(steps)}}}".replace(" ", "")


@pytest.mark.parametrize("place", PLACES)
def test_nothing_is_written_and_the_next_step_finds_everything_as_it_was(place: str) -> None:
    guard = NanGuard()
    guard.name, guard.network = "nan_guard", "model"
    network, clean = toy_network(), toy_network()
    for variable, twin in zip(network.model.variables, clean.model.variables, strict=True):
        twin.assign(variable)
    loop, other = toy_loop([guard, Poison(place=place, steps=[3])], network=network), toy_loop(network=clean)
    assert loop.run(0, 10)[0] == 3
    other.run(0, 3)
    _check_equal(values_of(network), values_of(clean))
    assert loop.run(4, 2) == (6, [])
    other.run(4, 2)
    _check_equal(values_of(network), values_of(clean))
    assert all(np.isfinite(value).all() for value in values_of(network).values())
    averages = loop.accumulators.read()
    assert averages.pop("loss/poison", 0.0) == 0.0
    assert averages.pop("grad_norm/after/poison") == averages.pop("grad_norm/after") == averages["grad_norm/before"]
    assert averages == pytest.approx(other.accumulators.read())  # the average of the steps that were made


def _check_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert len(found) == len(expected)
    for value, twin in zip(found.values(), expected.values(), strict=True):
        np.testing.assert_array_equal(value, twin)


@pytest.mark.parametrize("place", PLACES)
def test_the_run_stops_and_says_what_and_where(place: str, tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match="NaN or infinity at step 13: ") as error:
        run_small("baseline", PLUGIN, poison(place, 13), *SHORT, run_dir=tmp_path / "run")
    assert NAMED[place] in str(error.value)
    assert "No variable was changed by this step" in str(error.value)
    numbers = [value for line in metrics(tmp_path / "run") for name, value in line.items() if name != "split"]
    assert numbers
    assert all(math.isfinite(value) for value in numbers)


def test_steps_are_left_out_and_a_run_that_goes_on_leaves_out_the_same(tmp_path: Path) -> None:
    overrides = [poison("data", 5, 13), "hooks.nan_guard.policy=skip", *SHORT]
    with pytest.warns(UserWarning, match="It is left out, as . of 10"):
        whole = run_small("baseline", PLUGIN, *overrides, run_dir=tmp_path / "whole")
    assert whole["status"] == "completed"
    assert whole["hooks"]["nan_guard"]["skipped"] == [5, 13]
    with pytest.warns(UserWarning, match="It is left out, as . of 10"):
        found = run_cut("baseline", *overrides, cuts=[9], run_dir=tmp_path / "cut")
    assert found["hooks"]["nan_guard"]["skipped"] == [5, 13]
    check_same(tmp_path / "cut", found, tmp_path / "whole", whole)


def test_too_many_steps_end_the_run_after_all(tmp_path: Path) -> None:
    overrides = [PLUGIN, poison("loss", 2, 4, 6), "hooks.nan_guard.policy=skip", "hooks.nan_guard.at_most=2"]
    with (
        pytest.warns(UserWarning, match="as . of 2"),
        pytest.raises(NonFiniteError, match="at step 6: .* 2 steps were left out before it"),
    ):
        run_small("baseline", *overrides, *SHORT, run_dir=tmp_path / "run")


SAVING = ("hooks.checkpoint.every_epochs=0.2", "hooks.checkpoint.every_seconds=0")


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_the_run_goes_back_to_its_newest_checkpoint_and_on_at_a_lower_rate(schedule: str, tmp_path: Path) -> None:
    plain = run_small("baseline", f"schedule={schedule}", *SHORT, run_dir=tmp_path / "plain")
    once = "{_target_:tests.support.poison.Once,step:13}"
    overrides = [PLUGIN, f"+hooks.once={once}", f"schedule={schedule}", "hooks.nan_guard.policy=rollback", *SAVING]
    with pytest.warns(UserWarning, match="goes back to its newest checkpoint, 1 of 10 times"):
        found = run_small("baseline", *overrides, "hooks.nan_guard.rate_factor=0.25", *SHORT, run_dir=tmp_path / "run")
    assert (found["status"], found["steps"], found["rolled_back"]) == ("completed", plain["steps"], [13])
    rates, plain_rates = (rates_of(tmp_path / name) for name in ("run", "plain"))
    assert rates.keys() == plain_rates.keys()  # each step is in metrics.jsonl once
    for step, rate in rates.items():
        assert rate == pytest.approx(plain_rates[step] * (0.25 if step > 12 else 1.0)), step


def test_tensorboard_shows_the_steps_that_are_made_twice_once(tmp_path: Path) -> None:
    once = "+hooks.once={_target_:tests.support.poison.Once,step:14}"
    overrides = [PLUGIN, once, "hooks.nan_guard.policy=rollback", "hooks.nan_guard.rate_factor=0.25"]
    saving = ("trainer.epochs=2", "trainer.report_every_steps=1", "hooks.checkpoint.every_epochs=1")
    with pytest.warns(UserWarning, match="goes back"):
        found = run_small("baseline", *overrides, *saving, run_dir=tmp_path / "run")
    assert (found["steps"], found["rolled_back"]) == (20, [14])
    shown = shown_losses(tmp_path / "run", "train")
    assert sorted(shown) == list(range(1, 21))
    assert shown == losses_of(tmp_path / "run", "train")
    assert shown_losses(tmp_path / "run", "validation") == losses_of(tmp_path / "run", "validation")


def shown_losses(directory: Path, split: str) -> dict[int, float]:
    """Return what TensorBoard shows: of a step that was made twice, the second alone."""
    reader = EventAccumulator(str(directory / "tensorboard" / split), size_guidance={"tensors": 0})
    events = reader.Reload().Tensors("loss/total")
    assert [event.step for event in events] == sorted({event.step for event in events})
    return {event.step: tensor_util.make_ndarray(event.tensor_proto).item() for event in events}


def losses_of(directory: Path, split: str) -> dict[int, float]:
    lines = [line for line in metrics(directory) if line["split"] == split]
    return {line["step"]: pytest.approx(line["loss/total"], rel=1e-6) for line in lines}


def rates_of(directory: Path) -> dict[int, float]:
    lines = [line for line in metrics(directory) if line["split"] == "train"]
    rates = {line["step"]: line["opt/learning_rate"] for line in lines}
    assert len(rates) == len(lines)
    return rates


def test_a_fault_that_stays_ends_the_run_after_so_many_returns(tmp_path: Path) -> None:
    overrides = [
        PLUGIN,
        poison("gradient", 13),
        "hooks.nan_guard.policy=rollback",
        "hooks.nan_guard.at_most=2",
        *SAVING,
    ]
    with (
        pytest.warns(UserWarning, match="newest checkpoint, . of 2 times"),
        pytest.raises(NonFiniteError, match="NaN or infinity at step 13"),
    ):
        run_small("baseline", *overrides, *SHORT, run_dir=tmp_path / "run")
    state = CheckpointStore(tmp_path / "run" / "checkpoints").load("last")
    assert state.step == 12
    assert state.tensors["optimizer/model/learning_rate_factor"] == 1.0  # written before the first return


def test_without_a_checkpoint_there_is_no_way_back(tmp_path: Path) -> None:
    overrides = [PLUGIN, poison("loss", 3), "hooks.nan_guard.policy=rollback", "hooks.checkpoint=null", *SHORT]
    with (
        pytest.warns(UserWarning, match="goes back"),
        pytest.raises(NonFiniteError, match="there is no checkpoint to go back to"),
    ):
        run_small("baseline", *overrides, run_dir=tmp_path / "run")


def test_a_run_that_went_back_goes_on_with_its_bits_and_trains_again_to_them(tmp_path: Path, capsys) -> None:
    once = "+hooks.once={_target_:tests.support.poison.Once,step:13}"
    factor = "hooks.nan_guard.rate_factor=0.3"
    overrides = [once, "hooks.nan_guard.policy=rollback", factor, "hooks.checkpoint.keep_last=9", *SAVING, *SHORT]
    with pytest.warns(UserWarning, match="goes back"):
        whole = run_small("baseline", PLUGIN, *overrides, run_dir=tmp_path / "whole")
    with pytest.warns(UserWarning, match="goes back"):
        found = run_cut("baseline", *overrides, cuts=[17], run_dir=tmp_path / "cut")
    assert found["rolled_back"] == [13]
    check_same(tmp_path / "cut", found, tmp_path / "whole", whole)
    capsys.readouterr()
    code = verify([f"run={tmp_path / 'cut'}", f"replay={whole['steps'] - 8}", "plugins=[tests.support]"])
    assert (code, capsys.readouterr().out.partition(":")[0]) == (0, "Steps 8 to 20 give the same bits again")
