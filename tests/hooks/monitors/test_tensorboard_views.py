"""What stands beside the curves: pictures, histograms, the graph, the layout and the profile, each when it is due."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.util import tensor_util

from hookline.hooks.monitors.tensorboard import TensorBoard
from hookline.trainer.run.control import Report
from tests.support.events import events


def begun(run, **options):
    hook = TensorBoard(**options)
    hook.on_fit_begin(run)
    return hook


def evaluate(hook, run, step, split="validation", **more):
    hook.on_evaluation_end(run, Report(step, split, {"loss/total": 1.0, **more}))


def records(run, plugin):
    """Return (step, tag, content) of the records for a plugin."""
    return [
        (event.step, value.tag, tensor_util.make_ndarray(value.tensor))
        for event in events(run, "train")
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == plugin
    ]


@pytest.mark.parametrize(("every", "steps"), [(3, [0, 1, 4, 6]), (0, [0])])
def test_pictures_come_at_the_start_every_nth_evaluation_and_the_test(make_run, summary, every, steps):
    run = make_run(first_pictures=lambda: {"input/training_examples": np.zeros((2, 3, 3))})
    run.pictures = lambda step, split: {"mask/dense": np.full((2, 3, 1), 0.5)}
    hook = begun(run, pictures_every=every)
    for step in range(1, 6):
        evaluate(hook, run, step)
    evaluate(hook, run, 6, split="test")
    hook.on_fit_end(run, summary)
    found = records(run, "images")
    assert [step for step, *_ in found] == (steps if every else [])
    for _, tag, (width, height, encoded) in found:
        pixels = tf.io.decode_png(encoded).numpy()
        assert pixels.shape[:2] == (int(height), int(width)) == (2, 3)
        assert (pixels == (128 if tag == "mask/dense" else 0)).all()


@pytest.mark.parametrize(("every", "total", "steps"), [(3, 6, [0, 1, 4, 6]), (3, 100, [0, 1, 4, 6]), (0, 6, [])])
def test_histograms_come_at_the_start_every_nth_evaluation_and_the_last(make_run, summary, every, total, steps):
    run = make_run(total_steps=total)
    run.distributions = lambda step: (
        {"weights/dense/kernel/latent": np.full([2], step)} if every else pytest.fail("read")
    )
    hook = begun(run, histograms_every=every)
    for run.step in range(1, 7):
        if run.step == 6 and total == 100:
            run.control.stop("enough")
        evaluate(hook, run, run.step)
    run.distributions = lambda step: pytest.fail("read at the test, when the weights may be those of another step")
    evaluate(hook, run, run.step, split="test")
    hook.on_fit_end(run, summary)
    assert [step for step, *_ in records(run, "histograms")] == steps


def test_the_layout_is_written_again_only_when_a_name_is_new(make_run, summary):
    run = make_run(config={"hooks": {"my_hook": {}, "other": None}})
    run.graph = lambda: pytest.fail("made")
    hook = begun(run, graph=False)
    for step in (1, 2, 3):
        evaluate(hook, run, step, **({"model/my_hook/share": 1.0} if step == 3 else {}))
    hook.on_fit_end(run, summary)
    found = [
        (step, layout_pb2.Layout.FromString(content.item())) for step, _, content in records(run, "custom_scalars")
    ]
    assert [step for step, _ in found] == [1, 3]
    assert "my_hook" in [each.title for each in found[1][1].category]


@pytest.mark.parametrize(("steps", "edges"), [(3, [21, 24]), (50, [21])])  # step 20 ends an epoch
def test_a_profile_is_asked_for_and_ended_with_the_run(make_run, monkeypatch, steps, edges):
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
