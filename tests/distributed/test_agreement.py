"""What workers tell each other, with threads instead of processes: orders, signals, differences, variables."""

import signal
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.errors import Interrupted, NonFiniteError, UserError, WorkersError
from hookline.trainer.replicas.cluster import Cluster
from hookline.trainer.replicas.replica import Group, Messages
from hookline.trainer.run import workers as module
from hookline.trainer.run.control import Cadence, Interruption
from hookline.trainer.run.workers import ClusterWorkers, abort_after, follow, is_loss


class Hub:
    def __init__(self, count):
        self.count = count
        self._given = {}
        self._sum = np.zeros(0, np.int64)
        self._all = threading.Barrier(count, action=self._add, timeout=20)
        self._read = threading.Barrier(count, timeout=20)

    def _add(self):
        self._sum = np.sum([self._given[index] for index in range(self.count)], axis=0)

    def add(self, index, values):
        self._given[index] = values
        self._all.wait()
        result = self._sum.copy()
        self._read.wait()
        return result


class HubMessages(Messages):
    def __init__(self, index, hub):
        super().__init__(index, Group(hub.count))
        self._hub = hub

    def add(self, values):
        assert values.dtype == np.int64
        return self._hub.add(self.index, values)


def in_threads(count, work):
    hub = Hub(count)

    def run(index):
        try:
            return work(index, hub)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def hub_workers(index, hub):
    cluster = Cluster(tuple(f"127.0.0.1:{number}" for number in range(1, hub.count + 1)), index, "TF_CONFIG")
    return ClusterWorkers(cluster, HubMessages(index, hub), 0.0)


@pytest.mark.parametrize("size", [0, 1, 4095, 2**20 + 3])
def test_bytes_of_any_length_arrive_whole(size):
    data = [np.random.default_rng(index).bytes(size + index) for index in range(3)]
    told = in_threads(3, lambda index, hub: HubMessages(index, hub).gather(data[index]))
    assert told == [data] * 3
    assert in_threads(3, lambda index, hub: HubMessages(index, hub).from_first(data[index])) == [data[0]] * 3


def test_request_to_end_on_one_worker_reaches_all():
    for interruption, asked in (
        (Interruption(signal_number=signal.SIGTERM), ("SIGTERM on worker 2", signal.SIGTERM)),
        (Interruption(max_seconds=0.0), ("trainer.max_seconds on worker 2", None)),
    ):

        def work(index, hub, interruption=interruption):
            workers = hub_workers(index, hub)
            return workers.next_order(interruption if index == 2 else Interruption()) if index else workers.run_to(5)

        found, *orders = in_threads(3, work)
        assert found == asked
        assert all(order.asked[2] and not order.asked[1] for order in orders)


class Parts:
    def __init__(self, variables):
        self.seen = []
        self.settings = {"max_seconds": None}
        self.trainer, self.variables, self.cadence = variables, variables, Cadence(100, 10.0, 1, report_every_steps=5)
        accumulators = SimpleNamespace(reset=lambda: self.seen.append("reset"))
        self.loop = SimpleNamespace(trainers=[], run=self.run, accumulators=accumulators)

    def run(self, start, steps):
        self.seen.append((start, steps))
        return start + steps, []


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    monkeypatch.setattr(module, "trainer_variables", lambda variables: variables)
    monkeypatch.setattr(module, "facts_of", lambda run: dict(run.config))


def follow_orders(give, variables=None):
    def work(index, hub):
        workers = hub_workers(index, hub)
        workers._started = True
        if index == 0:
            return give(workers)
        parts = Parts(variables or {})
        follow(parts, workers)
        return parts.seen

    return in_threads(2, work)


def test_worker_runs_the_chiefs_orders_and_takes_its_variables():
    values = {
        "float": np.array([np.nan, -0.0, 1e-45, np.inf], np.float32),
        "seed": np.array([2**32 - 1, 7], np.uint32),
        "flag": np.array([[True, False, True]]),
        "count": np.array(-(2**60)),
        "half": np.array([0.1, -0.0], np.float16),
        "empty": np.zeros([0, 2], np.float32),
        "large": np.random.default_rng(0).normal(size=[700, 300]).astype(np.float32),
    }
    chief = {key: tf.Variable(value) for key, value in values.items()}
    other = {key: tf.Variable(np.zeros_like(value)) for key, value in values.items()}

    def give(workers):
        assert workers.run_to(4) is None
        workers.move(5)  # a step was skipped
        assert workers.run_to(9) is None
        assert workers.run_to(10) is None
        workers.take(30, chief)
        assert workers.run_to(31) is None
        workers.leave(None)

    assert follow_orders(give, other)[1] == [(0, 4), "reset", (5, 4), (9, 1), "reset", (30, 1)]
    for key, value in values.items():
        assert other[key].numpy().tobytes() == value.tobytes()


def test_diverged_variables_are_reported_and_in_the_summary():
    chief, other = ({"kernel": tf.Variable([1.0, value])} for value in (2.0, np.nextafter(np.float32(2), 3)))

    def give(workers):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            workers.check_equal(chief)
        workers.leave(None)
        return [str(each.message) for each in caught], workers.summary()

    told, summary = follow_orders(give, other)[0]
    assert "The variables of Worker 1 are not those of worker 0" in told[0]
    assert summary == {"workers": {"count": 2, "equal": False}}
    other["kernel"].assign(chief["kernel"])
    assert follow_orders(give, other)[0] == ([], {"workers": {"count": 2, "equal": True}})


@pytest.mark.parametrize(
    ("error", "kind", "message", "number"),
    [
        (Interrupted("Ended by SIGTERM.", signal.SIGTERM), Interrupted, "has saved the run", signal.SIGTERM),
        (KeyboardInterrupt(), Interrupted, "has saved the run", signal.SIGINT),
        (NonFiniteError("NaN"), WorkersError, "Worker 0 failed: its output says why", None),
    ],
)
def test_workers_end_like_the_chief(error, kind, message, number):
    raised = follow_orders(lambda workers: workers.leave(error))[1]
    assert type(raised) is kind
    assert message in str(raised)
    assert getattr(raised, "signal_number", None) == number


def meet(tell):
    def work(index, hub):
        workers = hub_workers(index, hub)
        tell(index, workers)
        return workers.directory

    return in_threads(3, work)


def run_of(config, directory=Path()):
    return SimpleNamespace(config=config, directory=directory)


def test_equal_workers_share_the_directory_and_a_differing_one_is_named(tmp_path):
    told = meet(lambda index, workers: workers.compare(run_of({"seed": "0"}, tmp_path / str(index))))
    assert told == [str(tmp_path / "0")] * 3
    told = meet(lambda index, workers: workers.compare(run_of({"seed": str(index // 2)})))
    assert all(type(each) is WorkersError for each in told)
    (text,) = {str(each) for each in told}
    assert "Worker 2 differs from worker 0 in seed: 1 there, 0 on worker 0" in text


@pytest.mark.parametrize(
    ("error", "complete", "kind", "words", "number"),
    [
        (UserError("No such data."), False, WorkersError, "Worker 0 ended before the start: No such data.", None),
        (Interrupted("Ended by SIGTERM.", signal.SIGTERM), False, Interrupted, "", signal.SIGTERM),
        (None, True, Interrupted, "nothing is left to do", None),
    ],
)
def test_chief_that_ends_before_the_start_ends_all(error, complete, kind, words, number):
    told = meet(
        lambda index, workers: workers.compare(run_of({})) if index else workers.leave(error, complete=complete)
    )
    for each in told[1:]:
        assert (type(each), getattr(each, "signal_number", None)) == (kind, number)
        assert words in str(each)


def test_replicas_are_counted_over_all_workers(monkeypatch):
    monkeypatch.setattr(module, "share_of_devices", lambda place, workers: [f"/GPU:{n}" for n in range(1 + place)])
    found = in_threads(3, lambda index, hub: hub_workers(index, hub).replicas({"batch_size": 12}))
    indices = [[0], [1, 2], [3, 4, 5]]
    assert [[(each.index, each.count) for each in own] for own in found] == [[(n, 6) for n in own] for own in indices]
    assert [each.device for each in found[1]] == ["/GPU:0", "/GPU:1"]
    refused = in_threads(3, lambda index, hub: hub_workers(index, hub).replicas({"batch_size": 13}))
    assert all("trainer.batch_size=13 cannot be cut into equal parts for 6 replicas" in str(each) for each in refused)


def test_lost_worker_is_reported_with_how_to_resume():
    def work(index, hub):
        workers = hub_workers(index, hub)
        workers.directory = "runs/a"
        with workers.watching():
            raise tf.errors.UnavailableError(None, None, "Collective ops is aborted by: /job:worker/task:1")

    raised = in_threads(3, work)[0]
    assert type(raised) is WorkersError
    assert str(raised).startswith("Workers 1 and 2 are gone")  # nobody listens at these addresses
    assert "resume=runs/a" in str(raised)
    assert not is_loss(tf.errors.InvalidArgumentError(None, None, "Incompatible shapes"))  # an error of the step itself
    assert is_loss(tf.errors.DeadlineExceededError(None, None, "Waited"))


def test_wait_beyond_the_timeout_is_aborted(monkeypatch):
    calls = []

    class Context:
        def abort_collective_ops(self, code, message):
            calls.append((code, message))

    monkeypatch.setattr(module.context, "context", Context)
    with abort_after(0.02):
        module.threading.Event().wait(0.2)
    assert calls == [(tf.errors.DEADLINE_EXCEEDED, "Waited for 0.02 s (trainer.worker_timeout)")]
    with abort_after(0.05), abort_after(0):
        pass
    module.threading.Event().wait(0.1)
    assert len(calls) == 1
