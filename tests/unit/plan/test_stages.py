"""The stages of the plan are those of the hook interface, in the order in which a run calls them."""

from __future__ import annotations

import inspect

import pytest
import tensorflow as tf

from tests.support.plan import Clip
from tests.support.toy import StatelessHook, toy_loop
from trainer.hook import GraphHook, Hook, HostHook
from trainer.plan.stages import DECLARATIONS, PHASES, STEP_STAGES, own_stages, stages_of

STAGES = [stage for stages in PHASES.values() for stage in stages]


class Watch(HostHook):
    """Watch chunks."""

    name = "watch"

    def state_dict(self):
        return {}

    def on_chunk_end(self, run, report):
        pass

    def pictures(self, observed):
        return {}


class Guard(GraphHook, HostHook):
    """Be of both kinds."""

    name = "guard"

    def state(self):
        return {}

    def state_dict(self):
        return {}

    def veto(self, context):
        return {}

    def on_chunk_end(self, run, report):
        pass

    def warning(self, values):
        return None


def test_every_method_of_the_interface_is_a_stage_of_the_plan_or_a_declaration():
    methods = {
        name
        for base in (Hook, GraphHook, HostHook)
        for name, value in vars(base).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }
    assert methods == {*STAGES, *DECLARATIONS}
    assert not DECLARATIONS & set(STAGES)
    assert len(STAGES) == len(set(STAGES))


@pytest.mark.parametrize("base", [Hook, GraphHook, HostHook])
def test_a_hook_that_overrides_nothing_has_no_stage_and_one_that_overrides_all_has_all(base: type[Hook]):
    own = [stage for stage in STAGES if stage in vars(base)]
    kind = GraphHook if base is Hook else base
    needed = {"state": lambda self: {}, "state_dict": lambda self: {}}
    assert own_stages(type("Idle", (kind,), needed)()) == []
    busy = type("Busy", (kind,), {**needed, **dict.fromkeys(own, lambda self, *arguments: None)})
    assert own_stages(busy()) == own


def test_a_stage_that_a_parent_class_overrides_counts():
    assert "project" in own_stages(type("Child", (Clip,), {})())


def test_stages_without_hooks_are_left_out_and_a_hook_of_both_kinds_stands_in_both():
    guard = Guard()
    stages = {stage.name: stage.hooks for stage in stages_of([guard, Clip()], [Watch(), guard])}
    assert stages == {
        "build": ("clip",),
        "veto": ("guard", "clip"),
        "update_ops": ("clip",),
        "project": ("clip",),
        "measure": ("clip",),
        "warning": ("guard",),
        "on_chunk_end": ("guard", "watch"),
        "pictures": ("watch",),
    }


def test_the_stages_of_a_step_stand_in_the_order_in_which_tracing_calls_them():
    called: list[str] = []

    def record(stage: str):
        original = getattr(GraphHook, stage)

        def call(self, *arguments):
            called.append(stage)
            return original(self, *arguments)

        return call

    hook = type("Recorder", (StatelessHook,), {stage: record(stage) for stage in STEP_STAGES})()
    loop = toy_loop([hook])
    loop.run(0, 1)
    assert called == list(STEP_STAGES)
    assert isinstance(loop.loop_graph, tf.Graph)
