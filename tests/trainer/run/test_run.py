"""The loop over chunks, as a host hook sees it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hookline.trainer.config.stored import PYTHON
from hookline.trainer.errors import Interrupted, NonFiniteError, UnsavedError
from hookline.trainer.hook import Declaration, Evaluated, HostHook
from hookline.trainer.run.checkpoint_files import write_checkpoint
from hookline.trainer.run.control import Interruption
from hookline.trainer.run.session import complete
from tests.support.runs import toy_run
from tests.support.toy import StatelessHook, toy_loop, toy_network


@pytest.fixture(scope="module")
def loop():
    """Return a traced loop, shared by the runs without graph hooks."""
    return toy_loop([], network=toy_network(optimizer=keras.optimizers.Adam(0.05)))


class Diary(HostHook):
    def __init__(self, name="diary"):
        self.name = name
        self.calls = []
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


def test_reports_come_once_per_epoch_and_the_test_once_at_the_end(loop, tmp_path):
    diary = Diary()
    run = toy_run(tmp_path, [diary])
    run.fit()
    test = run.finish()
    first, last = (report.values for report in diary.reports if report.split == "train")
    assert run.journal.final == last
    assert last["loss/total"] < first["loss/total"]  # the average of its own steps
    assert first["opt/learning_rate"] == pytest.approx(0.05)
    expected = [("begin", 0), ("train", 4), ("validation", 4), ("train", 8), ("validation", 8), ("test", 8)]
    assert (diary.calls, run.step, test["weights"]) == (expected, 8, "final")
    assert 0.0 <= test["metric/accuracy"] <= 1.0
    often = Diary()
    toy_run(tmp_path, [often], loop=loop, report_every=3).fit()
    assert [call for call in often.calls if call[0] == "train"] == [("train", 3), ("train", 6), ("train", 8)]


class SaveBest(Diary):
    def on_fit_begin(self, run):
        run.control.keep_last = 3

    def on_evaluation_end(self, run, report):
        super().on_evaluation_end(run, report)
        if report.split == "validation" and run.best.improved:
            run.control.save("best")


def test_final_test_uses_weights_state_and_step_of_the_best_checkpoint(tmp_path):
    class Counter(StatelessHook):
        variable = None

        def build(self, context):
            self.variable = tf.Variable(0, dtype=tf.int64)

        def declare(self):
            return Declaration({"steps": self.variable})

        def update_ops(self, context):
            return [self.variable.assign(context.step + 1)]

        def evaluate(self, context):
            return Evaluated({"clock": tf.cast(context.step, tf.float32)})

    counter = Counter("counter")
    run = toy_run(tmp_path, [SaveBest()], [counter], epochs=6)
    run.best.mode, run.best.monitor = "min", "metric/clock"  # the first one stays the best
    run.fit()
    assert (run.best.step, run.step, counter.variable.numpy()) == (4, 24, 24)
    assert run._store.tags() == {"best": "step_00000004"}
    best = run._store.load("best")
    kernel = run.networks["model"].variables["toy/hidden/kernel"]
    kernel.assign(np.zeros(kernel.shape))
    test = run.finish()
    assert (test["weights"], test["metric/clock"], counter.variable.numpy()) == ("best", 4.0, 4)
    np.testing.assert_array_equal(kernel.numpy(), best.tensors["network/model/toy/hidden/kernel"])
    assert (best.state["hooks"]["diary"]["calls"] > 0, run._store.keep_last) == (True, 3)
    (tmp_path / "checkpoints" / "step_00000004" / "tensors.npz").write_bytes(b"")
    with pytest.warns(UserWarning, match="tensors.npz is damaged.* It is set aside as damaged_step_00000004"):
        assert run.finish()["weights"] == "final"


def test_chunk_ends_at_a_hook_step_and_stop_comes_after_evaluation(loop, tmp_path):
    class Pausing(Diary):
        def next_step(self, step):
            return 3 if step < 3 else None

        def on_chunk_end(self, run, report):
            self.calls.append(("edge", run.step))
            if run.step >= 2:
                run.control.stop("enough")

    pausing = Pausing()
    run = toy_run(tmp_path, [pausing], loop=loop, epochs=50)
    run.fit()
    assert run.step == 3
    assert pausing.calls[-2:] == [("edge", 3), ("validation", 3)]


def full_disk(monkeypatch, room):
    def write(path, snapshot, *arguments):
        if not room(snapshot.step):
            raise OSError(28, "No space left on device")
        write_checkpoint(path, snapshot, *arguments)

    monkeypatch.setattr("hookline.trainer.run.checkpoint_files.write_checkpoint", write)


def test_unsaved_best_state_ends_the_run_with_unsaved_error(loop, tmp_path, monkeypatch):
    full_disk(monkeypatch, lambda step: step == 4)
    run = toy_run(tmp_path, [SaveBest()], epochs=6)  # of a network that still improves
    with (
        pytest.warns(UserWarning, match="could not be written: No space left on device") as caught,
        pytest.raises(UnsavedError, match=rf"'best' \(step \d+\).*resume from step 4: .*resume={tmp_path}"),
    ):
        (run.fit(), run.finish())
    assert len({str(each.message) for each in caught}) == len(caught)
    run.name_what_is_saved()
    assert (run.best.step, run.best.values) == (4, run._store.load("best").state["run"]["best"]["values"])
    full_disk(monkeypatch, lambda step: False)
    unsaved = toy_run(tmp_path / "full", [SaveBest()], loop=loop)
    unsaved.config["task"] = {"_target_": PYTHON}
    how = r"No checkpoint .* the start: fit\(\.\.\., resume=True\) in Python"
    with pytest.warns(UserWarning, match="could not"), pytest.raises(UnsavedError, match=how):
        (unsaved.fit(), unsaved.finish())
    unsaved.name_what_is_saved()
    assert (unsaved.best.step, unsaved.best.value) == (0, None)


def test_failed_save_is_retried_at_the_end_and_reported_if_it_fails_again(loop, tmp_path, monkeypatch):
    full_disk(monkeypatch, lambda step: False)
    for interruption, error in ((Interruption(0.0), UnsavedError), (Interruption(None, 15), Interrupted)):
        run = toy_run(tmp_path / error.__name__, loop=loop)
        with pytest.warns(UserWarning, match="could not"), pytest.raises(error, match=r"Not saved: 'last' \(step 1\)"):
            run.fit(interruption)
    run = toy_run(tmp_path, [SaveBest()], loop=loop)
    with pytest.warns(UserWarning, match="could not be written"):
        (run.fit(), run.wait_for_checkpoints())
    full_disk(monkeypatch, lambda step: True)
    assert run.finish()["weights"] == "best"
    assert run._store.load("best").step == run.best.step


def test_veto_without_a_handling_hook_ends_the_run(tmp_path):
    veto = StatelessHook()
    veto.veto = lambda context: {"gradient/toy/hidden/kernel": tf.equal(context.step, 5)}
    with pytest.raises(NonFiniteError, match="Step 5 .*gradient/toy/hidden/kernel"):
        toy_run(tmp_path, [Diary()], [veto]).fit()


def test_error_names_its_hook_and_all_hooks_are_closed(loop, tmp_path):
    closed = []

    class Broken(Diary):
        def on_evaluation_end(self, run, report):
            raise RuntimeError("broken")

        def on_fit_end(self, run, summary):
            closed.append((self.name, (run.directory / "summary.json").exists()))
            if self.name == "first":
                raise ValueError("wrong")

    with pytest.raises(RuntimeError, match="broken") as caught:
        complete(toy_run(tmp_path, [Broken("broken_hook")], loop=loop))
    assert "in hook broken_hook, stage on_evaluation_end, step 4" in caught.value.__notes__
    run = toy_run(tmp_path, [Broken("first"), Broken("second")], loop=loop)
    assert [str(failure) for failure in run.call("on_fit_end", {}, closing=True)] == ["wrong"]
    assert closed == [("broken_hook", False), ("first", True), ("second", True)]  # no summary before all have ended
    with pytest.raises(UnsavedError, match=r"Cannot write .*summary\.json"):
        complete(toy_run(tmp_path / "absent", loop=loop))


def test_only_the_first_warning_of_each_hook_is_shown(tmp_path):
    class Worried(Diary):
        def warning(self, values):
            return f"the loss is {'finite' if np.isfinite(values['loss/total']) else 'lost'}."

    class WorriedLater(StatelessHook):
        def warning(self, values):
            self.reports = getattr(self, "reports", 0) + 1
            return f"report {self.reports}." if self.reports >= 2 else None

    graph_hook = WorriedLater("graph_hook")
    run = toy_run(tmp_path, [graph_hook, Worried("worried")], [graph_hook], epochs=4)
    with pytest.warns(UserWarning, match="hook") as caught:
        run.fit()
    assert [str(each.message).partition(": ")[2] for each in caught] == ["the loss is finite.", "report 2."]
    assert graph_hook.reports == 2  # it is not asked again


def test_draw_that_a_resumed_run_would_not_repeat_is_reported(tmp_path):
    class Draws(StatelessHook):
        def transform_gradients(self, gradients, context):
            return {name: value + 0.0 * tf.random.normal(value.shape) for name, value in gradients.items()}

    run = toy_run(tmp_path, graph_hooks=[Draws("own")])
    with pytest.warns(UserWarning, match="draws numbers at 'transform_gradients/own/"):
        run.fit()
    assert len(run.journal.warnings) == 1


def test_failed_write_of_a_hook_is_reported_once_and_the_run_continues(loop, tmp_path):
    def failing(stage, error):
        def fail(*_):
            raise error

        hook = Diary("unwritten")
        setattr(hook, stage, fail)
        return hook

    for stage, error in (
        ("on_fit_begin", OSError(28, "No space left")),
        ("on_chunk_end", OSError("No room.")),
        ("on_fit_end", OSError(28, "No space left")),
    ):
        diary = Diary()
        run = toy_run(tmp_path / stage, [failing(stage, error), diary], loop=loop)
        with pytest.warns(UserWarning, match="the hook 'unwritten': .*(No space|No room)") as warned:
            (run.fit(), run.call("on_fit_end", {}, closing=True))
        assert (len(warned), run.step) == (1, 8)
        assert ("validation", 8) in diary.calls  # the hooks after it were called
    with pytest.raises(ZeroDivisionError):
        toy_run(tmp_path / "b", [failing("on_chunk_end", ZeroDivisionError())], loop=loop).fit()
