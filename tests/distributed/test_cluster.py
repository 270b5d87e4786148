"""Clusters described by TF_CONFIG, SLURM and torchrun, mistakes in one line, and how workers meet."""

import itertools
import json
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from hookline.scripts.launch import free_ports
from hookline.trainer.errors import UserError, WorkersError
from hookline.trainer.replicas.cluster import Cluster, cluster_of, meet
from tests.support.refusals import assert_refused, refusal

SETTINGS = {"strategy": "multi_worker", "replicas": None, "batch_size": 60}


def cluster_in(environment, **settings):
    with patch.dict(os.environ, environment, clear=True):
        return cluster_of({**SETTINGS, **settings})


def tf_config(workers=("a:1", "b:2"), task=("worker", 0), **jobs):
    cluster = {"worker": list(workers)} if workers else {}
    return {
        "TF_CONFIG": json.dumps({"cluster": cluster | jobs, "task": dict(zip(("type", "index"), task, strict=True))})
    }


def slurm(index=0, count=4, nodes="gpu[01-02]", tasks="2(x2)", **more):
    step = {"SLURM_STEP_NODELIST": nodes, "SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_STEP_NUM_TASKS": str(count)}
    return {"SLURM_PROCID": str(index), "SLURM_NTASKS": str(count), "SLURM_JOB_ID": "700", **step, **more}


def test_tf_config_gives_the_workers_and_index_with_the_chief_first():
    assert cluster_in(tf_config(task=("worker", 1))) == Cluster(("a:1", "b:2"), 1, "TF_CONFIG")
    jobs = {"chief": ["c:3"]}
    assert cluster_in(tf_config(task=("chief", 0), **jobs)) == Cluster(("c:3", "a:1", "b:2"), 0, "TF_CONFIG")
    assert cluster_in(tf_config(task=("worker", "1"), **jobs)).index == 2


def torchrun(**more):
    return {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "5", **more}


MISTAKES = [
    ({}, "no worker addresses are configured"),
    ({"TF_CONFIG": "{"}, "TF_CONFIG={ received"),
    ({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'}, "a task that is one of them"),
    (tf_config(workers=()), "TF_CONFIG="),
    (tf_config(task=("worker", 2)), "a task that is one of them"),
    (tf_config(ps=["p:1"]), "only the jobs chief and worker"),
    (tf_config(workers=("a:1", "b:99999")), "names the worker 'b:99999'"),
    (slurm(index=4), "SLURM gives this worker the index 4, but there are 4 workers"),
    (slurm(count=3), "Requested 3 tasks but only 4 were assigned"),
    (slurm(tasks="1,x"), "1,x"),
    ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, "Expected a process that srun has started"),
    ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_PORT=(not set) received"),
    (torchrun(RANK="2"), "RANK gives this worker the index 2, but there are 2 workers"),
    (torchrun(RANK="2", WORLD_SIZE="4", LOCAL_RANK="0"), "Expected HOSTS=host1,host2"),
    (torchrun(WORLD_SIZE="3", HOSTS="a,b"), "equally many on each host"),
    (torchrun(HOSTS="a[1"), "host list 'a[1'"),
]


def test_mistakes_in_the_environment_are_reported():
    for environment, message in MISTAKES:
        assert message in refusal(cluster_in, environment)


groups = st.lists(
    st.tuples(
        st.sampled_from(["node", "gpu-a", "r1n", "login."]),
        st.lists(
            st.tuples(st.integers(0, 120), st.integers(0, 4)), max_size=3
        ),  # the first of a range, and how many more
        st.integers(0, 4),  # digits, padded with zeros
    ),
    min_size=1,
    max_size=4,
)


@given(groups=groups, data=st.data())
@example(groups=[("node", [(1, 2), (7, 3)], 2)], data=None)
@example(groups=[("node", [(8, 4)], 0)], data=None)  # node10 is after node9, though not by name
def test_slurm_fills_hosts_in_the_order_of_its_node_list(groups, data):
    parts, hosts = [], []
    for prefix, ranges, digits in groups:
        texts = [
            str(first).zfill(digits) + f"-{str(first + more).zfill(digits)}" * (more > 0) for first, more in ranges
        ]
        parts.append(f"{prefix}[{','.join(texts)}]" if ranges else prefix)
        numbers = [str(first + place).zfill(digits) for first, more in ranges for place in range(more + 1)]
        hosts += [prefix + number for number in numbers or [""]]
    assume(len(set(hosts)) == len(hosts))
    each = [2] * len(hosts) if data is None else [data.draw(st.integers(1, 3)) for _ in hosts]
    runs = [(count, len(list(same))) for count, same in itertools.groupby(each)]
    tasks = ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)
    expected = [(host, local) for host, count in zip(hosts, each, strict=True) for local in range(count)]
    index = len(expected) // 2
    environment = slurm(index, len(expected), ",".join(parts), tasks)
    port = 12_000 + 700 % 300 * 64
    cluster = cluster_in(environment, batch_size=len(expected))
    assert cluster == Cluster(tuple(f"{host}:{port + local}" for host, local in expected), index, "SLURM")
    host, local = expected[index]
    assert cluster.beside == (local, each[hosts.index(host)])


def test_torchrun_counts_ports_up_from_master_port():
    environment = torchrun(RANK="1", LOCAL_RANK="1", MASTER_ADDR="host", MASTER_PORT="29500")
    assert cluster_in(environment) == Cluster(("host:29500", "host:29501"), 1, "RANK")
    taken = {**environment, "TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert cluster_in(taken).addresses == ("host:29501", "host:29502")
    environment = torchrun(RANK="3", WORLD_SIZE="4", LOCAL_RANK="1", MASTER_PORT="1", HOSTS="a[1-2]")
    assert cluster_in(environment) == Cluster(("a1:1", "a1:2", "a2:3", "a2:4"), 3, "RANK")


def test_tf_config_takes_precedence_over_slurm_and_slurm_over_rank():
    assert cluster_in({**torchrun(), **slurm(), **tf_config()}).source == "TF_CONFIG"
    assert cluster_in({**torchrun(), **slurm(), "TF_CONFIG": " "}).source == "SLURM"


def test_batch_must_divide_evenly_among_workers():
    assert cluster_in(tf_config(), strategy="none") is None
    message = "equal parts for 2 workers, .* Expected trainer.batch_size=60 or"
    assert_refused(message, cluster_in, tf_config(), batch_size=61)


def clusters(count):
    addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(count))
    return [Cluster(addresses, index, "TF_CONFIG") for index in range(count)]


def come(cluster, *, after=0.0, seconds=10.0):
    time.sleep(after)
    try:
        return meet(cluster, seconds)
    except (UserError, WorkersError) as error:
        return error


def test_workers_proceed_once_the_last_arrives_and_the_port_is_freed():
    first, second, third = clusters(3)
    with ThreadPoolExecutor(3) as pool:
        came = [pool.submit(come, second), pool.submit(come, first, after=0.2), pool.submit(come, third, after=0.6)]
        begun = time.monotonic()
        assert [each.result() for each in came] == [None] * 3
    assert time.monotonic() - begun > 0.5
    socket.create_server(("127.0.0.1", int(first.addresses[0].rpartition(":")[2]))).close()


def test_chief_names_missing_workers():
    first, second, third = clusters(3)
    with ThreadPoolExecutor(2) as pool:
        came = [pool.submit(come, first, seconds=0.6), pool.submit(come, third, seconds=1.2)]
        chief, other = (each.result() for each in came)
    assert f"worker 1 ({second.addresses[1]})" in str(chief)
    assert type(chief) is type(other) is WorkersError
    assert "worker 0 (" in str(other)


def test_foreign_connection_does_not_count_as_a_worker():
    first, second = clusters(2)
    host, _, port = first.addresses[0].rpartition(":")
    thread = threading.Thread(target=lambda: come(second, after=0.4))
    with ThreadPoolExecutor(1) as pool:
        chief = pool.submit(come, first, seconds=5.0)
        time.sleep(0.2)
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert not chief.done()
        thread.start()
        assert chief.result() is None
        thread.join()


def test_port_in_use_is_reported():
    first, _ = clusters(2)
    with socket.create_server(("", int(first.addresses[0].rpartition(":")[2]))), pytest.raises(UserError) as error:
        meet(first, 1.0)
    assert f"Worker 0 cannot listen at {first.addresses[0]}: Address already in use." in str(error.value)
