"""The cost of a sum over workers on a slow network: a proxy in front of each worker delays incoming packets."""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from hookline.scripts.launch import free_ports

DELAYS = (0.0, 0.01, 0.02)
"""Seconds that each packet takes from one worker to another."""
CHAINED, TIMES, LAYERS = 4, 7, 8


class SlowNetwork:
    """Ports that forward everything to the ports of workers, after an adjustable delay."""

    def __init__(self, ports):
        self.delay, self.ports = 0.0, free_ports(len(ports))
        self._loop = asyncio.new_event_loop()
        for port, target in zip(self.ports, ports, strict=True):
            self._loop.run_until_complete(asyncio.start_server(self._meeting(target), "127.0.0.1", port))
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def _meeting(self, target):
        async def meet(reader, writer):
            with suppress(OSError):
                there = await asyncio.open_connection("127.0.0.1", target)
                await asyncio.gather(self._pass_on(reader, there[1]), self._pass_on(there[0], writer))
            writer.close()

        return meet

    async def _pass_on(self, reader, writer):
        waiting = asyncio.Queue()

        async def deliver():
            while data := (item := await waiting.get())[1]:
                await asyncio.sleep(item[0] - self._loop.time())
                writer.write(data)
            writer.close()

        delivery = asyncio.create_task(deliver())
        data = b"begin"
        while data:
            data = await reader.read(2**16)
            waiting.put_nowait((self._loop.time() + self.delay, data))
        await delivery


def work(index, addresses):
    """Measure in one of the processes; the first prints a line for each delay, and waits for the next to be set."""
    import tensorflow as tf

    from hookline.trainer.replicas import cluster
    from hookline.trainer.replicas.replica import Collectives, Group

    cluster.meet = lambda _: None  # every worker has other addresses
    cluster.start_cluster(cluster.Cluster(tuple(addresses), index, "TF_CONFIG"))
    collectives, count = Collectives(Group(len(addresses))), len(addresses)
    weights = tf.random.stateless_normal([512, 512], [0, 0]) / 512

    @tf.function(autograph=False)
    def chain(value):
        for _ in range(CHAINED):
            value = collectives.sum([value / count])[0]
        return value

    @tf.function(autograph=False)
    def backward(value, *, overlaps, sums=True):
        parts = []
        for _ in range(LAYERS):
            value = tf.tanh(value @ weights)
            part = value[:64]
            parts += collectives.sum([part]) if overlaps else [part]
        return collectives.sum(parts) if sums and not overlaps else parts

    def seconds(call, *arguments, **options):
        took = []
        for _ in range(TIMES + 2):
            begun = time.perf_counter()
            call(*arguments, **options)
            took.append(time.perf_counter() - begun)
        return statistics.median(took[2:])

    for _ in DELAYS:
        found = {f"{size} bytes": seconds(chain, tf.zeros([size // 4])) / CHAINED for size in (64, 2**20)}
        if count == 2:
            found["backward"] = seconds(backward, weights, overlaps=False, sums=False)
            found["one sum after it"] = seconds(backward, weights, overlaps=False)
            found["a sum for each layer"] = seconds(backward, weights, overlaps=True)
        if index == 0:
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()
            sys.stdin.readline()
        chain(tf.zeros([16]))  # all wait here for the next delay


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 4, 8])
def test_message_delay_grows_with_the_hops_of_the_ring(count):
    ports = free_ports(count)
    network = SlowNetwork(ports)
    workers = []
    for index in range(count):
        there = [ports[each] if each == index else network.ports[each] for each in range(count)]
        arguments = [str(index), *(f"127.0.0.1:{port}" for port in there)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE} if index == 0 else {}
        environment = {**os.environ, "TF_NUM_INTRAOP_THREADS": "1"}
        workers.append(subprocess.Popen([sys.executable, __file__, *arguments], env=environment, text=True, **pipes))
    try:
        found = []
        for delay in DELAYS:
            network.delay = delay
            found.append(json.loads(workers[0].stdout.readline()))
            sys.stderr.write(f"{count} workers, delay {1000 * delay:g} ms: {found[-1]}\n")
            network.delay = DELAYS[len(found) % len(DELAYS)]
            workers[0].stdin.write("\n")
            workers[0].stdin.flush()
        assert [each.wait(60) for each in workers] == [0] * count
    finally:
        for each in workers:
            each.kill()
            each.communicate()
    for size in ("64 bytes", "1048576 bytes"):
        hops = (found[-1][size] - found[0][size]) / DELAYS[-1]
        assert 0.6 * 2 * (count - 1) < hops < 2 * (count - 1) + 2
    if count == 2:
        assert found[-1]["one sum after it"] < found[-1]["a sum for each layer"]


if __name__ == "__main__":
    work(int(sys.argv[1]), sys.argv[2:])
