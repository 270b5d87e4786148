"""The stages of the plan are those of the hook interface, in the order in which a run calls them."""

from __future__ import annotations

import inspect

from hookline.scripts.planning.trace import DECLARATIONS, PHASES, STEP_STAGES
from hookline.trainer.hook import GraphHook, Hook, HostHook
from tests.support.toy import StatelessHook, toy_loop

STAGES = [stage for stages in PHASES.values() for stage in stages]


def test_every_method_of_a_hook_is_a_stage_or_a_declaration():
    methods = {
        name
        for base in (Hook, GraphHook, HostHook)
        for name, value in vars(base).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }
    assert methods == {*STAGES, *DECLARATIONS}
    assert not DECLARATIONS & set(STAGES)
    assert len(STAGES) == len(set(STAGES))


def test_the_stages_of_a_step_stand_in_the_order_of_tracing():
    called: list[str] = []

    def record(stage: str):
        original = getattr(GraphHook, stage)

        def call(self, *arguments):
            called.append(stage)
            return original(self, *arguments)

        return call

    hook = type("Recorder", (StatelessHook,), {stage: record(stage) for stage in STEP_STAGES})()
    toy_loop([hook]).run(0, 1)
    second = STEP_STAGES.index("gradient_point") + 1  # a hook that has it gets a second forward pass
    assert called == [*STEP_STAGES[:second], "transform_weights", "around_forward", "add_losses", *STEP_STAGES[second:]]
