"""Workers wait for one another before TensorFlow starts."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from hookline.scripts.launch import free_ports
from hookline.trainer.errors import UserError, WorkersError
from hookline.trainer.replicas.cluster import Cluster
from hookline.trainer.replicas.start_cluster import meet


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
