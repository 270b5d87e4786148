"""Clusters as TF_CONFIG, SLURM and torchrun describe them, mistakes as one line, and how workers meet."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from hookline.scripts.launch import free_ports
from hookline.trainer.errors import UserError, WorkersError
from hookline.trainer.replicas.cluster import Cluster, cluster_of, expand_hosts, read_cluster
from hookline.trainer.replicas.start_cluster import meet

SETTINGS = {"strategy": "multi_worker", "replicas": None, "batch_size": 60}


def tf_config(workers=("a:1", "b:2"), task=("worker", 0), **jobs):
    cluster = {"worker": list(workers)} if workers else {}
    return {
        "TF_CONFIG": json.dumps({"cluster": cluster | jobs, "task": dict(zip(("type", "index"), task, strict=True))})
    }


def slurm(index=0, count=4, nodes="gpu[01-02]", **more):
    job = {"SLURM_JOB_NODELIST": nodes, "SLURM_JOB_ID": "700"}
    return {"SLURM_PROCID": str(index), "SLURM_NTASKS": str(count), **job, **more}


def test_tf_config_names_the_workers_this_one_and_a_chief_first():
    cluster = read_cluster(tf_config(task=("worker", 1)))
    assert cluster == Cluster(("a:1", "b:2"), 1, "TF_CONFIG")
    jobs = {"chief": ["c:3"]}
    assert read_cluster(tf_config(task=("chief", 0), **jobs)) == Cluster(("c:3", "a:1", "b:2"), 0, "TF_CONFIG")
    assert read_cluster(tf_config(task=("worker", "1"), **jobs)).index == 2


def torchrun(**more):
    return {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "5", **more}


MISTAKES = [
    ({}, "nothing says where the workers are"),
    ({"TF_CONFIG": "{"}, "TF_CONFIG={ received"),
    ({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'}, "a task that is one of them"),
    (tf_config(workers=()), "TF_CONFIG="),
    (tf_config(task=("worker", 2)), "a task that is one of them"),
    (tf_config(task=("worker", -1)), "a task that is one of them"),
    (tf_config(ps=["p:1"]), "jobs chief and worker alone"),
    (tf_config(workers=("a:1", "a:1")), "names a:1 for more than one worker"),
    (tf_config(workers=("a:1", "b:99999")), "names the worker 'b:99999'"),
    (slurm(index=4), "SLURM says that this is worker 4 of 4"),
    (slurm(count=3), "SLURM_NTASKS=3 received with 2 hosts"),
    (slurm(SLURM_TASKS_PER_NODE="1,2"), "SLURM_TASKS_PER_NODE=1,2"),
    (slurm(nodes=""), "no SLURM_JOB_NODELIST"),
    (slurm(1, SLURM_LOCALID="0"), "srun --distribution=block"),
    ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_PORT=(not set) received"),
    (torchrun(RANK="2"), "RANK says that this is worker 2 of 2"),
    (torchrun(WORLD_SIZE="0"), "WORLD_SIZE=0"),
    (torchrun(RANK="2", WORLD_SIZE="4", LOCAL_RANK="0"), "Expected HOSTS=host1,host2"),
    (torchrun(WORLD_SIZE="3", HOSTS="a,b"), "as many workers on each"),
]


def test_mistakes_are_named():
    for environment, message in MISTAKES:
        with pytest.raises(UserError) as error:
            read_cluster(environment)
        assert message in str(error.value)


def test_slurm_fills_host_after_host_at_ports_of_the_job():
    cluster = read_cluster(slurm(2, SLURM_LOCALID="0"))
    port = 12_000 + 700 % 300 * 64
    assert cluster.addresses == tuple(f"gpu{host}:{port + place}" for host in ("01", "02") for place in (0, 1))
    assert (cluster.index, cluster.beside) == (2, (0, 2))


def test_slurm_may_have_other_numbers_of_tasks_on_each_host():
    environment = slurm(3, nodes="a[1-9]", SLURM_STEP_NODELIST="a[1-3]", SLURM_STEP_TASKS_PER_NODE="2,1(x2)")
    cluster = read_cluster(environment)
    assert [address.partition(":")[0] for address in cluster.addresses] == ["a1", "a1", "a2", "a3"]
    assert cluster.beside == (0, 1)


def test_torchrun_on_one_host_counts_ports_up_from_its_own():
    environment = torchrun(RANK="1", LOCAL_RANK="1", MASTER_ADDR="host", MASTER_PORT="29500")
    assert read_cluster(environment) == Cluster(("host:29500", "host:29501"), 1, "RANK")
    taken = {**environment, "TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert read_cluster(taken).addresses == ("host:29501", "host:29502")
    environment = torchrun(RANK="3", WORLD_SIZE="4", LOCAL_RANK="1", MASTER_PORT="1", HOSTS="a,b")
    assert read_cluster(environment) == Cluster(("a:1", "a:2", "b:3", "b:4"), 3, "RANK")


def test_tf_config_counts_before_slurm_and_slurm_before_rank():
    assert read_cluster({**torchrun(), **slurm(), **tf_config()}).source == "TF_CONFIG"
    assert read_cluster({**torchrun(), **slurm(), "TF_CONFIG": " "}).source == "SLURM"


def test_the_batch_must_be_shared_equally():
    assert cluster_of({"strategy": "none"}, tf_config()) is None
    assert cluster_of(SETTINGS, tf_config()) is not None
    with pytest.raises(UserError, match="cannot be shared equally by 2 workers. Expected trainer.batch_size=60 or"):
        cluster_of({**SETTINGS, "batch_size": 61}, tf_config())
    with pytest.raises(UserError, match="trainer.replicas=2 received with trainer.strategy=multi_worker"):
        cluster_of({**SETTINGS, "replicas": 2}, tf_config())


HOSTS = {
    "gpu[01-03,7],login": "gpu01 gpu02 gpu03 gpu7 login",
    "a[1-2]b[09-10]": "a1b09 a1b10 a2b09 a2b10",
    "n[1]-ib,m": "n1-ib m",
}


def test_lists_of_hosts_are_expanded():
    for text, hosts in HOSTS.items():
        assert expand_hosts(text) == hosts.split()
    for text in ("a[1", "a]", "a[x]", "a[1-]", ",a", "a[[1]]", "gpu[2-1]", ""):
        with pytest.raises(UserError, match="cannot be read"):
            expand_hosts(text)


def clusters(count):
    addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(count))
    return [Cluster(addresses, index, "TF_CONFIG") for index in range(count)]


def come(cluster, *, after=0.0, seconds=10.0):
    time.sleep(after)
    try:
        return meet(cluster, seconds)
    except (UserError, WorkersError) as error:
        return error


def test_all_go_on_when_the_last_has_come_and_the_port_is_free_again():
    first, second, third = clusters(3)
    with ThreadPoolExecutor(3) as pool:
        came = [pool.submit(come, second), pool.submit(come, first, after=0.2), pool.submit(come, third, after=0.6)]
        begun = time.monotonic()
        assert [each.result() for each in came] == [None] * 3
    assert time.monotonic() - begun > 0.5
    socket.create_server(("127.0.0.1", int(first.addresses[0].rpartition(":")[2]))).close()


def test_the_chief_names_those_who_do_not_come():
    first, second, third = clusters(3)
    with ThreadPoolExecutor(2) as pool:
        came = [pool.submit(come, first, seconds=0.6), pool.submit(come, third, seconds=1.2)]
        chief, other = (each.result() for each in came)
    assert f"worker 1 ({second.addresses[1]})" in str(chief)
    assert type(chief) is type(other) is WorkersError
    assert "worker 0 (" in str(other)


def test_a_stranger_and_a_second_worker_of_one_index_do_not_count():
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


def test_a_port_that_is_taken_is_told():
    first, _ = clusters(2)
    with socket.create_server(("", int(first.addresses[0].rpartition(":")[2]))), pytest.raises(UserError) as error:
        meet(first, 1.0)
    assert f"Worker 0 cannot listen at {first.addresses[0]}: Address already in use." in str(error.value)
