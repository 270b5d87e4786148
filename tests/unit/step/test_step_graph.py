"""The graph of a step: everything that writes is in it, in scopes by stage and hook, and no input dangles."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.support.toy import StatelessHook, ToyObjective, toy_loop
from trainer.step.name_scope import current_scope, named_scope

STAGES = {"batch", "read_variables", "forward", "losses", "compute_gradients", "apply_gradients", "metrics"}


class Everywhere(StatelessHook):
    """Leave an op in several stages, and hold a step back where it is asked to."""

    def __init__(self, *, veto: bool = True) -> None:
        super().__init__("every@where")
        self.vetoes = veto

    def build(self, context):
        self.count = tf.Variable(0.0, trainable=False)

    def state(self):
        return {"count": self.count}

    def transform_weights(self, weights, context):
        return {name: value * 1.0 for name, value in weights.items()}

    def update_ops(self, context):
        return [self.count.assign_add(1.0)]

    def veto(self, context):
        return {"never": tf.less(context.losses["total"], -1.0)} if self.vetoes else {}

    def project(self, context):
        for variable in context.network.trainable_variables.values():
            variable.assign(variable.value * 0.999)


def graph_of(loop, hook):
    network = loop.trainer.networks["model"]
    variables = {f"model/{name}": each.value for name, each in network.variables.items()}
    variables |= {f"slots/{name}": each.value for name, each in network.optimizer_variables.items()}
    return loop.step_graph({**variables, "hook/count": hook.count, "sums": loop.accumulators.variable})


@pytest.fixture(scope="module", params=["vetoed", "plain", "xla"])
def found(request):
    hook = Everywhere(veto=request.param != "plain")
    loop = toy_loop([hook], xla=request.param == "xla", norms_every=3)
    return request.param, graph_of(loop, hook), loop


def node_of(name):
    return name.removeprefix("^").partition(":")[0]


def test_every_input_is_a_node(found) -> None:
    _, graph, _ = found
    names = [node.name for node in graph.node]
    assert len(names) == len(set(names))
    assert {node_of(name) for node in graph.node for name in node.input} <= set(names)


def test_stages_and_hooks_are_scopes(found) -> None:
    kind, graph, _ = found
    tops = {node.name.partition("/")[0] for node in graph.node}
    inside = STAGES - {"batch"} if kind == "xla" else STAGES  # XLA's function gets the batch
    assert inside | {"UPDATE_OPS", "transform_weights", "project", "variables"} <= tops
    assert ("veto" in tops) == (kind != "plain")
    assert any(node.op == "FloorMod" and node.name.startswith("gradient_norms/") for node in graph.node)
    assert not [node.name for node in graph.node if node.name.startswith("while/")]
    for stage in ("transform_weights", "UPDATE_OPS", "project"):
        assert any(node.name.startswith(f"{stage}/every_where/") for node in graph.node), stage
    assert any(node.name.startswith("forward/model/") for node in graph.node)


def test_outside_of_all_scopes_stands_what_goes_in_and_out_alone(found) -> None:
    kind, graph, _ = found
    handed_out = {"Identity", "NoOp"} if kind == "xla" else set()
    decided = {"If"} if kind != "plain" else set()
    assert {node.op for node in graph.node if "/" not in node.name} == {"Placeholder", *decided, *handed_out}


def test_in_the_scope_of_an_objective_all_stands_in_those_of_stages() -> None:
    hook = Everywhere()
    graph = graph_of(toy_loop([hook], objectives=[ToyObjective("model", name) for name in "ab"], norms_every=3), hook)
    for name in "ab":
        own = [node for node in graph.node if node.name.startswith(f"{name}/")]
        assert {node.op for node in own if node.name.count("/") == 1} == {"If"}
    tops = {node.op for node in graph.node if "/" not in node.name}
    assert tops == {"Placeholder"}


def test_what_writes_waits_for_the_veto_and_takes_the_variable_by_its_name(found) -> None:
    kind, graph, _ = found
    (write,) = [node for node in graph.node if node.op == "AssignAddVariableOp" and "every_where" in node.name]
    assert write.input[0] == "variables/hook/count"
    waits = [name for name in write.input if name.startswith("^")]
    assert any("unless_vetoed" in name for name in waits) == (kind != "plain")
    applied = [node for node in graph.node if node.name.startswith("apply_gradients/") and node.op.startswith("Assign")]
    assert applied
    assert {node.name for node in graph.node if node.op == "VarHandleOp"} >= {"variables/hook/count"}


def test_the_gradients_reach_the_optimizer(found) -> None:
    """What the branch took from outside is followed: an assignment depends on the loss's own ops."""
    _, graph, _ = found
    nodes = {node.name: node for node in graph.node}
    waiting = [name for name in nodes if name.startswith("apply_gradients/")]
    seen = set()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += [node_of(each) for each in nodes[name].input]
    for stage in ("compute_gradients/", "forward/model/", "UPDATE_OPS/every_where/"):
        assert any(name.startswith(stage) for name in seen), stage


def test_tensorflow_itself_takes_the_graph(found) -> None:
    _, graph, _ = found
    for node in graph.node:  # a condition whose branches stand outside, and the nodes of variables, are for the eye
        if node.op in ("If", "StatelessIf") and "then_branch" not in node.attr:
            node.op, _ = "NoOp", node.attr.clear()
            node.input[:] = [f"^{node_of(name)}" for name in node.input]
        elif node.op == "VarHandleOp":
            node.op = "Placeholder"
            node.attr["dtype"].type = tf.resource.as_datatype_enum
    with tf.Graph().as_default():
        tf.graph_util.import_graph_def(graph, name="")


def test_names_that_tensorflow_does_not_allow_are_mended() -> None:
    with tf.Graph().as_default():
        with named_scope("a stage", "_hook@net"):
            assert current_scope() == "a_stage/scope_hook_net"
            with named_scope("inner", inside="outer"):
                assert tf.constant(1).op.name == "outer/inner/Const"
        with named_scope("a stage"):
            assert tf.constant(1).op.name == "a_stage/Const"
        with named_scope():
            assert current_scope() == ""
    with named_scope("eager"):
        assert current_scope() == ""
