from __future__ import annotations

import math
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import list_session_groups
from tensorboard.plugins.hparams.api_pb2 import ListSessionGroupsRequest, Status
from tensorboard.plugins.hparams.backend_context import Context
from tensorboard.summary.writer import event_file_writer
from tensorboard.util import tensor_util

from hooks.monitors.dashboard.records import picture_summary
from hooks.monitors.tensorboard import TensorBoard
from trainer.errors import UserError, WriteError
from trainer.run.control import Report


def events(run, split) -> Iterator[Event]:
    for path in sorted((run.directory / "tensorboard" / split).iterdir()):
        yield from (event for event in EventFileLoader(str(path)).Load() if event.HasField("summary"))


def values(run, split, plugin="scalars"):
    """Return (step, tag, value) of the records that are marked for a plugin."""
    return [
        (event.step, value.tag, tensor_util.make_ndarray(value.tensor).item())
        for event in events(run, split)
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == plugin
    ]


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
    reader = EventAccumulator(str(run.directory / "tensorboard" / "train"))
    reader.Reload()
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


def curve(run, split):
    """Return what TensorBoard keeps of the total loss."""
    reader = EventAccumulator(str(run.directory / "tensorboard" / split))
    reader.Reload()
    events = reader.Tensors("loss/total")
    return [(event.step, tensor_util.make_ndarray(event.tensor_proto).item()) for event in events]


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
    with pytest.raises(UserError, match=r"Cannot write .*tensorboard.*: Not a directory\. Expected .* run_dir"):
        TensorBoard().on_fit_begin(run)


def test_a_directory_without_write_permission_is_one_clear_line(make_run, monkeypatch):
    monkeypatch.setattr(
        "hooks.monitors.dashboard.event_files.os.access", lambda path, mode: False
    )  # root may write anywhere
    with pytest.raises(UserError, match="Permission denied"):
        TensorBoard().on_fit_begin(make_run())


def test_the_count_of_evaluations_is_kept_so_that_pictures_keep_their_rhythm(make_run):
    hook, run = TensorBoard(pictures_every=2), make_run()
    hook.on_fit_begin(run)
    hook.on_evaluation_end(run, Report(1, "validation", {"loss/total": 1.0}))
    hook.on_exception(run, RuntimeError())
    resumed = TensorBoard(pictures_every=2)
    resumed.load_state_dict(hook.state_dict())
    assert resumed.state_dict() == {"evaluations": 1}


def pictures(run):
    """Return (step, tag, pixels) of the records for the images plugin."""
    found = []
    for event in events(run, "train"):
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "images":
                width, height, encoded = tensor_util.make_ndarray(value.tensor)
                pixels = tf.io.decode_png(encoded).numpy()
                assert pixels.shape[:2] == (int(height), int(width))
                found.append((event.step, value.tag, pixels))
    return found


def test_pictures_of_hooks_come_at_the_first_evaluation_then_at_every_nth_and_at_the_test(make_run, summary):
    hook, run = TensorBoard(pictures_every=3), make_run()
    half = np.full((2, 3, 1), 0.5)
    run.pictures = lambda step, split: {"mask/dense": half}
    hook.on_fit_begin(run)
    for step in range(1, 6):
        hook.on_evaluation_end(run, Report(step, "validation", {"loss/total": 1.0}))
    hook.on_evaluation_end(run, Report(6, "test", {"loss/total": 1.0}))
    hook.on_fit_end(run, summary)
    found = pictures(run)
    assert [(step, tag) for step, tag, _ in found] == [(1, "mask/dense"), (4, "mask/dense"), (6, "mask/dense")]
    assert (found[0][2] == 128).all()


def test_training_examples_are_there_from_the_start(make_run):
    hook, run = TensorBoard(), make_run(first_pictures=lambda: {"input/training_examples": np.zeros((2, 3, 3))})
    hook.on_fit_begin(run)
    hook.before_save(run)
    assert [(step, tag) for step, tag, _ in pictures(run)] == [(0, "input/training_examples")]
    hook.on_fit_end(run, {})


def test_no_pictures_when_they_are_off(make_run):
    hook, run = TensorBoard(pictures_every=0), make_run()
    run.pictures = lambda step, split: {"mask/dense": np.zeros((2, 3, 3))}
    hook.on_fit_begin(run)
    hook.on_evaluation_end(run, Report(1, "validation", {"loss/total": 1.0}))
    hook.on_exception(run, RuntimeError())
    assert pictures(run) == []


@pytest.mark.parametrize("picture", [np.zeros((2, 2, 2)), np.full((2, 2, 1), 1.5)])
def test_a_picture_of_another_form_is_named(picture):
    with pytest.raises(ValueError, match="The picture 'mask' has the shape"):
        picture_summary({"mask": picture})


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


def histograms(run):
    """Return (step, tag) of the records for the histograms plugin."""
    return [
        (event.step, value.tag)
        for event in events(run, "train")
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == "histograms"
    ]


def test_histograms_come_at_the_start_at_every_nth_evaluation_and_at_the_test(make_run, summary):
    hook, run = TensorBoard(histograms_every=3), make_run()
    run.distributions = lambda step: {"weights/dense/kernel/latent": np.full([2], step)}
    hook.on_fit_begin(run)
    for step in range(1, 6):
        hook.on_evaluation_end(run, Report(step, "validation", {"loss/total": 1.0}))
    hook.on_evaluation_end(run, Report(5, "test", {"loss/total": 1.0}))
    hook.on_fit_end(run, summary)
    assert [step for step, _ in histograms(run)] == [0, 1, 4, 5]


def test_of_one_step_there_is_one_set_of_histograms(make_run, summary):
    hook, run = TensorBoard(histograms_every=1), make_run()
    run.distributions = lambda step: {"weights/dense/kernel/latent": np.zeros(2)}
    hook.on_fit_begin(run)
    hook.on_evaluation_end(run, Report(7, "validation", {"loss/total": 1.0}))
    hook.on_evaluation_end(run, Report(7, "test", {"loss/total": 1.0}))
    hook.on_fit_end(run, summary)
    assert [step for step, _ in histograms(run)] == [0, 7]


def test_nothing_is_read_for_histograms_when_they_are_off(make_run):
    hook, run = TensorBoard(histograms_every=0), make_run()
    run.distributions = lambda step: pytest.fail("read")
    hook.on_fit_begin(run)
    hook.on_evaluation_end(run, Report(1, "test", {"loss/total": 1.0}))
    hook.on_exception(run, RuntimeError())
    assert histograms(run) == []


def small_graph():
    with tf.Graph().as_default() as graph:
        tf.constant(1.0, name="forward/model/one")
    return graph.as_graph_def()


def test_a_resumed_run_doubles_neither_graph_nor_histograms(make_run, summary, monkeypatch):
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(100))
    run = make_run()
    run.graph, run.distributions = small_graph, lambda step: {"weights/dense/kernel/latent": np.full(2, step)}
    evaluations = {"evaluations": 0}
    for begin, steps in ((0, (10, 20)), (10, (20, 30))):  # what came after step 10 was lost
        hook, run.step = TensorBoard(histograms_every=1), begin
        hook.load_state_dict(evaluations)
        hook.on_fit_begin(run)
        for step in steps:
            hook.on_evaluation_end(run, Report(step, "validation", {"loss/total": float(step)}))
        hook.on_exception(run, RuntimeError())
        evaluations = {"evaluations": 1}
    hook.on_fit_end(run, summary)
    folder = run.directory / "tensorboard" / "train"
    found = [event for path in folder.iterdir() for event in EventFileLoader(str(path)).Load()]
    tags = [value.tag for event in found for value in event.summary.value]
    assert tags.count("__run_graph__") == 1  # as TensorBoard's reader names it
    reader = EventAccumulator(str(folder))
    reader.Reload()
    assert [event.step for event in reader.Tensors("weights/dense/kernel/latent")] == [0, 10, 20, 30]
    assert len(reader.Tensors("custom_scalars__config__")) == 1 or reader.Tensors("custom_scalars__config__")[-1]


def test_the_graph_may_be_left_out(make_run):
    hook, run = TensorBoard(graph=False), make_run()
    run.graph = lambda: pytest.fail("made")
    hook.on_fit_begin(run)
    hook.on_exception(run, RuntimeError())


def layouts(run):
    return [step for step, tag, _ in values(run, "train", plugin="custom_scalars")]


def test_the_layout_is_written_again_only_when_a_name_is_new(make_run, summary):
    hook, run = TensorBoard(), make_run()
    hook.on_fit_begin(run)
    for step in (1, 2, 3):
        extra = {"metric/late": 1.0} if step == 3 else {}
        hook.on_chunk_end(run, Report(step, "train", {"loss/total": 1.0, **extra}))
        hook.on_evaluation_end(run, Report(step, "validation", {"loss/total": 1.0}))
    hook.on_fit_end(run, summary)
    assert layouts(run) == [1, 3]


def test_a_profile_is_asked_for_and_ended_with_the_run(make_run, monkeypatch):
    calls = []
    monkeypatch.setattr(tf.profiler.experimental, "start", calls.append)
    monkeypatch.setattr(tf.profiler.experimental, "stop", lambda: calls.append("stop"))
    hook, run = TensorBoard(profile_steps=3), make_run()
    hook.on_fit_begin(run)
    edges = []
    while (edge := hook.next_step(run.step)) is not None:
        run.step = edge
        edges.append(edge)
        hook.on_chunk_end(run, None)
    hook.on_exception(run, RuntimeError())
    assert edges == [21, 24]  # step 20 ends an epoch
    assert calls == [str(run.directory / "tensorboard" / "train"), "stop"]


def test_an_error_ends_a_profile_that_is_being_taken(make_run, monkeypatch):
    calls = []
    monkeypatch.setattr(tf.profiler.experimental, "start", lambda directory: calls.append("start"))
    monkeypatch.setattr(tf.profiler.experimental, "stop", lambda: calls.append("stop"))
    hook, run = TensorBoard(profile_steps=50), make_run()
    hook.on_fit_begin(run)
    run.step = hook.next_step(0)
    hook.on_chunk_end(run, None)
    hook.on_exception(run, RuntimeError())
    assert calls == ["start", "stop"]
