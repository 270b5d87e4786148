"""A logger to a remote service sends each step once and never blocks a run."""

import json
import threading
import warnings

import pytest

from hookline.hooks.monitors.metrics_jsonl import MetricsJsonl
from hookline.hooks.monitors.remote import RemoteLogger
from hookline.trainer.run.control import Report
from tests.support.refusals import assert_refused

SUMMARY = {"status": "completed", "final": {}, "best": {}, "test": {"metric/accuracy": 0.5}}


class Service(RemoteLogger):
    """Send to a dictionary, which collects what all processes have sent."""

    package, name = "json", "service"

    def __init__(self, sent, *, fails_at=-1, hangs=None, timeout=10.0):
        super().__init__(timeout)
        self.sent, self.fails_at, self.hangs, self.end = sent, fails_at, hangs, None

    def connect(self, identifier, reports):
        if self.hangs is not None:
            self.hangs.wait()
        self.identifier = identifier
        return max(self.sent, default=-1)

    def send(self, step, values):
        if step == self.fails_at:
            raise ConnectionError("no\nroute")
        assert step not in self.sent
        self.sent[step] = dict(values)

    def finish(self, complete, reached):
        self.end = complete, reached


def report(hooks, run, step, split="train", value=1.0):
    for hook in hooks:
        stage = hook.on_chunk_end if split == "train" else hook.on_evaluation_end
        stage(run, Report(step, split, {"loss/total": value, "loss/part": float("nan")}))


def test_each_step_is_sent_once_even_if_the_run_was_killed(make_run) -> None:
    run, sent = make_run(), {}
    run.recipe, run.config = "bnn", {"seed": 3, "hooks": {}}
    first = [Service(sent), MetricsJsonl()]
    for hook in first:
        hook.on_fit_begin(run)
    for step in (10, 20, 30):
        report(first, run, step, value=float(step))
        report(first, run, step, "validation", value=-float(step))
    first[0]._queue.put(None)  # killed: step 20 has been sent, and step 30 waits for the next report
    first[0]._thread.join()
    assert sent == {step: {"train/loss/total": float(step), "validation/loss/total": -float(step)} for step in (10, 20)}
    assert json.loads((run.directory / "json.json").read_text()) == {"id": first[0].identifier}

    run.step, run.journal.resumed_at = 30, [30]  # the checkpoint is later than what was sent
    again = [Service(sent), MetricsJsonl()]
    for hook in again:
        hook.on_fit_begin(run)
    report(again, run, 40)
    again[0].on_fit_end(run, SUMMARY)
    assert again[0].identifier == first[0].identifier
    assert (sorted(sent), sent[30]) == ([10, 20, 30, 40], {"train/loss/total": 30.0, "validation/loss/total": -30.0})
    assert again[0].end == (True, {"summary/test/accuracy": 0.5})
    assert (again[0].tags, again[0].settings["seed"]) == (["bnn"], 3)

    run.step = 20  # the checkpoint is earlier than what was sent: steps are repeated
    third = Service(sent)
    third.on_fit_begin(run)
    for step in (30, 40, 50):
        report([third], run, step)
    third.on_fit_end(run, SUMMARY)
    assert sorted(sent) == [10, 20, 30, 40, 50]


def test_failing_service_gives_one_warning(make_run) -> None:
    run, sent = make_run(), {}
    run.config = {"hooks": {}}
    hook = Service(sent, fails_at=20)
    hook.on_fit_begin(run)
    for step in (10, 20):
        report([hook], run, step)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report([hook], run, 30)
        threads = [each for each in threading.enumerate() if each.name == "service"]
        for thread in threads:
            thread.join()
        for step in (40, 50):
            report([hook], run, step)
        hook.on_fit_end(run, SUMMARY)
    (warning,) = caught
    assert "has stopped sending reports: ConnectionError: no route" in str(warning.message)
    assert (list(sent), hook.end) == ([10], None)


def test_hanging_service_gives_a_warning_at_the_end_of_the_fit(make_run) -> None:
    run, answer = make_run(), threading.Event()
    run.config = {"hooks": {}}
    hook = Service({}, hangs=answer, timeout=0.1)
    hook.on_fit_begin(run)
    report([hook], run, 10)
    with pytest.warns(UserWarning, match=r"no answer for 0\.1 s"):
        hook.on_fit_end(run, SUMMARY)
    answer.set()


def test_missing_package_is_named_in_the_error(make_run) -> None:
    hook = Service({})
    hook.package = "no_such_package"
    assert_refused(r"needs the package no_such_package, .*'\.\[no_such_package\]'", hook.on_fit_begin, make_run())
