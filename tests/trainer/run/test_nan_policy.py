"""NaN in data, loss, gradient, weight or statistic: nothing of the step is written, and the run stops or continues."""

import math

import numpy as np
import pytest
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from hookline.hooks.monitors.nan_guard import NanGuard
from hookline.scripts.verify import main as verify
from hookline.trainer import schedules
from hookline.trainer.errors import NonFiniteError
from hookline.trainer.run.checkpoint import CheckpointStore
from tests.support.command import run_small
from tests.support.hooked import named
from tests.support.poison import PLACES, Poison
from tests.support.resumed import PLUGIN, check_same, metrics, run_cut
from tests.support.toy import toy_loop, toy_network, values_of

EACH = ("trainer.report_every_steps=1", "trainer.epochs=2")
SAVING = ("hooks.checkpoint.every_epochs=0.2", "hooks.checkpoint.every_seconds=0")
ROLLBACK = "hooks.nan_guard.policy=rollback"


def poison(place, *steps):
    return f"+hooks.poison={{_target_:tests.support.poison.Poison,place:{place},steps:{list(steps)}}}".replace(" ", "")


def once(step):
    return f"+hooks.once={{_target_:tests.support.poison.Once,step:{step}}}"


def test_step_with_nan_writes_nothing_and_the_next_step_is_unaffected():
    clean = toy_network()
    other = toy_loop(network=clean)
    for place in PLACES:
        guard, network = named(NanGuard(network="model"), "nan_guard"), toy_network()
        loop = toy_loop([guard, Poison(place=place, steps=[3])], network=network)
        for given in ("model", "optimizer"):
            for variable, same in zip(*(getattr(each, given).variables for each in (network, clean)), strict=True):
                same.assign(variable)
        other.accumulators.reset()
        assert loop.run(0, 10)[0] == 3
        other.run(0, 3)
        np.testing.assert_equal(values_of(network), values_of(clean))
        assert loop.run(4, 2) == (6, [])
        other.run(4, 2)
        np.testing.assert_equal(values_of(network), values_of(clean))
        assert all(np.isfinite(value).all() for value in values_of(network).values())
        averages = loop.accumulators.read()
        assert averages.pop("loss/poison", 0.0) == 0.0
        assert averages.pop("grad_norm/after/poison") == averages.pop("grad_norm/after") == averages["grad_norm/before"]
        assert averages == pytest.approx(other.accumulators.read())  # the average of the steps that were taken


def test_run_ends_when_the_nan_policy_reaches_its_limit(tmp_path):
    common = (PLUGIN, *EACH, "hooks.nan_guard.at_most=2")
    skipping = (poison("loss", 2, 4, 6), "hooks.nan_guard.policy=skip")
    with (
        pytest.warns(UserWarning, match="skipped, . of 2"),
        pytest.raises(NonFiniteError, match="at step 6 .* 2 steps"),
    ):
        run_small("baseline", *common, *skipping, run_dir=tmp_path / "a")
    numbers = [value for line in metrics(tmp_path / "a") for name, value in line.items() if name != "split"]
    assert numbers
    assert all(math.isfinite(value) for value in numbers)
    returning = (poison("gradient", 15), ROLLBACK, *SAVING)
    with pytest.warns(UserWarning, match=". of 2 times"), pytest.raises(NonFiniteError, match="at step 15"):
        run_small("baseline", *common, *returning, run_dir=tmp_path / "b")
    state = CheckpointStore(tmp_path / "b" / "checkpoints").load("last")
    assert state.step == 14
    assert state.tensors["optimizer/model/learning_rate_factor"] == 1.0  # written before the first rollback
    rates = rates_of(tmp_path / "b")
    assert 0.15 < rates[15] / rates[14] < 0.25  # halved twice, on a falling schedule


ROLLED = [once(13), ROLLBACK, "hooks.nan_guard.rate_factor=0.3", "hooks.checkpoint.keep_last=9", *SAVING, *EACH]


@pytest.fixture(scope="module")
def rolled(tmp_path_factory):
    directory = tmp_path_factory.mktemp("rolled") / "run"
    with pytest.warns(UserWarning, match="rolls back to its newest checkpoint, 1 of 10 times"):
        return directory, run_small("baseline", PLUGIN, *ROLLED, run_dir=directory)


def test_rollback_returns_to_a_checkpoint_and_lowers_the_rate(rolled):
    directory, found = rolled
    assert (found["status"], found["steps"], found["rolled_back"]) == ("completed", 20, [13])
    rates, schedule = rates_of(directory), schedules.cosine(0.003, 20)
    assert sorted(rates) == list(range(1, 21))  # once each, although some ran twice
    for step, rate in rates.items():
        assert rate == pytest.approx(float(schedule(step)) * (0.3 if step > 12 else 1.0)), step
    for split in ("train", "validation"):
        lines = {line["step"]: line["loss/total"] for line in metrics(directory) if line["split"] == split}
        reader = EventAccumulator(str(directory / "tensorboard" / split), size_guidance={"tensors": 0}).Reload()
        events = reader.Tensors("loss/total")
        shown = [(each.step, tensor_util.make_ndarray(each.tensor_proto).item()) for each in events]
        assert [step for step, _ in shown] == sorted(lines)  # of a step that ran twice, only the second
        assert dict(shown) == pytest.approx(lines, rel=1e-6)


def rates_of(directory):
    lines = [line for line in metrics(directory) if line["split"] == "train"]
    rates = {line["step"]: line["opt/learning_rate"] for line in lines}
    assert len(rates) == len(lines)
    return rates


def test_rolled_back_run_resumes_and_replays_bit_identically(rolled, tmp_path, capsys):
    with pytest.warns(UserWarning, match="rolls back"):
        found = run_cut("baseline", *ROLLED, cuts=[17], run_dir=tmp_path / "cut")
    assert found["rolled_back"] == [13]
    check_same(tmp_path / "cut", found, *rolled)
    capsys.readouterr()
    code = verify([f"run={tmp_path / 'cut'}", f"replay={found['steps'] - 8}", "plugins=[tests.support]"])
    assert (code, capsys.readouterr().out.partition(":")[0]) == (0, "Steps 8 to 20 give the same bits again")
