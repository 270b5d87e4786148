"""NaN in the part of one replica: all replicas decide alike, keep equal bits, and end like one process.

Whole runs are in `test_two_workers`; these are fits of toy networks, also resumed with another number of replicas.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.hooks.monitors.checkpoint import Checkpoint
from hookline.hooks.monitors.nan_guard import NanGuard
from hookline.trainer.errors import NonFiniteError
from hookline.trainer.rate_schedules import ScaledRate
from hookline.trainer.run.checkpoint import CheckpointStore
from hookline.trainer.run.checkpoint_files import read_checkpoint, read_manifests
from hookline.trainer.run.state import restore_run
from hookline.trainer.run.workers import Workers
from tests.distributed.test_mirrored_steps import plain_network
from tests.support.poison import Once, Poison
from tests.support.replicas import assert_same_run, replica_loop, values
from tests.support.runs import toy_run
from tests.support.toy import BATCH, SIZE, build_context, toy_network

STEPS = 12


class Told(Workers):
    def __init__(self):
        self.orders = []

    def move(self, step):
        self.orders.append(("move", step))

    def take(self, step, variables):
        self.orders.append(("take", step))
        assert float(variables["optimizer/model/learning_rate_factor"]) < 1.0


class PatientStore(CheckpointStore):
    """Wait for each checkpoint: a later one would replace one that has not been started."""

    def save(self, *given):
        super().save(*given)
        self.wait()


def scheduled_network():
    rate = ScaledRate(keras.optimizers.schedules.CosineDecay(0.1, STEPS))
    return plain_network(keras.optimizers.SGD(rate, momentum=0.9, name="sgd"))


def run_on(count, directory, fault, network=scheduled_network, **guard):
    guards = []

    def hooks(network):
        own, bad = NanGuard(**guard), fault()
        own.name, own.network, bad.network = "nan_guard", network.name, network.name
        bad.build(build_context(network))
        guards.append(own)
        return [own, bad]

    loop = replica_loop(count, network=network, hooks=hooks)
    checkpoint = Checkpoint(every_epochs=0.5, every_seconds=0)
    checkpoint.name = "checkpoint"
    given = {"_store": PatientStore(directory / "checkpoints"), "_workers": Told()}
    epochs = STEPS * BATCH / SIZE
    return toy_run(directory, [guards[0], checkpoint], loop=loop, epochs=epochs, report_every=2, **given)


def trained(count, directory, fault, **options):
    run = run_on(count, directory, fault, **options)
    with pytest.warns(UserWarning, match="NaN or infinity at step"):
        run.fit()
    values(run.loop)
    return run


def assert_same_end(found, expected):
    for run in (found, expected):
        assert run.step == STEPS
    assert found.journal.returns == expected.journal.returns
    assert found.journal.rolled_back == expected.journal.rolled_back
    assert found.host_hooks[0].summary() == expected.host_hooks[0].summary()
    own, other = (
        {k: v for k, v in run.journal.final.items() if not k.startswith("time/")} for run in (found, expected)
    )
    assert_same_run((values(found.loop), own), (values(expected.loop), other))


@pytest.mark.parametrize("place", ["data", "statistic"])
def test_replicas_skip_the_steps_that_one_process_skips(place, tmp_path):
    def fault():
        return Poison(place=place, steps=[3, 6], last=True)

    network = toy_network if place == "statistic" else scheduled_network
    two = trained(2, tmp_path / "two", fault, network=network, policy="skip")
    assert two.host_hooks[0].summary() == {"skipped": [3, 6]}
    assert two._workers.orders == [("move", 4), ("move", 7)]
    if place == "data":
        assert_same_end(two, trained(1, tmp_path / "one", fault, policy="skip"))


class Stubborn(Once):
    def __init__(self):
        super().__init__(step=5)

    def add_losses(self, context):
        struck = tf.logical_and(tf.equal(context.step, 5), self._network.rate_factor > 0.1)
        spared = context.replica.index < context.replica.count - 1
        return {"once": tf.where(struck, 0.0 if spared else float("nan"), 0.0)}


def test_replicas_roll_back_like_one_process(tmp_path):
    options = {"policy": "rollback", "rate_factor": 0.25}
    two, one = (trained(count, tmp_path / str(count), Stubborn, **options) for count in (2, 1))
    lowered = [{"to": 4, "rate_factor": 0.25}, {"to": 4, "rate_factor": 0.0625}]
    assert (two.journal.rolled_back, two.journal.returns) == ([5, 5], lowered)
    assert two._workers.orders == [("take", 4)] * 2
    assert float(two.loop.trainers[1].networks["model"].rate_factor) == 0.0625
    assert_same_end(two, one)


def test_run_on_replicas_stops_like_one_process(tmp_path):
    told = []
    for count in (2, 1):
        run = run_on(count, tmp_path / str(count), lambda: Poison(place="data", steps=[3], last=True))
        with pytest.raises(NonFiniteError, match="NaN or infinity at step 3 in loss/.*gradient/") as error:
            run.fit()
        assert run.step == 3
        values(run.loop)
        told.append(str(error.value))
    assert told[0] == told[1]


def test_run_resumes_with_another_number_of_replicas(tmp_path):
    before, after = 1, 2
    whole, again = (
        run_on(count, tmp_path / str(count), lambda: Poison(place="data", steps=[-1])) for count in (before, after)
    )
    whole.fit()
    (manifest,) = (each for each in read_manifests(whole.directory / "checkpoints") if each.step == 10)
    with pytest.warns(UserWarning, match=f"resume: replicas was {before} and is {after}"):
        restore_run(again, read_checkpoint(manifest))
    found = values(again.loop)
    assert found
    assert all(np.array_equal(value, read_checkpoint(manifest).tensors[key]) for key, value in found.items())
    again._workers = Workers()
    again.fit()
    assert again.journal.resumed_at == [10]
    assert_same_end(again, whole)
