"""Which replicas a process has, and what is refused."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.support.replicas import cpus
from trainer.errors import UserError
from trainer.replicas.replica import Replica
from trainer.replicas.strategy import describe_replicas, local_replicas, mirrored_devices


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch) -> None:
    """Let the machine have no GPU."""
    found = tf.config.list_physical_devices
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [] if kind == "GPU" else found(kind))


def test_no_strategy_is_one_replica_wherever_tensorflow_puts_it() -> None:
    assert local_replicas("none", None, 7) == [Replica()]


def test_mirrored_replicas_have_a_part_of_the_cpu_each() -> None:
    made = local_replicas("mirrored", 2, 60)
    assert [(each.index, each.count, each.device) for each in made] == [(0, 2, "/CPU:0"), (1, 2, "/CPU:1")]
    assert len(cpus(2)) == 2


def test_a_number_without_a_strategy_is_refused() -> None:
    with pytest.raises(UserError, match="trainer.replicas=2 received with trainer.strategy=none, which has one."):
        local_replicas("none", 2, 60)


def test_a_batch_that_cannot_be_shared_equally_is_refused() -> None:
    with pytest.raises(
        UserError, match="trainer.batch_size=61 cannot be shared equally by 2 replicas. .* multiple of 2"
    ):
        local_replicas("mirrored", 2, 61)


def test_a_cpu_is_not_divided_by_itself() -> None:
    with pytest.raises(UserError, match="there is no GPU. Expected trainer.replicas=<number> to divide the CPU"):
        mirrored_devices(None)


def test_a_cpu_that_has_started_with_fewer_parts_is_refused() -> None:
    have = len(tf.config.list_logical_devices("CPU"))
    with pytest.raises(
        UserError, match=f"trainer.replicas={have + 1} comes too late: .* started with {have} CPU devices"
    ):
        mirrored_devices(have + 1)


@pytest.mark.parametrize(("count", "names"), [(None, 3), (2, 2), (3, 3)])
def test_gpus_come_before_parts_of_the_cpu(monkeypatch, count, names) -> None:
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [object()] * 3)
    assert mirrored_devices(count) == [f"/GPU:{index}" for index in range(names)]


def test_more_replicas_than_gpus_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [object()] * 3)
    with pytest.raises(UserError, match="trainer.replicas=4 received, but there are 3 GPUs. Expected at most these."):
        mirrored_devices(4)


def test_the_summary_says_how_many_had_how_much() -> None:
    assert describe_replicas("mirrored", Replica(1, 4), 64) == {"strategy": "mirrored", "count": 4, "examples": 16}
    assert describe_replicas("none", Replica(), 64) == {"strategy": "none", "count": 1, "examples": 64}
