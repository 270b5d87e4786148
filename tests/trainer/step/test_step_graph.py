"""The graph of a step: everything that writes is in it, in scopes by stage and hook, and no input dangles."""

from __future__ import annotations

import pytest
import tensorflow as tf

from hookline.trainer.hook import Declaration
from tests.support.toy import StatelessHook, toy_loop

STAGES = {"batch", "read_variables", "forward", "losses", "compute_gradients", "apply_gradients", "metrics"}


class Everywhere(StatelessHook):
    """Leave an op in several stages."""

    def build(self, context):
        self.count = tf.Variable(0.0, trainable=False)

    def declare(self):
        return Declaration({"count": self.count})

    def transform_weights(self, weights, context):
        return {name: value * 1.0 for name, value in weights.items()}

    def update_ops(self, context):
        return [self.count.assign_add(1.0)]

    def veto(self, context):
        return {"never": tf.less(context.losses["total"], -1.0)}

    def project(self, context):
        for variable in context.network.trainable_variables.values():
            variable.assign(variable.value * 0.999)


def graph_of(loop, hook):
    network = loop.trainer.networks["model"]
    variables = {f"model/{name}": each.value for name, each in network.variables.items()}
    variables |= {f"slots/{name}": each.value for name, each in network.optimizer_variables.items()}
    return loop.step_graph({**variables, "hook/count": hook.count, "sums": loop.accumulators.variable})


@pytest.fixture(params=["vetoed", "xla"])
def found(request):
    hook = Everywhere("every@where")
    loop = toy_loop([hook], xla=request.param == "xla", norms_every=3)
    return request.param, graph_of(loop, hook)


def node_of(name):
    return name.removeprefix("^").partition(":")[0]


def test_every_input_is_a_node_and_stages_and_hooks_are_scopes(found) -> None:
    kind, graph = found
    names = [node.name for node in graph.node]
    assert len(names) == len(set(names))
    assert {node_of(name) for node in graph.node for name in node.input} <= set(names)
    tops = {name.partition("/")[0] for name in names}
    inside = STAGES - {"batch"} if kind == "xla" else STAGES  # XLA's function gets the batch
    assert inside | {"UPDATE_OPS", "transform_weights", "project", "variables", "veto"} <= tops
    for scope in ("transform_weights/every_where", "UPDATE_OPS/every_where", "project/every_where", "forward/model"):
        assert any(name.startswith(f"{scope}/") for name in names), scope
    outside = {node.op for node in graph.node if "/" not in node.name}
    assert outside <= {"Placeholder", "If", "Identity", "NoOp"}


def test_the_gradients_reach_the_optimizer(found) -> None:
    """What the branch took from outside is followed: an assignment depends on the loss's own ops."""
    _, graph = found
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
    (write,) = [node for node in graph.node if node.op == "AssignAddVariableOp" and "every_where" in node.name]
    assert write.input[0] == "variables/hook/count"
    assert any("unless_vetoed" in name for name in write.input if name.startswith("^"))
