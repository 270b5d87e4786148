"""Each report tells where the time since the one before it went, by a clock that the test moves."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.unit.run.test_fit import Diary, toy_fit
from trainer.hook import HostHook
from trainer.run.fit import Fit, report_names
from trainer.run.report_times import ReportTimes, time_names

STEP, CHUNK_END, EVALUATION, SAVE, BEFORE_SAVE, BEGIN = 0.01, 0.003, 0.5, 0.2, 0.07, 100.0


class Clock:
    """Tell a time that moves by hand alone."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def slowed(self, function, seconds):
        """Return a function that takes so many seconds; of its arguments, where that is a function."""

        def run(*arguments):
            result = function(*arguments)
            self.now += seconds(*arguments) if callable(seconds) else seconds
            return result

        return run


class Busy(Diary):
    """Take time in every stage, and save after each evaluation."""

    def __init__(self, clock: Clock) -> None:
        super().__init__("busy")
        self.clock = clock

    def on_fit_begin(self, run):
        self.clock.now += BEGIN

    def on_chunk_end(self, run, report):
        super().on_chunk_end(run, report)
        self.clock.now += CHUNK_END

    def on_evaluation_end(self, run, report):
        run.control.save("last")

    def before_save(self, run):
        self.clock.now += BEFORE_SAVE


class Silent(HostHook):
    """Do something at the end alone."""

    name = "silent"

    def state_dict(self):
        return {}

    def on_fit_end(self, run, summary):
        raise NotImplementedError


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Fit, list[dict[str, float]], list[float]]:
    """Return a fit of four epochs of four steps, its reports, and the clock at each."""
    clock = Clock()
    busy = Busy(clock)
    fit = toy_fit(tmp_path_factory.mktemp("timed"), [busy, Silent()], epochs=4)
    fit.loop.run = clock.slowed(fit.loop.run, lambda start, steps: STEP * steps * (10 if start == 0 else 1))
    fit.validation.run = clock.slowed(fit.validation.run, EVALUATION)
    fit.store.save = clock.slowed(fit.store.save, SAVE)
    moments: list[float] = []
    report = fit._report

    def noted() -> object:
        moments.append(clock.now)
        return report()

    fit._report = noted
    ends = iter([1, 3, 4, 8, 10, 12, 16])
    fit.cadence.next_edge = lambda *_: next(ends)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer.run.fit.time.perf_counter", clock)
        fit.train()
    return fit, [each.values for each in busy.reports if each.split == "train"], moments


def test_a_report_tells_the_time_since_the_one_before_it(timed) -> None:
    _, (first, second, third, last), _ = timed
    for values in (first, second, third, last):
        assert values["time/step_ms"] == pytest.approx(1000 * STEP)  # without the first, slow one
    for values in (second, third, last):
        assert values["time/evaluation_ms"] == pytest.approx(1000 * EVALUATION)
        assert values["time/save_ms"] == pytest.approx(1000 * SAVE)
    hooks = [values["time/hooks_ms/busy"] / 1000 for values in (first, second, third, last)]
    # The begin is no part of training; the hook's time at a report is in the next one.
    assert hooks == pytest.approx(
        [2 * CHUNK_END, CHUNK_END + BEFORE_SAVE, 2 * CHUNK_END + BEFORE_SAVE, CHUNK_END + BEFORE_SAVE]
    )


def test_what_did_not_happen_is_not_told(timed) -> None:
    _, (first, *_), _ = timed
    assert {"time/evaluation_ms", "time/save_ms"}.isdisjoint(first)
    assert not any("silent" in name for name in first)


def test_the_parts_are_all_of_the_time_between_two_reports(timed) -> None:
    _, reports, moments = timed
    steps = [4, 4, 4]
    for values, count, start, end in zip(reports[1:], steps, moments, moments[1:], strict=False):
        parts = [count * values["time/step_ms"], values["time/evaluation_ms"], values["time/save_ms"]]
        assert sum(parts) + values["time/hooks_ms/busy"] == pytest.approx(1000 * (end - start))


def test_the_names_are_known_before(timed) -> None:
    fit, reports, _ = timed
    names = report_names(fit.loop.accumulators.names, fit.loop.trainer, fit.host_hooks)
    assert set(names) == set().union(*reports)
    assert time_names(fit.host_hooks)[-1] == "time/hooks_ms/busy"


def test_a_report_without_steps_tells_no_time_of_them() -> None:
    run = SimpleNamespace(waited_seconds=3.0, train_seconds=5.0, timed_steps=7)
    times = ReportTimes()
    times.begin(run, {"busy": 2.0})
    assert times.since_last(run, {"busy": 2.5, "gate": 1.0}, [Diary("busy")]) == {"time/hooks_ms/busy": 500.0}


def test_a_hook_that_was_never_called_took_no_time() -> None:
    run = SimpleNamespace(waited_seconds=0.0, train_seconds=0.0, timed_steps=0)
    assert ReportTimes().since_last(run, {}, [Diary("busy")]) == {"time/hooks_ms/busy": 0.0}


def test_an_evaluation_that_fails_leaves_the_error_alone() -> None:
    def broken() -> None:
        raise ValueError("broken")

    times = ReportTimes()
    with pytest.raises(ValueError, match="broken"), times.evaluation():
        broken()
    assert times.evaluating == 0.0
