"""What stands beside the curves: pictures, histograms, the graph, the layout and the profile, each when it is due."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.summary.writer import event_file_writer
from tensorboard.util import tensor_util

from hooks.monitors.dashboard.records import picture_summary
from hooks.monitors.tensorboard import TensorBoard
from tests.support.events import events, read, small_graph, values
from trainer.run.control import Report


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


def test_an_evaluation_that_could_not_be_written_counts(make_run, monkeypatch):
    hook, run = TensorBoard(), make_run()
    hook.on_fit_begin(run)
    run.pictures = lambda step, split: {"mask": np.full((2, 2, 1), 7.0)}
    with pytest.raises(ValueError, match="The picture 'mask'"):
        hook.on_evaluation_end(run, Report(1, "validation", {"loss/total": 1.0}))
    hook.on_exception(run, RuntimeError())
    assert hook.state_dict() == {"evaluations": 1}


def histograms(run):
    """Return (step, tag) of the records for the histograms plugin."""
    return [
        (event.step, value.tag)
        for event in events(run, "train")
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == "histograms"
    ]


@pytest.mark.parametrize("stopped", [False, True])
def test_histograms_come_at_the_start_at_every_nth_evaluation_and_at_the_last(make_run, summary, stopped):
    hook, run = TensorBoard(histograms_every=3), make_run(total_steps=100 if stopped else 6)
    run.distributions = lambda step: {"weights/dense/kernel/latent": np.full([2], step)}
    hook.on_fit_begin(run)
    for run.step in range(1, 7):
        if stopped and run.step == 6:
            run.control.stop("enough")
        hook.on_evaluation_end(run, Report(run.step, "validation", {"loss/total": 1.0}))
    run.distributions = lambda step: pytest.fail("read at the test, when the weights may be those of another step")
    hook.on_evaluation_end(run, Report(run.step, "test", {"loss/total": 1.0}))
    hook.on_fit_end(run, summary)
    assert [step for step, _ in histograms(run)] == [0, 1, 4, 6]


def test_of_one_step_there_is_one_set_of_histograms(make_run, summary):
    hook, run = TensorBoard(histograms_every=1), make_run(total_steps=7)
    run.distributions = lambda step: {"weights/dense/kernel/latent": np.zeros(2)}
    hook.on_fit_begin(run)
    run.step = 7
    hook.on_evaluation_end(run, Report(7, "validation", {"loss/total": 1.0}))
    hook.on_evaluation_end(run, Report(7, "test", {"loss/total": 1.0}))
    hook.on_fit_end(run, summary)
    assert [step for step, _ in histograms(run)] == [0, 7]


def test_nothing_is_read_for_histograms_when_they_are_off(make_run):
    hook, run = TensorBoard(histograms_every=0), make_run()
    run.distributions = lambda step: pytest.fail("read")
    hook.on_fit_begin(run)
    for step, split in ((1, "validation"), (100, "validation"), (100, "test")):
        run.step = step
        hook.on_evaluation_end(run, Report(step, split, {"loss/total": 1.0}))
    hook.on_exception(run, RuntimeError())
    assert histograms(run) == []


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
    reader = read(run, "train")
    assert [event.step for event in reader.Tensors("weights/dense/kernel/latent")] == [0, 10, 20, 30]
    assert [event.step for event in reader.Tensors("custom_scalars__config__")] == [10, 20]


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


def test_the_layout_knows_the_hooks_and_networks_of_the_run(make_run, summary):
    hook, run = TensorBoard(), make_run(config={"hooks": {"my_hook": {}, "other": None}})
    hook.on_fit_begin(run)
    hook.on_evaluation_end(run, Report(1, "validation", {"model/my_hook/share": 1.0}))
    hook.on_fit_end(run, summary)
    ((_, _, layout),) = values(run, "train", plugin="custom_scalars")
    assert [each.title for each in layout_pb2.Layout.FromString(layout).category] == ["my_hook"]


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
