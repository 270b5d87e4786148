"""What the stages of a user's hook return: every stage, every wrong return, and that it is looked at where it runs."""

import numpy as np
import tensorflow as tf

from hookline.trainer.hook import Bits, Declaration, Evaluated
from hookline.trainer.objective import Shown
from hookline.trainer.order import order_hooks
from hookline.trainer.run.build_run import _prepare_networks
from hookline.trainer.step.evaluate import Evaluator
from hookline.trainer.step.returned import EXPECTED, checked
from hookline.trainer.step.trainer import Trainer
from tests.support.refusals import assert_refused
from tests.support.toy import StatelessHook, ToyObjective, toy_batch, toy_loop, toy_network

GIVEN = {"a": tf.zeros([4, 3]), "b": tf.zeros([])}
BATCH_GIVEN = {"inputs": tf.zeros([4, 3]), "targets": tf.zeros([4], tf.int64), "index": tf.zeros([4], tf.int64)}
FLOATS = {"a": tf.ones([4, 3]), "b": tf.ones([])}

SAME_AS = {"strip_model": "rebuild_model", "split_metrics": "measure", "state_dict": "summary"}
WRONG = [
    *(None, 1, [1, 2], object(), "text", b"bytes"),
    *({1: FLOATS["a"]}, {"a": object()}, {"a": None}, {"a": "x"}),
]
"""What is wrong from most stages."""
ACCEPTED = {
    "next_step": {"None", "1"},
    "warning": {"None", "'text'"},
    "project": {"None"},
    "update_ops": {"[1, 2]"},
    **{stage: {"{'a': None}", "{'a': 'x'}", "{'a': object}"} for stage in ("advise",)},
    **{stage: {"{'a': None}", "{'a': 'x'}"} for stage in ("summary", "state_dict")},
}
"""Of `WRONG`, what a stage may return, or what is looked at elsewhere."""
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


def test_a_wrong_return_names_the_hook_and_the_stage():
    for stage in EXPECTED:
        kind = SAME_AS.get(stage, stage)
        wrong = [each for each in WRONG if shown(each) not in ACCEPTED.get(stage, ())]
        if stage == "transform_gradients":
            wrong.remove({"a": None})  # None is a gradient; "b" is missing, which stands below
        for value in [*wrong, *OTHERS.get(stage, OTHERS.get(kind, []))]:
            assert_refused(f"The hook 'own' returned .+ from {stage}", check, stage, value)


def test_changes_in_place_and_declarations_are_checked_too():
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


def test_a_wrong_return_is_refused_where_the_stage_runs():
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
