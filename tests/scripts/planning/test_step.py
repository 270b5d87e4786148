"""The plan of a step: what is written, by whom, and what follows, for any networks and objectives."""

import inspect
import re

import pytest
import tensorflow as tf

from hookline.scripts.planning.drawing import as_dot, as_mermaid
from hookline.scripts.planning.plan import NETWORK, UNTRAINED, Change, ObjectivePlan, Plan, sections
from hookline.scripts.planning.trace import PHASES, STEP_STAGES, plan_step
from hookline.trainer.hook import Declaration, GraphHook, Hook, HostHook
from hookline.trainer.step.copy_network import copy_network
from tests.support.pairs import Judge, discriminator, generator, pairs_loop
from tests.support.toy import CountingHook, StatelessHook, build_context, toy_loop, toy_network

MOVING = "the trainer, for moving statistics"
SEED = "the trainer, for seed state"
TRAINED = tuple(f"toy/{name}" for name in ("hidden/kernel", "hidden/bias", "norm/gamma", "norm/beta"))
TRAINED += ("toy/logits/kernel", "toy/logits/bias")


def plan_of(loop):
    return plan_step(loop.trainer, (), loop.accumulators.names)


class Clip(CountingHook):
    def __init__(self, name="clip", network="model", *, veto=False):
        super().__init__(name)
        self.network, self.vetoes = network, veto

    def declare(self):
        state = {"count": self.count}
        return Declaration(state, writes=state, projected={"toy/hidden/kernel"})

    def project(self, context):
        kernel = context.network.trainable_variables["toy/hidden/kernel"].value
        kernel.assign(tf.clip_by_value(kernel, -1.0, 1.0))

    def veto(self, context):
        return {f"{self.name} never": tf.constant(False)} if self.vetoes else {}

    def measure(self, context):
        return {f"{self.name}/count": tf.convert_to_tensor(self.count)}


def test_each_update_op_is_listed_with_its_variables_and_origin():
    loop = toy_loop([Clip(veto=True)], network=toy_network(dropout=0.5), xla=True)
    (objective,) = plan_of(loop).objectives
    assert objective == ObjectivePlan(
        name="objective",
        runs=("model",),
        trains=("model",),
        hooks=dict.fromkeys(("veto", "update_ops", "project", "measure"), ("clip",)),
        updates=(
            Change("AssignVariableOp", SEED, ("dropout/seed_generator_state",)),
            Change("AssignVariableOp", MOVING, ("toy/norm/moving_mean",)),
            Change("AssignVariableOp", MOVING, ("toy/norm/moving_variance",)),
            Change("AssignAddVariableOp", "clip", ("clip/count",)),
        ),
        applies=(Change("apply", "SGD of model", TRAINED),),
        projections=(Change("project", "clip", ("toy/hidden/kernel",)),),
    )


def test_variables_have_the_role_trainable_frozen_or_state():
    class Freeze(StatelessHook):
        def transform_weights(self, weights, context):
            return {n: tf.stop_gradient(w) if n == "toy/hidden/kernel" else w for n, w in weights.items()}

        def declare(self):
            return Declaration(frozen={"toy/hidden/kernel", "toy/norm/moving_mean"})

        def transform_state(self, new_state, context):
            return {name: value for name, value in new_state.items() if not name.endswith("moving_mean")}

    plan = plan_of(toy_loop([Freeze()]))
    found = {each.name: each.role for each in plan.variables_of(NETWORK, "model")}
    assert found["toy/hidden/kernel"] == "frozen"
    assert found["toy/hidden/bias"] == "trainable"
    assert found["toy/norm/moving_variance"] == "state"
    assert found["toy/norm/moving_mean"] == "frozen"
    assert "toy/hidden/kernel" not in plan.objectives[0].applies[0].variables


class Follows(Judge):
    """Begin every second step with a copy."""

    def begin(self, networks):
        def copy():
            with tf.control_dependencies(copy_network(networks["source"], networks["messenger"], optimizer="keep")):
                return tf.constant(True)

        return [tf.cond(networks["source"].optimizer.iterations % 2 == 1, copy, lambda: tf.constant(False)).op]


@pytest.mark.full
def test_each_objective_lists_its_copies_and_how_often_it_runs():
    networks = [discriminator("source"), discriminator("messenger"), generator("made")]
    networks[2].fixed = True
    follows = Follows("follows", "messenger", ["made"])
    follows.updates = 2
    clips = [Clip(f"clip_{name}", name, veto=True) for name in ("source", "messenger")]
    for clip in clips:  # the copies are in a branch, since the previous objective may veto the step
        clip.projected, clip.project = set, lambda context: None
        clip.build(build_context(networks[0]))
    plan = plan_of(pairs_loop(networks, [Judge("judge", "source", ["made"]), follows], clips))
    judge, found = plan.objectives
    assert (judge.times, judge.trains, judge.runs) == (1, ("source",), ("source", "made"))
    assert (found.times, found.trains, found.runs) == (2, ("messenger",), ("messenger", "made"))
    copied = [name for each in found.updates if each.by == "begin" for name in each.variables]
    assert copied == [f"messenger/{name}" for name in networks[1].variables]
    assert not any(each.by == "begin" for each in judge.updates)
    order = next(each for each in sections(plan, full=False) if each.title.startswith("Objectives"))
    assert order.rows == (("judge", "source", "source, made", "1"), ("follows", "messenger", "messenger, made", "2"))
    assert {each.role for each in plan.variables_of(NETWORK, "made")} == {UNTRAINED}
    assert 'subgraph objective_1["objective follows, 2 times a step"]\n' in as_mermaid(plan)
    assert "objective_1_begin --> objective_1_forward\n" in as_mermaid(plan)


def test_special_characters_in_names_do_not_break_a_diagram():
    """Use names with a special meaning in one of the diagram languages."""
    for name in ('one " alone', "\\n \\l", "{a} ]] )] /]", "<b>&amp;&#35;</b>", "`md`", "two\nlines", "a --> b %% c"):
        objective = ObjectivePlan(
            name, (name,), (name,), dict.fromkeys(STEP_STAGES, (name,)), (Change(name, name, (name,)),),
            (Change(name, name, (name,)),), (Change(name, name, (name,)),),
        )  # fmt: skip
        odd = Plan({("step", "transform_weights"): (name,)}, (objective,), {name: name}, ())
        plain = as_dot(odd).replace("\\\\", "").replace('\\"', "")
        assert all(line.count('"') % 2 == 0 for line in plain.splitlines())
        shown = as_mermaid(odd)
        labels = [line for line in shown.splitlines() if '"' in line]
        assert all(line.count('"') == 2 for line in labels)
        assert not any(re.search(r"<(?!br/>)|[`\\]|&", line.split('"')[1]) for line in labels)


DECLARATIONS = {"declare", "summary", "shipped_bits", "next_step", "state_dict", "load_state_dict"}
"""Public methods by which hooks describe themselves; they are not stages."""
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


def test_stages_of_a_step_are_in_the_order_of_tracing():
    called: list[str] = []

    def record(stage: str):
        original = getattr(GraphHook, stage)

        def call(self, *arguments):
            called.append(stage)
            return original(self, *arguments)

        return call

    hook = type("Recorder", (StatelessHook,), {stage: record(stage) for stage in STEP_STAGES})()
    toy_loop([hook]).run(0, 1)
    second = STEP_STAGES.index("gradient_point") + 1  # a hook with this stage gets a second forward pass
    assert called == [*STEP_STAGES[:second], "transform_weights", "around_forward", "add_losses", *STEP_STAGES[second:]]
