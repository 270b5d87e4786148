"""Arguments are checked against the signature before anything is called, and the requested parts are built."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Optional, Union

import keras
import pytest

from hookline.trainer.config.build import bind, build
from hookline.trainer.config.command import parse_command
from hookline.trainer.config.preflight import check_early, preflight
from hookline.trainer.config.schema import fits, is_interpolation, like
from tests.support.refusals import assert_refused, refusal

SOURCE = """
from __future__ import annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
if TYPE_CHECKING:
    from nowhere import Unknown

calls = []

class Base:
    def __init__(self, *, width: int = 3, **rest): self.width = width

class Part(Base):
    def __init__(self, *, rate: float, mode: Literal["a", "b"] = "a", names: list[str] | None = None, **rest):
        super().__init__(**rest)
        self.rate, self.mode, self.names = rate, mode, names

class Bare: ...

@dataclass
class Record:
    size: int
    unknown: Unknown | None = None

def record(part=None, flag=False, count=1, text="x", **anything):
    calls.append((part, flag, count, text, anything))
    return calls[-1]

def fails(value: int = 0):
    raise ValueError("a fault of the program")
"""


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    (tmp_path / "parts_for_tests.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "parts_for_tests", raising=False)
    return ["parts_for_tests"]


def node(name, **arguments):
    return {"_target_": f"parts_for_tests.{name}", **arguments}


BAD = [
    (node("Part", rate=True), "rate=true received for parts_for_tests.Part. Expected a number."),
    (node("Part", rate=1, mode="c"), "Expected one of a, b."),
    (node("Part", rate=1, width=2.5), "Expected a whole number."),
    (node("Part"), "parts_for_tests.Part needs rate."),
    (node("Record", size="x"), "Expected a whole number."),
    (node("record", part=[{"a": node("Part", rat=1)}]), "Did you mean 'rate'? Expected one of: mode, names, rate, wid"),
    (node("record", part={"_target_": "os.system", "command": "ls"}), "_target_=os.system is not allowed"),
    ({"size": 3}, "A part without _target_ received"),
]


def test_wrong_arguments_are_reported_and_nothing_is_called(plugins):
    for bad, words in BAD:
        for check in (lambda bad: bind(bad, plugins=plugins, injected=()), lambda bad: build(bad, plugins=plugins)):
            assert words in refusal(check, bad)
    assert sys.modules["parts_for_tests"].calls == []


def test_nested_parts_are_built_first_and_the_node_is_unchanged(plugins):
    rate = object()
    given = node("record", part=[node("Part", rate=2, width=7), 5], flag=True, more={"a": node("Bare")}, rate=rate)
    kept = copy.deepcopy({**given, "rate": None})
    part, flag, count, text, anything = build(given, plugins=plugins)
    assert (part[0].rate, part[0].width, part[0].mode, part[1]) == (2, 7, "a", 5)
    assert (flag, count, text, anything["rate"]) == (True, 1, "x", rate)
    assert type(anything["more"]["a"]).__name__ == "Bare"
    assert {**given, "rate": None} == kept
    assert build(node("Record", size=1, unknown="x"), plugins=plugins).unknown == "x"  # not imported at run time
    with pytest.raises(ValueError, match="a fault of the program"):
        build(node("fails"), plugins=plugins)


def test_keras_objects_are_built_and_their_errors_reported_in_one_line():
    optimizer = build({"_target_": "keras.optimizers.SGD", "learning_rate": 0.5, "momentum": 0.25})
    assert isinstance(optimizer, keras.optimizers.SGD)
    assert (float(optimizer.learning_rate), optimizer.momentum) == (0.5, 0.25)
    typed = build({"_target_": "keras.optimizers.SGD", "learning_rate": 3, "momentum": 0})
    assert (float(typed.learning_rate), typed.momentum) == (3.0, 0.0)
    layer = build({"_target_": "keras.layers.Dense", "units": 3, "name": "head", "dtype": "float32"})
    assert (layer.units, layer.name) == (3, "head")
    ours = "hookline.recipes.optimizers.fused_update.Adam"  # with the constructor of Keras
    for target in ("keras.optimizers.Adam", ours):
        both = {"_target_": target, "clipnorm": 1.0, "clipvalue": 1.0}
        assert_refused(f"^{target} refuses its arguments: Only one of", build, both, group="optimizer")
    assert_refused("Did you mean 'beta_1'?", build, {"_target_": "keras.optimizers.Adam", "beta1": 0.9})
    initializer = {"_target_": "keras.initializers.HeNormal", "sed": 1}
    dense = {"_target_": "keras.layers.Dense", "units": 3, "kernel_initializer": initializer}
    assert_refused("Unknown argument of keras.initializers.HeNormal 'sed'", bind, dense)


def test_values_fit_their_annotations():
    for value, annotation in [
        (1, int), (1, float), (1.5, float), (True, bool), ("a", str), (None, None), ("a", int | str),
        (None, Optional[int]), (1, Union[int, str]),  # noqa: UP007, UP045 - the older spellings, too
        ("a", Literal["a", "b"]), ([1, 2], list[int]), ([1, 2], tuple[int, ...]), ([1, "a"], tuple[int, str]),
        (["a"], Sequence[str]), ({"a": 1}, dict[str, int]), ({"a": 1}, Mapping[str, Any]), (object(), Any),
        ("x", bytes),
    ]:  # fmt: skip
        assert fits(value, annotation), (value, annotation)
    for value, annotation in [
        (True, int), (True, float), (1, bool), (1.0, int), ("1", int), (1, str), (None, int), ("c", Literal["a", "b"]),
        (True, Literal[1]), ([1, "a"], list[int]), ("ab", list[str]), ("ab", Sequence[str]), ([1], tuple[int, str]),
        ({"a": "b"}, dict[str, int]), ([], dict), (1.5, int | None),
    ]:  # fmt: skip
        assert not fits(value, annotation), (value, annotation)
    for default, good, bad in [  # what may replace a default without an annotation
        (1, [2, 2.5, None], ["a", True, [1], {}]),
        (True, [False, None], [1, "a"]),
        ("a", ["b", 3, None, ["b"], {"_target_": "x.y"}], [True]),
        ([1], [[], None, "all"], [3, True]),
        ("???", [1, True, "a"], []),
    ]:
        assert all(fits(value, like(default)) for value in good), default
        assert not any(fits(value, like(default)) for value in bad), default
    references = ["${trainer.epochs}", "runs/${seed}", r"\\${seed}"]  # the last one: an escaped backslash
    assert all(map(is_interpolation, references))
    assert not any(map(is_interpolation, [r"\${seed}", "$HOME", 3]))


def test_leftover_arguments_of_a_replaced_part_are_dropped_with_a_warning():
    adamax = "recipe=baseline optimizer._target_=keras.optimizers.Adamax"
    piecewise = "recipe=baseline schedule._target_=keras.optimizers.schedules.PiecewiseConstantDecay"
    images = "recipe=attention data=image_folder data.path=."
    for arguments, said, left in (
        (adamax, "optimizer.amsgrad=false (configs/optimizer/adam.yaml:7) left out", "amsgrad"),
        (piecewise, "schedule.warmup_fraction=0.0", "final_fraction warmup_steps warmup_fraction"),
        (images, "data.train_examples=6000 (configs/recipe/attention.yaml", "train_examples"),
    ):
        node = next(each for each in ("optimizer", "schedule", "data") if f"{each}." in arguments)
        with pytest.warns(UserWarning, match="left out: ") as shown:
            (job,) = preflight(parse_command(arguments.split()))
        (line,) = [str(each.message) for each in shown]
        assert said in line
        assert not {*left.split()} & job.config[node].keys()
        assert job.config[node]["_target_"] in line


@pytest.mark.filterwarnings("error")
def test_learning_rate_meant_for_another_optimizer_warns():
    typed_in = "sgd optimizer.learning_rate=0.003"
    for given, usual in (("sgd", "0.1"), ("lion", "0.0003"), ("adamw", None), (typed_in, None), ("adam", None)):
        recipe = "regression" if given == "adam" else "baseline"  # its rate is ten times the rate in adam.yaml
        (job,) = preflight(parse_command(f"recipe={recipe} optimizer={given}".split()))
        if usual is None:
            check_early(job, directories=False)
        else:
            with pytest.warns(UserWarning, match=rf"rate=0\.003 is the recipe's.*{given}\.yaml has {usual}\. Set"):
                check_early(job, directories=False)


def test_unknown_arguments_from_command_line_or_user_recipe_are_refused(tmp_path):
    recipe = tmp_path / "recipe" / "mine.yaml"
    recipe.parent.mkdir()
    recipe.write_text("# @package _global_\n# Mine\ndefaults: [baseline, _self_]\ndata: {test_fracton: 0.1}\n")
    for arguments, name in (
        ("recipe=baseline optimizer._target_=keras.optimizers.Adamax optimizer.amsgrad=false", "amsgrad"),
        ("recipe=attention data=image_folder data.path=. data.train_examples=6000", "train_examples"),
        ("recipe=mine --config-dir DIRECTORY", "test_fracton"),
    ):
        words = [str(tmp_path) if word == "DIRECTORY" else word for word in arguments.split()]
        (job,) = preflight(parse_command(words))
        assert_refused(f"Unknown argument of .* '{name}'", check_early, job, directories=False)
