"""The loop over chunks, told through a host hook that writes down what it sees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.toy import BATCH, SIZE, StatelessHook, toy_batch, toy_loop, toy_network
from trainer.errors import NonFiniteError, UnsavedError, WriteError
from trainer.hook import HostHook
from trainer.run.cadence import Cadence
from trainer.run.checkpoint import CheckpointStore
from trainer.run.checkpoint_content import write_checkpoint
from trainer.run.checkpoint_writer import Snapshot
from trainer.run.control import Best, Run
from trainer.run.fit import Fit
from trainer.run.interruption import Interrupted, Interruption
from trainer.run.resume import run_state
from trainer.run.state import run_variables
from trainer.step.evaluate import Evaluator


class Diary(HostHook):
    """Write down every call as (stage, step, split)."""

    def __init__(self, name: str = "diary") -> None:
        self.name = name
        self.calls: list[tuple] = []
        self.reports = []

    def state_dict(self):
        return {"calls": len(self.calls)}

    def on_fit_begin(self, run):
        self.calls.append(("begin", run.step))

    def on_chunk_end(self, run, report):
        if report is not None:
            self.calls.append(("train", run.step))
            self.reports.append(report)

    def on_evaluation_end(self, run, report):
        self.calls.append((report.split, run.step))
        self.reports.append(report)

    def before_save(self, run):
        self.calls.append(("save", run.step))


def toy_fit(tmp_path, hooks=(), graph_hooks=(), *, epochs: int = 2, report_every: int | None = None) -> Fit:
    network = toy_network(optimizer=keras.optimizers.Adam(0.05))
    loop = toy_loop(graph_hooks, network=network)
    total = epochs * SIZE // BATCH
    evaluators = [Evaluator(loop.trainer, toy_batch, SIZE // BATCH) for _ in range(2)]
    networks = {"model": network}
    run = Run(tmp_path, "toy", {}, networks, BATCH, total, SIZE / BATCH, "", Best("metric/accuracy", "max"))
    variables = run_variables([network], loop.trainer.hooks, loop.accumulators.variable)
    cadence = Cadence(total, SIZE / BATCH, 1, report_every)
    return Fit(run, loop, *evaluators, list(hooks), cadence, CheckpointStore(tmp_path / "checkpoints"), variables)


def test_reports_and_evaluations_come_once_an_epoch_and_the_test_once_at_the_end(tmp_path) -> None:
    diary = Diary()
    fit = toy_fit(tmp_path, [diary])
    fit.train()
    test = fit.finish()
    expected = [("begin", 0), ("train", 4), ("validation", 4), ("train", 8), ("validation", 8), ("test", 8)]
    assert diary.calls == expected
    assert test["weights"] == "final"
    assert 0.0 <= test["metric/accuracy"] <= 1.0
    assert fit.run.step == 8


def test_reports_average_their_own_steps_only(tmp_path) -> None:
    diary = Diary()
    fit = toy_fit(tmp_path, [diary], epochs=8)
    fit.train()
    reports = [report.values for report in diary.reports if report.split == "train"]
    assert fit.final == reports[-1]
    losses = [values["loss/total"] for values in reports]
    assert losses[-1] < 0.5 * losses[0]
    values = diary.reports[0].values
    assert values["opt/learning_rate"] == pytest.approx(0.05)
    assert values["time/images_per_second"] > 0


def test_each_report_has_the_share_of_its_own_steps_that_was_spent_waiting(tmp_path) -> None:
    diary = Diary()
    fit = toy_fit(tmp_path, [diary], epochs=3)
    chunks = iter([(9.0, 9.0), (0.5, 2.0), (0.5, 3.0), (6.0, 8.0), (0.0, 4.0)])  # waited and in all; the first set up
    clock = [0.0]
    ran = fit.loop.run

    def run(start, steps):
        result = ran(start, steps)
        fit.loop.waited, seconds = next(chunks)
        clock[0] += seconds
        return result

    fit.loop.run = run
    ends = iter([1, 2, 4, 8, 12])
    fit.cadence.next_edge = lambda *_: next(ends)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer.run.fit.time.perf_counter", lambda: clock[0])
        fit.train()
    shares = [report.values["time/waiting_share"] for report in diary.reports if report.split == "train"]
    assert shares == [1.0 / 5.0, 6.0 / 8.0, 0.0]
    assert fit.run.waiting_share == 7.0 / 17.0


def test_a_report_on_the_first_step_alone_tells_no_waiting_time(tmp_path) -> None:
    diary = Diary()
    toy_fit(tmp_path, [diary], epochs=1, report_every=1).train()
    first, second, *_ = (report.values for report in diary.reports if report.split == "train")
    assert "time/waiting_share" not in first
    assert 0.0 <= second["time/waiting_share"] < 1.0


def test_reports_may_come_more_often_than_evaluations(tmp_path) -> None:
    diary = Diary()
    toy_fit(tmp_path, [diary], report_every=3).train()
    assert [call for call in diary.calls if call[0] == "train"] == [("train", 3), ("train", 6), ("train", 8)]


class SaveAtStep(Diary):
    """Ask for a checkpoint."""

    def on_evaluation_end(self, run, report):
        super().on_evaluation_end(run, report)
        if report.split == "validation" and run.best.improved:
            run.control.save("best")


def test_checkpoint_that_a_hook_asks_for_is_written_and_tested_with(tmp_path) -> None:
    fit = toy_fit(tmp_path, [SaveAtStep()], epochs=6)
    fit.train()
    assert fit.store.tags() == {"best": f"step_{fit.run.best.step:08d}"}
    best = fit.store.load("best")
    kernel = fit.run.networks["model"].variables["toy/hidden/kernel"]
    kernel.assign(np.zeros(kernel.shape))
    assert fit.finish()["weights"] == "best"
    np.testing.assert_array_equal(kernel.numpy(), best.tensors["network/model/toy/hidden/kernel"])
    assert best.state["hooks"]["diary"]["calls"] > 0


def test_the_test_sees_the_hooks_state_of_the_best_step(tmp_path) -> None:
    class Counter(StatelessHook):
        variable = None

        def build(self, context):
            self.variable = tf.Variable(0, dtype=tf.int64)

        def state(self):
            return {"steps": self.variable}

        def update_ops(self, context):
            return [self.variable.assign(context.step + 1)]

    counter = Counter("counter")
    fit = toy_fit(tmp_path, [SaveAtStep()], [counter], epochs=3)
    fit.train()
    assert counter.variable.numpy() == fit.run.step
    counter.variable.assign(100)
    fit.finish()
    assert counter.variable.numpy() == fit.run.best.step


def test_the_test_is_made_as_at_the_step_of_its_weights(tmp_path) -> None:
    class Clock(StatelessHook):
        def evaluate(self, context):
            return {"clock": tf.cast(context.step, tf.float32)}

    fit = toy_fit(tmp_path, [SaveAtStep()], [Clock("clock")], epochs=6)
    fit.run.best.mode = "min"  # the first one stays the best
    fit.run.best.monitor = "metric/clock"
    fit.train()
    assert (fit.run.best.step, fit.run.step) == (4, 24)
    assert fit.finish()["metric/clock"] == 4.0
    final = toy_fit(tmp_path / "final", [Diary()], [Clock("clock")])
    final.train()
    assert final.finish()["metric/clock"] == 8.0


def test_chunk_ends_where_a_hook_wants_to_be_called(tmp_path) -> None:
    class Wish(Diary):
        def next_step(self, step):
            return 3 if step < 3 else None

        def on_chunk_end(self, run, report):
            self.calls.append(("edge", run.step))

    wish = Wish()
    toy_fit(tmp_path, [wish]).train()
    assert ("edge", 3) in wish.calls


def full_disk(monkeypatch: pytest.MonkeyPatch, room: Callable[[int], bool]) -> None:
    """Let checkpoints be written only at the steps for which there is room."""

    def write(path: Path, snapshot: Snapshot, *arguments: Any) -> None:
        if not room(snapshot.step):
            raise OSError(28, "No space left on device")
        write_checkpoint(path, snapshot, *arguments)

    monkeypatch.setattr("trainer.run.checkpoint.write_checkpoint", write)


def test_a_best_state_that_is_on_no_disk_ends_the_run_as_unsaved(tmp_path, monkeypatch) -> None:
    full_disk(monkeypatch, lambda step: step == 4)
    fit = toy_fit(tmp_path, [SaveAtStep()], epochs=6)
    with (
        pytest.warns(UserWarning, match="could not be written: No space left on device") as caught,
        pytest.raises(UnsavedError) as error,
    ):
        (fit.train(), fit.finish())
    assert len({str(each.message) for each in caught}) == len(caught)
    assert str(error.value) == (
        f"Not saved: 'best' (step {fit.run.best.step}): No space left on device. Step 4 is on disk. "
        f"Make room, then resume from step 4: python train.py resume={tmp_path}"
    )
    fit.name_what_is_saved()
    assert (fit.run.best.step, fit.run.best.values) == (4, fit.store.load("best").state["run"]["best"]["values"])
    full_disk(monkeypatch, lambda step: False)
    unsaved = toy_fit(tmp_path / "full", [SaveAtStep()])
    with pytest.warns(UserWarning, match="could not"), pytest.raises(UnsavedError, match="No checkpoint .* the start"):
        (unsaved.train(), unsaved.finish())
    unsaved.name_what_is_saved()
    assert (unsaved.run.best.step, unsaved.run.best.value) == (0, None)


def test_a_save_that_fails_is_made_good_at_the_end(tmp_path, monkeypatch) -> None:
    full_disk(monkeypatch, lambda step: False)
    fit = toy_fit(tmp_path, [SaveAtStep()], epochs=6)
    with pytest.warns(UserWarning, match="could not be written"):
        (fit.train(), fit.wait_for_checkpoints())
    full_disk(monkeypatch, lambda step: True)
    assert fit.finish()["weights"] == "best"
    assert fit.store.load("best").step == fit.run.best.step


def test_a_run_that_is_left_says_when_its_state_is_on_no_disk(tmp_path, monkeypatch) -> None:
    full_disk(monkeypatch, lambda step: False)
    for interruption, error in ((Interruption(0.0), UnsavedError), (Interruption(None, 15), Interrupted)):
        fit = toy_fit(tmp_path / error.__name__)
        fit.interruption = interruption
        with (
            pytest.warns(UserWarning, match="could not be written"),
            pytest.raises(error, match=r"after step 1 of 8\. Not saved: 'last' \(step 1\)"),
        ):
            fit.train()


def test_as_many_checkpoints_stay_as_a_hook_asks_for(tmp_path) -> None:
    class Keep(Diary):
        def on_chunk_end(self, run, report):
            run.control.keep_last = 3
            run.control.save("last")

    fit = toy_fit(tmp_path, [Keep()], epochs=6)
    fit.train()
    fit.wait_for_checkpoints()
    assert 1 <= len(list(fit.store.directory.glob("step_*"))) <= 3
    assert fit.store.keep_last == 3
    assert fit.store.load("last").step == fit.run.step


def test_stop_ends_the_run_after_an_evaluation(tmp_path) -> None:
    class Stop(Diary):
        def on_chunk_end(self, run, report):
            if run.step >= 2:
                run.control.stop("enough")

    stop = Stop()
    fit = toy_fit(tmp_path, [stop], epochs=50)
    fit.train()
    assert fit.run.step < 8
    assert stop.calls[-1] == ("validation", fit.run.step)


def test_veto_without_a_hook_that_acts_ends_the_run(tmp_path) -> None:
    class Veto(StatelessHook):
        def veto(self, context):
            return {"gradient/toy/hidden/kernel": tf.equal(context.step, 5)}

    fit = toy_fit(tmp_path, [Diary()], [Veto()])
    with pytest.raises(NonFiniteError, match="Step 5 was held back by gradient/toy/hidden/kernel"):
        fit.train()


def test_error_in_a_host_hook_names_it_and_the_step(tmp_path) -> None:
    class Broken(Diary):
        def on_evaluation_end(self, run, report):
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken") as caught:
        toy_fit(tmp_path, [Broken("broken_hook")]).train()
    assert "in hook broken_hook, stage on_evaluation_end, step 4" in caught.value.__notes__


def test_closing_stages_reach_every_hook(tmp_path) -> None:
    closed = []

    class Closing(Diary):
        def on_fit_end(self, run, summary):
            closed.append(self.name)
            if self.name == "first":
                raise ValueError("wrong")

    fit = toy_fit(tmp_path, [Closing("first"), Closing("second")])
    failures = fit.call_all("on_fit_end", fit.run, {})
    assert closed == ["first", "second"]
    assert [str(failure) for failure in failures] == ["wrong"]


def test_time_in_hooks_is_kept_by_name(tmp_path) -> None:
    fit = toy_fit(tmp_path, [Diary("a"), Diary("b")])
    fit.train()
    assert set(fit.seconds) == {"a", "b"}
    assert all(seconds > 0 for seconds in fit.seconds.values())


def test_the_first_warning_of_each_hook_is_shown_and_no_later_one(tmp_path) -> None:
    class Worried(Diary):
        def warning(self, values):
            return f"the loss is {'finite' if np.isfinite(values['loss/total']) else 'lost'}."

    class WorriedLater(StatelessHook):
        def warning(self, values):
            self.reports = getattr(self, "reports", 0) + 1
            return f"report {self.reports}." if self.reports >= 2 else None

    graph_hook = WorriedLater("graph_hook")
    fit = toy_fit(tmp_path, [graph_hook, Worried("worried")], [graph_hook], epochs=4)
    with pytest.warns(UserWarning, match="hook") as caught:
        fit.train()
    assert [str(each.message) for each in caught] == [
        "At step 4, the hook 'worried': the loss is finite.",
        "At step 8, the hook 'graph_hook': report 2.",
    ]
    assert graph_hook.reports == 2  # it is not asked again


class Advising(Diary):
    """Give advice before training."""

    def advise(self, run):
        return [f"{run.total_steps} steps.", f"{run.total_steps} steps.", "mend it."]


def test_advice_is_given_once_before_the_run_begins_and_stays_with_the_run(tmp_path) -> None:
    diary = Advising("worried")
    fit = toy_fit(tmp_path, [diary], epochs=1)
    with pytest.warns(UserWarning, match="The hook 'worried'") as caught:
        fit.train()
    lines = ["The hook 'worried': 4 steps.", "The hook 'worried': mend it."]
    assert [str(each.message) for each in caught] == lines == fit.run.warnings
    resumed = toy_fit(tmp_path / "again", [Advising("worried")], epochs=1)
    resumed.run.warnings = list(run_state(fit)["warnings"])
    resumed.train()  # a second time would be an error
    assert resumed.run.warnings == lines


def test_an_error_in_advice_names_the_hook(tmp_path) -> None:
    class Broken(Diary):
        def advise(self, run):
            raise KeyError("rate")

    with pytest.raises(KeyError) as error:
        toy_fit(tmp_path, [Broken("broken")], epochs=1).train()
    assert "in hook broken, stage advise" in error.value.__notes__[0]


class Unwritten(Diary):
    """Fail to write at a stage."""

    def __init__(self, stage: str, error: Exception) -> None:
        super().__init__("unwritten")
        self.stage, self.error = stage, error

    def on_fit_begin(self, run):
        if self.stage == "on_fit_begin":
            raise self.error

    def on_chunk_end(self, run, report):
        super().on_chunk_end(run, report)
        if self.stage == "on_chunk_end":
            raise self.error

    def on_fit_end(self, run, summary):
        if self.stage == "on_fit_end":
            raise self.error


@pytest.mark.parametrize("stage", ["on_fit_begin", "on_chunk_end", "on_fit_end"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), WriteError("No room. Make some.")])
def test_what_a_hook_cannot_write_is_told_once_and_the_run_goes_on(stage: str, error: Exception, tmp_path) -> None:
    diary = Diary()
    fit = toy_fit(tmp_path, [Unwritten(stage, error), diary])
    with pytest.warns(UserWarning, match="the hook 'unwritten': .*(No space|No room).* The run goes on") as warned:
        (fit.train(), fit.call_all("on_fit_end", fit.run, {}))
    assert len(warned) == 1
    assert fit.run.step == 8
    assert ("validation", 8) in diary.calls  # the hooks after it were called


def test_other_faults_of_a_hook_still_end_the_run(tmp_path) -> None:
    with pytest.raises(ZeroDivisionError):
        toy_fit(tmp_path, [Unwritten("on_chunk_end", ZeroDivisionError())]).train()
