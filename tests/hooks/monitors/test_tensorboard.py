"""What TensorBoard reads back from a run: curves, texts, graphs, pictures and histograms."""

import math
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.util import tensor_util

from hookline.hooks.monitors.tensorboard import EventFiles, TensorBoard
from hookline.trainer.run.control import Report
from hookline.trainer.run.run import Run


def values(run: Run, split: str, plugin: str = "scalars") -> list[tuple[int, str, Any]]:
    """Return (step, tag, value) of the records for a plugin."""
    return [
        (event.step, value.tag, tensor_util.make_ndarray(value.tensor))
        for path in sorted((run.directory / "tensorboard" / split).iterdir())
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == plugin
    ]


def read(run: Run, split: str) -> EventAccumulator:
    """Return TensorBoard's reader of a split."""
    reader = EventAccumulator(str(run.directory / "tensorboard" / split))
    reader.Reload()
    return reader


def curve(run: Run, split: str) -> list[tuple[int, float]]:
    """Return TensorBoard's curve of the total loss."""
    kept = read(run, split).Tensors("loss/total")
    return [(event.step, tensor_util.make_ndarray(event.tensor_proto).item()) for event in kept]


def small_graph() -> Any:
    """Return a graph of one op, as a `GraphDef`."""
    with tf.Graph().as_default() as graph:
        tf.constant(1.0, name="forward/model/one")
    return graph.as_graph_def()


KERNEL = "weights/dense/kernel/latent"


def begun(run, **options):
    hook = TensorBoard(**options)
    hook.on_fit_begin(run)
    return hook


def train(hook, run, step, loss=1.0, **more):
    hook.on_chunk_end(run, Report(step, "train", {"loss/total": loss, **more}))


def evaluate(hook, run, step, loss=1.0, split="validation", **more):
    hook.on_evaluation_end(run, Report(step, split, {"loss/total": loss, **more}))


def test_reports_texts_and_tables_are_read_back_with_tags_and_steps(make_run, summary):
    run = make_run()
    hook = begun(run)
    train(hook, run, 10, 0.5, **{"metric/accuracy": math.inf})
    hook.on_chunk_end(run, None)
    evaluate(hook, run, 10, 0.75)
    train(hook, run, 20, math.nan)
    evaluate(hook, run, 20, 2.0, "test")
    layer = {"layer": "a", "kind": "Dense", "output": [4], "params": 12, "weight_bits": 32.0, "input_bits": 32}
    layer |= {"bytes": 48.0, "sparsity": 0.0, "macs": 12}
    run.step = 1200
    hook.on_fit_end(run, summary | {"networks": {"model": {"layers": [layer]}}, "final": {"loss/total": math.nan}})
    *found, (step, tag, nan) = values(run, "train")
    assert found == [(10, "loss/total", 0.5), (10, "metric/accuracy", math.inf)]
    assert (step, tag, math.isnan(nan)) == (20, "loss/total", True)
    assert values(run, "validation") == [(10, "loss/total", 0.75)]
    assert values(run, "test") == [(20, "loss/total", 2.0)]
    texts = {tag: (step, text.item().decode()) for step, tag, text in values(run, "train", plugin="text")}
    assert texts["run/config"] == (0, "```yaml\nrecipe: bnn\noptimizer:\n  learning_rate: 0.001\n```")
    assert texts["run/plan"] == (0, run.plan)
    assert texts["run/summary"][0] == 1200
    assert "| accuracy |" in texts["run/summary"][1]
    assert "| a | Dense |" in texts["run/networks"][1]
    assert set(read(run, "train").PluginTagToContent("scalars")) == {"loss/total", "metric/accuracy"}


def test_resumed_run_replaces_lost_steps_without_duplicates(make_run, summary, monkeypatch):
    run = make_run(views={"first_pictures": {"input/training_examples": np.zeros((2, 3, 3))}})
    run.views.shown = lambda report: SimpleNamespace(pictures={"mask": np.zeros((1, 3, 3))})
    EventFiles(run.directory / "tensorboard", 0).add("train", Event(step=0))  # killed at its start
    run.graph, run.views.distributions = small_graph, lambda step: {KERNEL: np.full(2, step)}
    state = {"evaluations": 0}
    for begin, losses in ((0, {10: 1.0, 20: 2.0, 30: 3.0}), (10, {20: -2.0, 30: -3.0})):  # steps after 10 were lost
        monkeypatch.setattr(time, "time", lambda now=2e9 - begin: now)  # on a machine whose clock is behind
        hook, run.step = TensorBoard(histograms_every=1), begin
        hook.load_state_dict(state)
        hook.on_fit_begin(run)
        for step, loss in losses.items():
            train(hook, run, step, loss)
            evaluate(hook, run, step, loss)
        evaluate(hook, run, 10, losses[30], "test")
        hook.on_fit_end(run, summary | {"status": "interrupted"})
        assert hook.state_dict() == {"evaluations": 4}
        state, run.journal.resumed_at = {"evaluations": 1}, [10]
    assert curve(run, "train") == curve(run, "validation") == [(10, 1.0), (20, -2.0), (30, -3.0)]
    assert curve(run, "test") == [(10, -3.0)]
    assert [event.step for event in read(run, "test").Tensors("mask")] == [10]
    assert [event.step for event in read(run, "train").Tensors("mask")] == [10]
    assert [event.step for event in read(run, "train").Tensors(KERNEL)] == [0, 10, 20, 30]
    folder = run.directory / "tensorboard" / "train"
    found = [event for path in folder.iterdir() for event in EventFileLoader(str(path)).Load()]
    tags = [value.tag for event in found for value in event.summary.value]
    assert (tags.count("__run_graph__"), tags.count("input/training_examples")) == (1, 1)


def test_going_back_to_a_checkpoint_leaves_no_duplicate_steps(make_run, summary, monkeypatch):
    calls = []
    monkeypatch.setattr(tf.profiler.experimental, "start", lambda directory: calls.append("start"))
    monkeypatch.setattr(tf.profiler.experimental, "stop", lambda: calls.append("stop"))
    run = make_run(views={"first_pictures": {"input/training_examples": np.zeros((2, 3, 3))}})
    hook = TensorBoard(histograms_every=1, profile_steps=50)
    run.graph, run.views.distributions = small_graph, lambda step: {KERNEL: np.full(2, step)}
    for begin, losses in ((0, {10: 1.0, 20: 2.0, 30: 3.0}), (10, {20: -2.0, 30: -3.0}), (10, {20: -4.0})):
        run.step = begin
        hook.load_state_dict({"evaluations": begin // 10})
        hook.on_fit_begin(run)
        for run.step, loss in losses.items():
            train(hook, run, run.step, loss)
            evaluate(hook, run, run.step, loss)
            if begin and run.step == 20:
                assert hook.next_step(run.step) is None  # no second profile
    hook.on_fit_end(run, summary)
    assert calls == ["start", "stop"]
    for split in ("train", "validation"):
        assert len(list((run.directory / "tensorboard" / split).iterdir())) == 1
        assert curve(run, split) == [(10, 1.0), (20, -4.0)]
        for tag in (reader := read(run, split)).Tags()["tensors"]:
            steps = [event.step for event in reader.Tensors(tag)]
            assert len(steps) == len(set(steps)), tag


@pytest.mark.parametrize("stage", ["write", "flush"])
def test_events_continue_after_a_full_disk_has_room_again(make_run, summary, monkeypatch, stage):
    run = make_run()
    hook = begun(run)
    train(hook, run, 1)
    hook.state_dict()

    def refuse(writer, *record):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left")

    with monkeypatch.context() as patch:
        patch.setattr(tf.io.TFRecordWriter, stage, refuse)
        with pytest.raises(OSError, match="tensorboard/train: .*No space left.*hooks.tensorboard=null"):
            train(hook, run, 2) or hook.state_dict()
    train(hook, run, 3)
    hook.on_fit_end(run, summary)
    assert [step for step, _ in curve(run, "train") if step != 2] == [1, 3]


@pytest.mark.parametrize(("every", "total", "steps"), [(3, 6, [0, 1, 4, 6]), (3, 100, [0, 1, 4, 6]), (0, 6, [])])
def test_histograms_are_written_at_the_start_every_n_evaluations_and_at_the_end(make_run, summary, every, total, steps):
    run = make_run(total_steps=total)
    run.views.distributions = lambda step: (
        {"weights/dense/kernel/latent": np.full([2], step)} if every else pytest.fail("read")
    )
    hook = begun(run, histograms_every=every)
    for run.step in range(1, 7):
        if run.step == 6 and total == 100:
            run.control.stop("enough")
        evaluate(hook, run, run.step)
    run.views.distributions = lambda step: pytest.fail("read at the test, of the weights of another step")
    evaluate(hook, run, run.step, split="test")
    hook.on_fit_end(run, summary)
    assert [step for step, *_ in values(run, "train", "histograms")] == steps


@pytest.mark.parametrize(("steps", "edges"), [(3, [20, 23]), (90, [10])])  # of 100 steps
def test_profile_covers_the_requested_steps_and_ends_with_the_run(make_run, monkeypatch, steps, edges):
    calls, asked, run = [], [], make_run()
    monkeypatch.setattr(tf.profiler.experimental, "start", calls.append)
    monkeypatch.setattr(tf.profiler.experimental, "stop", lambda: calls.append("stop"))
    hook = begun(run, profile_steps=steps)
    while len(asked) < len(edges) and (edge := hook.next_step(run.step)) is not None:
        run.step = edge
        asked.append(edge)
        hook.on_chunk_end(run, None)
    hook.on_fit_end(run, {"status": "failed"})
    assert (asked, calls) == (edges, [str(run.directory / "tensorboard" / "train"), "stop"])
