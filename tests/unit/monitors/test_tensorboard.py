from __future__ import annotations

import math
import threading

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import list_session_groups
from tensorboard.plugins.hparams.api_pb2 import ListSessionGroupsRequest, Status
from tensorboard.plugins.hparams.backend_context import Context
from tensorboard.summary.writer import event_file_writer

from hooks.monitors.tensorboard import TensorBoard
from tests.support.events import curve, events, read, small_graph, values
from trainer.errors import UserError, WriteError
from trainer.run.control import Report


def test_reports_come_back_with_tags_steps_and_values(make_run, summary):
    hook, run = TensorBoard(), make_run()
    hook.on_fit_begin(run)
    hook.on_chunk_end(run, Report(10, "train", {"loss/total": 0.5, "metric/accuracy": 0.25}))
    hook.on_chunk_end(run, None)
    hook.on_evaluation_end(run, Report(10, "validation", {"loss/total": 0.75}))
    hook.on_chunk_end(run, Report(20, "train", {"loss/total": 0.125, "metric/accuracy": 1.0}))
    hook.on_evaluation_end(run, Report(20, "test", {"loss/total": 2.0}))
    hook.on_fit_end(run, summary)
    assert values(run, "train") == [
        (10, "loss/total", 0.5),
        (10, "metric/accuracy", 0.25),
        (20, "loss/total", 0.125),
        (20, "metric/accuracy", 1.0),
    ]
    assert values(run, "validation") == [(10, "loss/total", 0.75)]
    assert values(run, "test") == [(20, "loss/total", 2.0)]


def test_a_report_is_one_event(make_run):
    hook, run = TensorBoard(), make_run()
    hook.on_fit_begin(run)
    hook.on_chunk_end(run, Report(10, "train", {f"metric/{index}": float(index) for index in range(20)}))
    hook.before_save(run)
    assert [len(event.summary.value) for event in events(run, "train")] == [2, 20]
    hook.on_exception(run, RuntimeError())


def test_config_and_plan_are_text_at_the_start_and_the_result_at_the_end(make_run, summary):
    hook, run = TensorBoard(), make_run()
    hook.on_fit_begin(run)
    run.step = 1200
    hook.on_fit_end(run, summary)
    texts = {tag: (step, text.decode()) for step, tag, text in values(run, "train", plugin="text")}
    assert texts["run/config"] == (0, "```yaml\nrecipe: bnn\noptimizer:\n  learning_rate: 0.001\n```")
    assert texts["run/plan"] == (0, run.plan)
    step, text = texts["run/summary"]
    assert step == 1200
    assert "| accuracy | 0.9981 | 0.9703 | 0.9722 |" in text
    assert '"status": "completed"' in text


def test_tensorboard_itself_lists_the_records_under_the_plugins(make_run, summary):
    hook, run = TensorBoard(), make_run()
    hook.on_fit_begin(run)
    hook.on_chunk_end(run, Report(10, "train", {"loss/total": 0.5}))
    hook.on_fit_end(run, summary)
    reader = read(run, "train")
    assert set(reader.PluginTagToContent("scalars")) == {"loss/total"}
    assert set(reader.PluginTagToContent("text")) == {"run/config", "run/plan", "run/summary"}


def test_values_that_are_not_finite_are_written(make_run, summary):
    hook, run = TensorBoard(), make_run()
    hook.on_fit_begin(run)
    hook.on_chunk_end(run, Report(1, "train", {"loss/total": math.nan, "loss/center": math.inf}))
    hook.on_fit_end(run, summary | {"final": {"loss/total": math.nan}})
    (_, _, nan), (_, _, infinity) = values(run, "train")
    assert math.isnan(nan)
    assert infinity == math.inf


def test_a_save_puts_everything_on_disk(make_run):
    hook, run = TensorBoard(), make_run()
    hook.on_fit_begin(run)
    for step in range(1, 201):
        hook.on_chunk_end(run, Report(step, "train", {"loss/total": float(step)}))
        hook.on_evaluation_end(run, Report(step, "validation", {"loss/total": float(step)}))
    hook.before_save(run)
    assert len(values(run, "train")) == len(values(run, "validation")) == 200
    hook.on_exception(run, RuntimeError())


def test_no_thread_and_no_open_file_stays_behind(make_run, summary):
    threads = threading.active_count()
    hook = TensorBoard()
    for _ in range(2):  # two fits
        run = make_run()
        hook.on_fit_begin(run)
        hook.on_evaluation_end(run, Report(1, "validation", {"loss/total": 1.0}))
        assert threading.active_count() == threads + 2
        hook.on_fit_end(run, summary)
        assert threading.active_count() == threads


def test_an_exception_closes_the_files_and_the_end_still_writes_the_result(make_run, summary):
    threads = threading.active_count()
    hook, run = TensorBoard(), make_run()
    hook.on_fit_begin(run)
    hook.on_chunk_end(run, Report(5, "train", {"loss/total": 1.0}))
    hook.on_exception(run, RuntimeError())
    assert threading.active_count() == threads
    assert values(run, "train") == [(5, "loss/total", 1.0)]
    hook.on_fit_end(run, summary | {"status": "failed", "best": {"value": None, "values": {}}, "test": {}})
    assert threading.active_count() == threads
    assert "run/summary" in {tag for _, tag, _ in values(run, "train", plugin="text")}


def test_an_end_without_a_beginning_writes_nothing(make_run, summary):
    run = make_run()
    TensorBoard().on_fit_end(run, summary)
    assert list(run.directory.iterdir()) == []


def test_a_resumed_run_heals_the_curve(make_run, summary, monkeypatch):
    # Files of one second are read in the order of this count as text: keep its length.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(100))
    run = make_run()
    for begin, losses in ((0, {10: 1.0, 20: 2.0, 30: 3.0}), (10, {20: -2.0, 30: -3.0})):
        hook, run.step = TensorBoard(), begin
        hook.on_fit_begin(run)
        for step, loss in losses.items():
            hook.on_chunk_end(run, Report(step, "train", {"loss/total": loss}))
            hook.on_evaluation_end(run, Report(step, "validation", {"loss/total": loss}))
        hook.on_exception(run, RuntimeError())
    hook.on_fit_end(run, summary)  # opens the files once more, and drops nothing
    assert curve(run, "train") == curve(run, "validation") == [(10, 1.0), (20, -2.0), (30, -3.0)]


def test_going_back_to_a_checkpoint_keeps_the_files_and_no_step_is_there_twice(make_run, summary, monkeypatch):
    calls = []
    monkeypatch.setattr(tf.profiler.experimental, "start", lambda directory: calls.append("start"))
    monkeypatch.setattr(tf.profiler.experimental, "stop", lambda: calls.append("stop"))
    picture = {"input/training_examples": np.zeros((2, 3, 3))}
    hook, run = TensorBoard(histograms_every=1, profile_steps=50), make_run(first_pictures=lambda: picture)
    run.graph, run.distributions = small_graph, lambda step: {"weights/dense/kernel/latent": np.full(2, step)}
    threads = []
    for begin, losses in ((0, {10: 1.0, 20: 2.0, 30: 3.0}), (10, {20: -2.0, 30: -3.0}), (10, {20: -4.0})):
        run.step = begin
        hook.load_state_dict({"evaluations": begin // 10})
        hook.on_fit_begin(run)
        for run.step, loss in losses.items():
            hook.on_chunk_end(run, Report(run.step, "train", {"loss/total": loss}))
            hook.on_evaluation_end(run, Report(run.step, "validation", {"loss/total": loss}))
            if begin and run.step == 20:
                assert hook.next_step(run.step) is None  # no second profile
        threads.append(threading.active_count())
    hook.on_fit_end(run, summary)
    assert len(set(threads)) == 1
    assert calls == ["start", "stop"]
    for split in ("train", "validation"):
        assert len(list((run.directory / "tensorboard" / split).iterdir())) == 1
        assert curve(run, split) == [(10, 1.0), (20, -4.0)]
        for tag in (reader := read(run, split)).Tags()["tensors"]:
            steps = [event.step for event in reader.Tensors(tag)]
            assert len(steps) == len(set(steps)), tag


def test_a_fit_after_another_begins_anew(make_run, summary):
    hook, run = TensorBoard(), make_run()
    for loss in (1.0, 2.0):
        hook.on_fit_begin(run)
        hook.on_chunk_end(run, Report(10, "train", {"loss/total": loss}))
        hook.on_fit_end(run, summary)
    assert len([tag for _, tag, _ in values(run, "train", plugin="text") if tag == "run/config"]) == 2


def sessions(run):
    """Return TensorBoard's own reading of the hyperparameters below a run: of each session values, metrics, status."""
    root = str(run.directory)
    multiplexer = EventMultiplexer().AddRunsFromDirectory(root)
    multiplexer.Reload()
    provider = MultiplexerDataProvider(multiplexer, root)
    context = Context(TBContext(logdir=root, multiplexer=multiplexer, data_provider=provider))
    request = ListSessionGroupsRequest(
        start_index=0, slice_size=10, allowed_statuses=list(Status.values()), include_metrics=True
    )
    found = list_session_groups.Handler(RequestContext(), context, "", request).run()
    return [
        (
            {name: value.number_value or value.string_value for name, value in group.hparams.items()},
            {metric.name.tag: metric.value for metric in group.metric_values},
            Status.Name(group.sessions[0].status),
        )
        for group in found.session_groups
    ]


def test_tensorboard_shows_hyperparameters_with_what_was_reached_and_no_curve_among_it(make_run, summary):
    hook, run = TensorBoard(), make_run()
    (run.directory / "overrides.txt").write_text("recipe=bnn\n")
    hook.on_fit_begin(run)
    hook.on_evaluation_end(run, Report(10, "validation", {"loss/total": 0.75}))
    expected = {"recipe": "bnn", "hooks": "none", "learning_rate": 0.001}
    assert sessions(run) == [(expected, {}, "STATUS_UNKNOWN")]
    hook.on_fit_end(run, summary)
    metrics = {
        "best_validation/accuracy": 0.9703,
        "best_validation/loss": 0.1334,
        "test/accuracy": 0.9722,
        "test/loss": 0.1111,
    }
    assert sessions(run) == [(expected, pytest.approx(metrics), "STATUS_SUCCESS")]


def test_a_run_that_failed_and_goes_on_shows_how_it_ended_at_last(make_run, summary):
    run = make_run()
    statuses = []
    for step, status in ((0, "failed"), (10, "paused"), (10, "completed")):
        hook, run.step = TensorBoard(), step
        hook.on_fit_begin(run)
        run.step = step + 10
        hook.on_fit_end(run, summary | {"status": status, "test": {"metric/accuracy": step / 100}})
        ((_, metrics, found),) = sessions(run)
        statuses.append((found, metrics["test/accuracy"]))
    assert statuses == [
        ("STATUS_FAILURE", 0.0),
        ("STATUS_UNKNOWN", pytest.approx(0.1)),
        ("STATUS_SUCCESS", pytest.approx(0.1)),
    ]


def test_an_unwritable_place_is_one_clear_line_at_the_start(make_run):
    run = make_run()
    (run.directory / "tensorboard").write_text("a file in the way")
    with pytest.raises(UserError, match=r"Cannot write .*tensorboard.*: File exists\. Expected .* run_dir"):
        TensorBoard().on_fit_begin(run)


def test_a_directory_without_write_permission_is_one_clear_line(make_run, monkeypatch):
    monkeypatch.setattr(
        "hooks.monitors.dashboard.event_files.os.access", lambda path, mode: False
    )  # root may write anywhere
    with pytest.raises(UserError, match="Permission denied"):
        TensorBoard().on_fit_begin(make_run())


@pytest.mark.parametrize(
    "failure", [OSError(28, "No space left"), tf.errors.ResourceExhaustedError(None, None, "full")]
)
def test_events_go_on_in_a_further_file_once_there_is_room_again(make_run, summary, monkeypatch, failure):
    run, hook = make_run(), TensorBoard()
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(9))  # 9, 10: not in order
    hook.on_fit_begin(run)
    hook.on_chunk_end(run, Report(1, "train", {"loss/total": 1.0}))
    hook.before_save(run)
    with monkeypatch.context() as patch:

        def refuse(writer, event):
            raise failure

        patch.setattr(event_file_writer.EventFileWriter, "add_event", refuse)
        with pytest.raises(WriteError, match="tensorboard/train: .*hooks.tensorboard=null"):
            hook.on_chunk_end(run, Report(2, "train", {"loss/total": 2.0}))
    hook.on_chunk_end(run, Report(3, "train", {"loss/total": 3.0}))
    hook.on_fit_end(run, summary)
    assert [step for step, _ in curve(run, "train")] == [1, 3]
    assert not [each for each in threading.enumerate() if isinstance(each, event_file_writer._AsyncWriterThread)]


def test_a_writer_that_fails_between_events_is_told_by_the_next_one_alone(make_run, monkeypatch, capsys):
    run, hook = make_run(), TensorBoard()
    hook.on_fit_begin(run)
    hook.before_save(run)

    def refuse(writer, data):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left")

    monkeypatch.setattr("tensorboard.summary.writer.record_writer.RecordWriter.write", refuse)
    with pytest.raises(WriteError, match="No space left"):
        hook.on_chunk_end(run, Report(1, "train", {"loss/total": 1.0})) or hook.on_exception(run, KeyError())
    assert capsys.readouterr().err == ""


def failing_writers(monkeypatch, split):
    """Let the writers of a split fail at their close, once closed."""
    close = event_file_writer.EventFileWriter.close

    def fail(writer):
        close(writer)
        if writer.get_logdir().endswith(split):
            raise OSError(28, "No space left")

    monkeypatch.setattr(event_file_writer.EventFileWriter, "close", fail)


@pytest.mark.parametrize("end", ["on_exception", "on_fit_end"])
def test_a_file_that_cannot_be_closed_leaves_no_other_open(make_run, summary, monkeypatch, end):
    threads = threading.active_count()
    hook, run = TensorBoard(), make_run()
    hook.on_fit_begin(run)
    hook.on_evaluation_end(run, Report(1, "validation", {"loss/total": 1.0}))
    assert threading.active_count() == threads + 2
    failing_writers(monkeypatch, "train")
    with pytest.raises(WriteError, match="tensorboard/train: No space left"):
        getattr(hook, end)(run, summary)
    assert threading.active_count() == threads


def test_an_end_that_cannot_be_written_leaves_no_file_open(make_run, summary, monkeypatch):
    threads = threading.active_count()
    hook, run = TensorBoard(), make_run()
    hook.on_fit_begin(run)
    hook.on_evaluation_end(run, Report(1, "validation", {"loss/total": 1.0}))

    def refuse(self, split, step, summary):
        raise WriteError("full")

    monkeypatch.setattr("hooks.monitors.dashboard.event_files.EventFiles.write", refuse)
    with pytest.raises(WriteError, match="full"):
        hook.on_fit_end(run, summary)
    assert threading.active_count() == threads
