"""What the stages of a user's hook return: every stage, every wrong return, and that it is looked at where it runs."""

from __future__ import annotations

import inspect
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.toy import BATCH, SIZE, StatelessHook, ToyObjective, toy_arrays, toy_batch, toy_loop, toy_network
from tests.unit.run.test_fit import Diary, toy_fit
from trainer.errors import UserError
from trainer.hook import GraphHook, HostHook
from trainer.input.data import Split
from trainer.input.source import ArraySource
from trainer.order import order_hooks
from trainer.run.build_trainer import _prepare_networks
from trainer.run.views import Views
from trainer.step.evaluate import Evaluator
from trainer.step.observe import Observer
from trainer.step.returned import EXPECTED, checked
from trainer.step.trainer import Trainer

AT_THE_END = {"summary", "stored_bits", "weight_bits", "input_bits"}
GIVEN = {"a": tf.zeros([4, 3]), "b": tf.zeros([])}
BATCH_GIVEN = {"inputs": tf.zeros([4, 3]), "targets": tf.zeros([4], tf.int64), "index": tf.zeros([4], tf.int64)}
FLOATS = {"a": tf.ones([4, 3]), "b": tf.ones([])}
VARIABLE = tf.Variable(0.0)

RIGHT: dict[str, list[Any]] = {
    "rebuild_model": [keras.Sequential([keras.Input((3,))])],
    "request_taps": [{}, {"tap": keras.Input((3,))}],
    "state": [{}, {"own": VARIABLE}],
    "frozen": [set(), ["a"], {"a": 1}.keys()],
    "settled_at": [0, np.int64(3)],
    "stored_bits": [{}, {"a": 1.5}],
    "weight_bits": [{}, {"a": 1}],
    "input_bits": [{}, {"toy/hidden": 1}],
    "transform_batch": [
        {**BATCH_GIVEN, "boxes": tf.zeros([4, 2])},
        {"inputs": tf.zeros([4, 3]), "index": BATCH_GIVEN["index"], "target_shares": tf.zeros([4, 2])},
    ],
    "held": [{}, {"a": tf.constant(True)}, {"a": tf.zeros([4, 3], tf.bool)}],
    "transform_weights": [FLOATS, {"b": FLOATS["b"], "a": np.ones([4, 3], np.float32)}],
    "around_forward": [tf.name_scope("a")],
    "transform_state": [{}, FLOATS, {"a": FLOATS["a"]}],
    "add_losses": [{}, {"pull": tf.zeros([4]), "push": tf.zeros([])}],
    "evaluate": [{}, {"hit": tf.zeros([4], tf.bool), "count": tf.constant(1)}],
    "transform_gradients": [FLOATS, {"a": None, "b": FLOATS["b"]}],
    "batch_sums": [{}, {"sums": tf.zeros([2, 2])}],
    "veto": [{}, {"lost": tf.constant(False)}],
    "update_ops": [[], ()],
    "project": [None],
    "measure": [{}, {"own/value": tf.constant(1), "own/rate": 0.5}],
    "split_metrics": [{}, {"recall": tf.constant(1.0)}],
    "collect": [{}, {"features": tf.zeros([4, 7]), "names": tf.constant(["x"] * 4)}],
    "summary": [{}, {"layers": [{"share": 0.5}]}],
    "next_step": [None, 3],
    "pictures": [{}, {"map": np.zeros([2, 2, 3])}],
    "embeddings": [{}],
    "distributions": [{}, {"centers": np.zeros([2, 2])}],
    "advise": [(), ["a line"]],
    "warning": [None, "a line"],
}
SAME_AS = {
    "strip_model": "rebuild_model",
    "writes": "state",
    "projected": "frozen",
    "transform_statistics": "transform_weights",
    "observe": "collect",
    "state_dict": "summary",
}
WRONG: list[Any] = [
    *(None, 1, [1, 2], object(), "text", b"bytes"),
    *({1: FLOATS["a"]}, {"a": object()}, {"a": None}, {"a": "x"}),
]
"""What is wrong from most stages."""
ACCEPTED = {
    "settled_at": {"1"},
    "next_step": {"None", "1"},
    "warning": {"None", "'text'"},
    "project": {"None"},
    "update_ops": {"[1, 2]"},
    **{stage: {"{'a': None}", "{'a': 'x'}", "{'a': object}"} for stage in ("frozen", "projected", "advise")},
    **{stage: {"{'a': None}", "{'a': 'x'}"} for stage in ("summary", "state_dict")},
}
"""Of `WRONG`, what a stage may return, or what is looked at elsewhere."""
HANDED_ON = ("transform_weights", "transform_statistics", "transform_gradients", "transform_state")
MISSING = [{}, {"a": FLOATS["a"]}]
OTHERS: dict[str, list[Any]] = {
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
    "transform_batch": [
        {name: each for name, each in BATCH_GIVEN.items() if name != "index"},
        {**BATCH_GIVEN, "inputs": tf.zeros([4, 3], tf.int32)},
        {**BATCH_GIVEN, "inputs": tf.zeros([4, 2])},
        {**BATCH_GIVEN, "inputs": tf.zeros([2, 3])},
        {**BATCH_GIVEN, "inputs": {"image": tf.zeros([4, 3]), "text": tf.zeros([4, 3])}},
    ],
    "held": [{"foreign": tf.constant(True)}, {"a": tf.zeros([4], tf.bool)}, {"a": tf.zeros([4, 3])}],
    "add_losses": [{"own": tf.zeros([4, 3])}, {"own": tf.zeros([4], tf.int32)}, {"own": tf.zeros([3])}],
    "evaluate": [{"own": tf.zeros([4, 3])}, {"own": tf.constant("x")}],
    "batch_sums": [{"own": tf.zeros([2], tf.int32)}],
    "veto": [{"own": tf.constant(1.0)}, {"own": tf.zeros([4], tf.bool)}],
    "measure": [{"own": tf.zeros([4])}],
    "split_metrics": [{"own": tf.zeros([4])}],
    "collect": [{"own": tf.zeros([])}, {"own": tf.zeros([3, 2])}],
    "stored_bits": [{"foreign": 1.0}],
    "weight_bits": [{"foreign": 1}, {"a": 1.5}],
    "summary": [{"own": np.zeros(2)}],
    "pictures": [{"own": np.zeros([2, 2])}, {"own": np.zeros([2, 2, 4])}, {"own": np.zeros([2, 2, 3], np.uint8)}],
    "project": [FLOATS],
}


def shown(value: Any) -> str:
    """Return a value as the tables of this file name it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name!r}: {shown(each)}" for name, each in value.items()) + "}"
    return "tensor" if isinstance(value, tf.Tensor) else "object" if type(value) is object else repr(value)


def check(stage: str, value: Any) -> None:
    given = BATCH_GIVEN if stage == "transform_batch" else GIVEN
    checked(StatelessHook("own"), stage, value, given=given, batch=BATCH_GIVEN)


def test_every_stage_that_returns_something_is_in_the_table() -> None:
    declared = {
        name
        for kind in (*GraphHook.__mro__[:-2], HostHook)
        for name, each in vars(kind).items()
        if inspect.isfunction(each) and inspect.signature(each).return_annotation != "None"
    }
    assert declared | {"project"} == set(EXPECTED) == set(RIGHT) | set(SAME_AS)


@pytest.mark.parametrize("stage", EXPECTED)
def test_right_returns_pass_and_wrong_ones_name_the_hook_and_the_stage(stage: str) -> None:
    kind = SAME_AS.get(stage, stage)
    for value in RIGHT[kind]:
        check(stage, value)
    wrong = [each for each in WRONG if shown(each) not in ACCEPTED.get(stage, ())]
    if stage == "transform_gradients":
        wrong.remove({"a": None})  # None is a gradient; "b" is missing, which stands below
    for value in [*wrong, *OTHERS.get(stage, OTHERS.get(kind, []))]:
        with pytest.raises(UserError, match=f"The hook 'own' returned .+ from {stage}. Expected .+") as caught:
            check(stage, value)
        assert "\n" not in str(caught.value), shown(value)


def test_the_message_says_what_was_returned_and_in_place_of_what() -> None:
    with pytest.raises(UserError) as caught:
        check("transform_weights", {**FLOATS, "a": tf.zeros([4, 3], tf.int32)})
    assert str(caught.value) == (
        "The hook 'own' returned int32 (4, 3) in place of float32 (4, 3) for 'a' from transform_weights. "
        "Expected a dict with a tensor for each name that it was given, of the same shape and dtype."
    )


def hook_with(stage: str, value: Any, kind: type = StatelessHook) -> Any:
    """Return a hook of which one stage returns a value."""
    return type("Own", (kind,), {stage: lambda self, *arguments: value, "observed_examples": 4})("own")


def prepare(hook: GraphHook, path) -> None:
    _prepare_networks([toy_network()], [hook], None)


def evaluate(hook: GraphHook, path) -> None:
    Evaluator(Trainer([toy_network()], [ToyObjective()], [hook], seed=0), toy_batch, SIZE // BATCH)


def observe(hook: GraphHook, path) -> None:
    source = ArraySource(dict(zip(("inputs", "targets"), toy_arrays(), strict=True)), transform=dict)
    trainer = Trainer([toy_network()], [ToyObjective()], [hook], seed=0)
    observer = Observer(trainer, Split("train", source, np.arange(SIZE)), batch_size=4)
    views = Views([hook], [], observer, {"validation": None})  # type: ignore[dict-item]
    views.distributions(0)
    views.pictures(0, "validation")
    views.embeddings(0, "validation")


def train(hook: Any, path) -> None:
    toy_loop([hook])


def fit(hook: HostHook, path) -> None:
    running = toy_fit(path, [hook], epochs=1)
    running.run.control.save("last")
    running.train()


RUNS = {
    **dict.fromkeys(("rebuild_model", "request_taps"), prepare),
    **dict.fromkeys(("held", "evaluate", "collect", "split_metrics"), evaluate),
    **dict.fromkeys(("observe", "pictures", "embeddings", "distributions"), observe),
    **dict.fromkeys(("next_step", "state_dict", "advise", "warning"), fit),
}


@pytest.mark.parametrize("stage", [each for each in EXPECTED if each not in {*AT_THE_END, "strip_model"}])
def test_a_wrong_return_is_refused_where_the_stage_runs(stage: str, tmp_path) -> None:
    run = RUNS.get(stage, train)
    hook = hook_with(stage, object(), Diary if run is fit else StatelessHook)
    with pytest.raises(UserError, match=f"The hook 'own' returned an object from {stage}"):
        run(hook, tmp_path)


def test_what_a_hook_changes_in_place_counts_as_returned() -> None:
    class InPlace(StatelessHook):
        def transform_weights(self, weights, context):
            for name in weights:
                weights[name] = tf.cast(weights[name], tf.int32)
            return weights

    with pytest.raises(UserError, match="returned int32 .* in place of float32 .* from transform_weights"):
        toy_loop([InPlace()])


@pytest.mark.parametrize(
    ("attribute", "value"), [("reads", None), ("before", "ema"), ("conflicts", (1,)), ("priority", "first")]
)
def test_a_declaration_of_another_type_names_the_hook(attribute: str, value: Any) -> None:
    hook = StatelessHook("own")
    setattr(hook, attribute, value)
    with pytest.raises(UserError, match=f"The hook 'own' declares {attribute} = "):
        order_hooks([hook])
