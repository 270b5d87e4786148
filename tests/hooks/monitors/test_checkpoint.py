import json

import pytest

from hookline.hooks.monitors import checkpoint
from hookline.hooks.monitors.checkpoint import Checkpoint
from hookline.trainer.hook import HostHook
from hookline.trainer.run.control import Report
from tests.support.runs import toy_run


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now[0])
    return now


def begun(make_run, fields=(), **options):
    hook, run = Checkpoint(**options), make_run(**dict(fields))
    hook.on_fit_begin(run)
    return hook, run


def chunk(hook, run, step):
    """Report a chunk that ends at `step` to the hook; return the tags it requests."""
    run.step = step
    hook.on_chunk_end(run, None)
    return take(run)


def evaluate(hook, run, accuracy, split="validation"):
    report = Report(run.step, split, {"metric/accuracy": accuracy})
    run.best.update(report)
    hook.on_evaluation_end(run, report)
    return take(run)


def take(run):
    if run.is_over:
        run.control.at_end()
    tags, run.control.save_tags = run.control.save_tags, set()
    return tags


def test_last_is_due_at_epoch_ends_after_enough_time_and_at_the_end(make_run, clock):
    hook, run = begun(make_run, {"total_steps": 45}, every_seconds=60, keep_last=5)
    assert run.control.keep_last == 5
    found = []
    for now, step in ((59.0, 10), (61.0, 15), (61.0, 20), (120.0, 30), (121.0, 40), (122.0, 45)):
        clock[0] = now
        found.append(chunk(hook, run, step))
    # step 15 is inside an epoch; step 30 comes 59 s after the previous save
    assert found == [set(), set(), {"last"}, set(), {"last"}, {"last"}]
    assert hook.summary() == {"steps": {"last": 45}}
    begun_again, run = begun(make_run), make_run()
    begun_again[0].on_fit_begin(run)
    assert chunk(begun_again[0], run, 100) == {"last"}


def test_last_is_due_every_n_epochs_when_every_seconds_is_0(make_run):
    hook, run = begun(make_run, every_epochs=2, every_seconds=0)
    assert [step for step in range(1, 100) if chunk(hook, run, step)] == [20, 40, 60, 80]
    hook, run = begun(make_run, {"total_steps": 1000}, every_epochs=0.25, every_seconds=0)
    assert [step for step in range(1, 21) if chunk(hook, run, step)] == [3, 5, 8, 10, 13, 15, 18, 20]
    hook, _ = begun(make_run, {"steps_per_epoch": 10.5}, every_epochs=1)
    assert [hook.next_step(step) for step in (0, 10, 11, 20, 21)] == [11, 11, 21, 21, 32]


def test_best_is_due_when_validation_improves(make_run, clock):
    for keep_best, expected in ((True, [{"best"}, set(), set(), {"best"}]), (False, [set()] * 4)):
        hook, run = begun(make_run, keep_best=keep_best)
        asked = []
        for step, accuracy in ((10, 0.5), (20, 0.4), (30, 0.5), (40, 0.6)):
            chunk(hook, run, step)
            asked.append(evaluate(hook, run, accuracy))
        assert asked == expected
    hook, run = begun(make_run)
    assert evaluate(hook, run, 0.5, "test") == set()


def test_no_tag_is_requested_twice_at_one_step_even_after_a_resume(make_run):
    hook, run = begun(make_run, every_seconds=0)
    assert [chunk(hook, run, 10), chunk(hook, run, 10)] == [{"last"}, set()]
    assert [evaluate(hook, run, 0.5), evaluate(hook, run, 0.6)] == [{"best"}, set()]
    resumed = Checkpoint(every_seconds=0)
    resumed.load_state_dict(json.loads(json.dumps(hook.state_dict())))
    resumed.on_fit_begin(run)
    assert [chunk(resumed, run, 10), chunk(resumed, run, 20)] == [set(), {"last"}]


class Stops(HostHook):
    name = "stops"

    def state_dict(self):
        return {}

    def on_evaluation_end(self, run, report):
        run.control.stop("enough")


def test_last_is_saved_when_a_later_hook_stops_the_run(tmp_path):
    saving, stopping = Checkpoint(), Stops()
    saving.name = "checkpoint"
    run = toy_run(tmp_path, [saving, stopping], epochs=3)
    run.fit()
    stored = run._store.load("last")
    assert (run.step, stored.step, stored.state["hooks"]["checkpoint"]["steps"]["last"]) == (4, 4, 4)
