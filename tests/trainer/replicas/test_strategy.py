"""Which replicas a process has, and what is refused."""

import pytest
import tensorflow as tf

from hookline.trainer.replicas.replica import Replica
from hookline.trainer.replicas.strategy import check_number, describe_replicas, local_replicas, mirrored_devices
from tests.support.refusals import assert_refused


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    found = tf.config.list_physical_devices
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [] if kind == "GPU" else found(kind))


def test_mirrored_replicas_have_a_part_of_the_cpu_each():
    assert local_replicas("none", None, 7) == [Replica()]  # wherever TensorFlow puts it
    made = local_replicas("mirrored", 2, 60)
    assert [(each.index, each.count, each.device) for each in made] == [(0, 2, "/CPU:0"), (1, 2, "/CPU:1")]
    assert describe_replicas("mirrored", Replica(1, 4), 64) == {"strategy": "mirrored", "count": 4, "examples": 16}


def test_gpus_come_before_parts_of_the_cpu(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [object()] * 3)
    for count, names in ((None, 3), (2, 2)):
        assert mirrored_devices(count) == [f"/GPU:{index}" for index in range(names)]
    assert_refused("replicas=4", mirrored_devices, 4)


def test_numbers_that_do_not_fit_are_refused():
    have = len(tf.config.list_logical_devices("CPU"))
    for refused, match in (
        (lambda: check_number("none", 2), "replicas=2"),
        (lambda: local_replicas("mirrored", 2, 61), "batch_size=61"),
        (lambda: mirrored_devices(None), "replicas=<number>"),
        (lambda: mirrored_devices(have + 1), f"replicas={have + 1}"),
    ):
        assert_refused(match, refused)
