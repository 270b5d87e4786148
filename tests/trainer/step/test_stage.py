"""The order of hooks, their scopes and errors, and what their stages may return."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from hookline.trainer.hook import Bits, Declaration, Evaluated, HostHook
from hookline.trainer.objective import Shown
from hookline.trainer.ops.override_gradient import override_gradient
from hookline.trainer.run.build_run import _prepare_networks
from hookline.trainer.step.evaluate import Evaluator
from hookline.trainer.step.loop import python_ops
from hookline.trainer.step.stage import EXPECTED, checked, order_hooks, python_errors
from hookline.trainer.step.trainer import Trainer
from tests.support.refusals import assert_refused
from tests.support.toy import CountingHook, StatelessHook, ToyObjective, toy_batch, toy_loop, toy_network


def named(name, **declarations):
    hook = StatelessHook(name)
    for key, value in declarations.items():
        setattr(hook, key, value)
    return hook


def names(*hooks):
    return [hook.name for hook in order_hooks(hooks)]


def instances(key, *networks, **declarations):
    return [named(f"{key}@{network}", network=network, **declarations) for network in networks]


def test_hooks_are_ordered_by_declarations_then_priority_then_name():
    assert names(named("c"), named("a", priority=90), named("b")) == ["b", "c", "a"]
    assert names(named("mask", priority=99, before=("round",)), named("round", priority=0)) == ["mask", "round"]
    assert names(named("late", priority=0, after=("early",)), named("early", priority=99)) == ["early", "late"]
    assert names(named("a", reads=("z/mask",)), named("z")) == ["z", "a"]


def test_cycles_conflicts_and_shared_names_of_hooks_are_refused():
    class Watching(StatelessHook, HostHook):
        def state_dict(self):
            return {}

    watching = Watching("b")
    watching.network = "d"
    for hooks, message in (
        ([named("a", before=("b",)), named("b", before=("a",))], "hooks a, b "),
        ([named("a", conflicts=("b",)), named("b")], "'a' and 'b' cannot run together.*hooks.b=null"),
        ([named("a"), named("a")], "share a name"),
        ([*instances("a", "g", conflicts=("b",)), *instances("b", "d", "g")], "'a@g' and 'b@g'"),
        ([*instances("a", "g", conflicts=("b",)), watching], "'a@g' and 'b'"),  # it watches the run
    ):
        assert_refused(message, order_hooks, hooks)
    assert names(*instances("a", "g", conflicts=("b",)), *instances("b", "d")) == ["a@g", "b@d"]
    renamed = type("B", (StatelessHook,), {"__module__": "hooks.b"})("own")
    assert_refused(
        "'a' and 'own' cannot run together.*hooks.own=null", order_hooks, [named("a", conflicts=("b",)), renamed]
    )


@given(st.permutations(range(6)), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8))
def test_hook_order_respects_every_declared_edge_in_any_input_order(permutation, pairs):
    followers = {number: set() for number in range(6)}
    for first, second in pairs:
        if first < second:  # edges that go up cannot form a cycle
            followers[first].add(second)
    hooks = {n: named(f"h{n}", before=tuple(f"h{m}" for m in followers[n])) for n in range(6)}
    ordered = names(*(hooks[number] for number in permutation))
    assert ordered == names(*hooks.values())
    for first, successors in followers.items():
        for second in successors:
            assert ordered.index(f"h{first}") < ordered.index(f"h{second}")


def test_declarations_apply_to_every_instance_of_a_hook():
    hooks = [
        *instances("a", "g", "d", priority=0),
        *instances("z", "g", "d", before=("a",)),
        named("m", after=("a",), priority=0),
        named("n", reads=("m/mask",), priority=0),
    ]
    assert names(*hooks) == ["z@d", "z@g", "a@d", "a@g", "m", "n"]
    assert names(*reversed(hooks)) == names(*hooks)


def of_numpy(x, dtype):
    spec = tf.TensorSpec(x.shape, x.dtype)
    return override_gradient(lambda x: x.astype(dtype), lambda u, i, o: u, [x], numpy_output=spec, name="mine")


def test_user_error_propagates_out_of_the_traced_loop():
    def batch(step):  # XLA does not compile its Python
        made = toy_batch(step)
        return {**made, "inputs": tf.ensure_shape(tf.numpy_function(np.copy, [made["inputs"]], tf.float32), [16, 6])}

    assert python_ops(toy_loop(batch=batch, xla=True).graph) == []
    for dtype in ("float32", "float64"):
        hook = StatelessHook("numpy")
        hook.transform_weights = lambda weights, context, d=dtype: {n: of_numpy(w, d) for n, w in weights.items()}
        loop = toy_loop([hook])
        assert sum("/numpy/numpy_forward" in name for name in python_ops(loop.graph)) == 6
        if dtype == "float32":  # as declared
            assert loop.run(0, 2) == (2, [])
        else:
            assert_refused("^The NumPy forward of 'mine' returned float64", loop.run, 0, 2)
    with pytest.raises(tf.errors.InvalidArgumentError), python_errors():
        tf.debugging.assert_equal(tf.constant(1), tf.constant(2))


STAGES = ("transform_weights", "add_losses", "transform_gradients", "veto", "project", "update_ops", "measure")


def test_training_stages_run_only_for_the_objective_of_the_hook():
    hook, called = CountingHook("probe"), []
    hook.objective = "second"
    hook.add_losses = lambda context: {"extra": tf.constant(0.25)}
    hook.measure = lambda context: {"count": tf.convert_to_tensor(hook.count)}

    def noted(stage, answer, *arguments):
        called.append((stage, arguments[-1].objective))
        return answer(*arguments)

    for stage in STAGES:
        setattr(hook, stage, partial(noted, stage, getattr(hook, stage)))
    loop = toy_loop([hook], objectives=[ToyObjective(name="first"), ToyObjective(name="second")])
    assert loop.run(0, 3) == (3, [])
    for stage in STAGES:  # transform_weights and project run for every objective
        objectives = ["first", "second"] if stage in ("transform_weights", "project") else ["second"]
        assert [objective for each, objective in called if each == stage] == objectives, stage
    assert int(hook.count) == 3
    values = loop.accumulators.read()
    assert {"second/count", "second/loss/extra"} <= values.keys()
    assert not {"first/count", "first/loss/extra"} & values.keys()


GIVEN = {"a": tf.zeros([4, 3]), "b": tf.zeros([])}
BATCH_GIVEN = {"inputs": tf.zeros([4, 3]), "targets": tf.zeros([4], tf.int64), "index": tf.zeros([4], tf.int64)}
FLOATS = {"a": tf.ones([4, 3]), "b": tf.ones([])}

SAME_AS = {"strip_model": "rebuild_model", "split_metrics": "measure", "state_dict": "summary"}
WRONG = [
    *(None, 1, [1, 2], object(), "text", b"bytes"),
    *({1: FLOATS["a"]}, {"a": object()}, {"a": None}, {"a": "x"}),
]
"""Values that most stages may not return."""
ACCEPTED = {
    "next_step": {"None", "1"},
    "warning": {"None", "'text'"},
    "project": {"None"},
    "update_ops": {"[1, 2]"},
    **{stage: {"{'a': None}", "{'a': 'x'}", "{'a': object}"} for stage in ("advise",)},
    **{stage: {"{'a': None}", "{'a': 'x'}"} for stage in ("summary", "state_dict")},
}
"""Values of `WRONG` that a stage may return, or that are checked elsewhere."""
HANDED_ON = ("transform_weights", "gradient_point", "transform_gradients", "transform_state")
MISSING = [{}, {"a": FLOATS["a"]}]
OTHERS = {
    **{
        stage: [
            {**FLOATS, "foreign": FLOATS["a"]},
            {**FLOATS, "a": tf.ones([4])},
            {**FLOATS, "a": tf.ones([4, 3], tf.int32)},
            {**FLOATS, "a": tf.ones([4, 3], tf.float16)},
            *([] if stage == "transform_state" else MISSING),
        ]
        for stage in HANDED_ON
    },
    "frozen_entries": [{"foreign": tf.constant(True)}, {"a": tf.zeros([4], tf.bool)}, {"a": tf.zeros([4, 3])}],
    "add_losses": [{"own": tf.zeros([4, 3])}, {"own": tf.zeros([4], tf.int32)}, {"own": tf.zeros([3])}],
    "evaluate": [
        *(Evaluated({"own": tf.zeros([4, 3])}), Evaluated({"own": tf.constant("x")}), Evaluated(split_metrics={})),
        *(Evaluated(collected={"own": tf.zeros([])}), Evaluated(collected={"own": tf.zeros([3, 2])})),
    ],
    "declare": [
        *(Declaration(None), Declaration({"own": 1}), Declaration(writes={"own": tf.zeros([])})),
        *(Declaration(frozen="a"), Declaration(projected=[1]), Declaration(best_from_step=True)),
    ],
    "veto": [{"own": tf.constant(1.0)}, {"own": tf.zeros([4], tf.bool)}],
    "measure": [{"own": tf.zeros([4])}],
    "shipped_bits": [
        *(Bits({"foreign": 1.0}), Bits(weights={"a": 1.5}), Bits({"a": -1.0}), Bits({"a": True}), Bits(inputs={1: 1})),
        *(Bits({"a": float("nan")}), Bits({"a": None}), Bits(None)),
    ],
    "show": [
        *(Shown({"own": np.zeros([2, 2])}), Shown({"own": np.zeros([2, 2, 4])})),
        *(Shown({"own": np.zeros([2, 2, 3], np.uint8)}), Shown(embeddings={"own": FLOATS["a"]})),
    ],
    "project": [FLOATS],
}


def shown(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name!r}: {shown(each)}" for name, each in value.items()) + "}"
    return "tensor" if isinstance(value, tf.Tensor) else "object" if type(value) is object else repr(value)


def check(stage, value):
    checked(StatelessHook("own"), stage, value, given=GIVEN, batch=BATCH_GIVEN)


def test_invalid_return_is_refused_with_hook_and_stage():
    for stage in EXPECTED:
        kind = SAME_AS.get(stage, stage)
        wrong = [each for each in WRONG if shown(each) not in ACCEPTED.get(stage, ())]
        if stage == "transform_gradients":
            wrong.remove({"a": None})  # None is a gradient; the missing "b" is covered below
        for value in [*wrong, *OTHERS.get(stage, OTHERS.get(kind, []))]:
            assert_refused(f"The hook 'own' returned .+ from {stage}", check, stage, value)


def test_in_place_changes_and_declarations_are_checked():
    class InPlace(StatelessHook):
        def transform_weights(self, weights, context):
            for name in weights:
                weights[name] = tf.cast(weights[name], tf.int32)
            return weights

    assert_refused("returned int32 .* from transform_weights", toy_loop, [InPlace("own")])
    for attribute, value in (("reads", None), ("before", "ema"), ("conflicts", (1,))):
        hook = StatelessHook("own")
        setattr(hook, attribute, value)
        assert_refused(f"'own' declares {attribute}", order_hooks, [hook])


def test_invalid_return_is_refused_when_the_stage_runs():
    for stage in ("request_taps", "transform_weights", "update_ops", "declare", "evaluate"):
        hook = StatelessHook("own")
        setattr(hook, stage, lambda *arguments: object())
        runs = {
            "request_taps": lambda hook=hook: _prepare_networks([toy_network()], [hook], None),
            "evaluate": lambda hook=hook: Evaluator(
                Trainer([toy_network()], [ToyObjective()], [hook], seed=0), toy_batch, 4
            ),
        }
        run = runs.get(stage, lambda hook=hook: toy_loop([hook]))
        assert_refused(f"The hook 'own' returned an object from {stage}", run)
