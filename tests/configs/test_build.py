"""Arguments are checked against the signature before anything is called, and what is built is what was asked for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras
import pytest

from trainer.config.build import bind, build
from trainer.errors import UserError

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
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (tmp_path / "parts_for_tests.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "parts_for_tests", raising=False)
    return ["parts_for_tests"]


def node(name: str, **arguments: Any) -> dict[str, Any]:
    return {"_target_": f"parts_for_tests.{name}", **arguments}


BAD = [
    (node("Part", rate="fast"), "rate=fast received for parts_for_tests.Part. Expected a number."),
    (node("Part", rate=True), "rate=true received for parts_for_tests.Part. Expected a number."),
    (node("Part", rate=None), "rate=null received for parts_for_tests.Part. Expected a number."),
    (node("Part", rate=1, mode="c"), "mode=c received for parts_for_tests.Part. Expected one of a, b."),
    (
        node("Part", rate=1, names="x"),
        "names=x received for parts_for_tests.Part. Expected a list, each a text or null.",
    ),
    (
        node("Part", rate=1, names=[1]),
        "names=[1] received for parts_for_tests.Part. Expected a list, each a text or null.",
    ),
    (node("Part", rate=1, width=2.5), "width=2.5 received for parts_for_tests.Part. Expected a whole number."),
    (
        node("Part", rat=1),
        "Unknown argument 'rat' for parts_for_tests.Part. Did you mean 'rate'? "
        "Expected one of: rate, mode, names, width.",
    ),
    (node("Part"), "parts_for_tests.Part needs rate. Expected a value, such as rate=<value>."),
    (node("Bare", a=1), "Unknown argument 'a' for parts_for_tests.Bare. Expected one of: none."),
    (node("Record", size="x"), "size=x received for parts_for_tests.Record. Expected a whole number."),
    (node("record", flag=1), "flag=1 received for parts_for_tests.record. Expected true or false."),
    (node("record", count=None), "count=null received for parts_for_tests.record. Expected a number."),
    (
        node("record", part=[{"a": node("Part", rat=1)}]),
        "Unknown argument 'rat' for parts_for_tests.Part. Did you mean 'rate'? "
        "Expected one of: rate, mode, names, width.",
    ),
    (node("record", part=node("Part")), "parts_for_tests.Part needs rate. Expected a value, such as rate=<value>."),
    (
        node("record", part={"_target_": "os.system", "command": "ls"}),
        "_target_=os.system is not allowed: it builds no part of a run.",
    ),
    ({"size": 3}, "A part without _target_ received: {size:3}. Expected _target_=<import path>."),
]


@pytest.mark.parametrize(("bad", "message"), BAD, ids=[str(index) for index in range(len(BAD))])
def test_wrong_arguments_are_named_and_nothing_is_called(plugins: list[str], bad: dict[str, Any], message: str) -> None:
    for check in (lambda: bind(bad, plugins=plugins, injected=()), lambda: build(bad, plugins=plugins)):
        with pytest.raises(UserError) as caught:
            check()
        assert str(caught.value) == message
    assert "parts_for_tests" not in sys.modules or sys.modules["parts_for_tests"].calls == []


def test_parts_are_built_from_the_inside(plugins: list[str]) -> None:
    part, flag, count, text, anything = build(
        node("record", part=[node("Part", rate=2, width=7), 5], flag=True, more={"a": node("Bare")}), plugins=plugins
    )
    assert (part[0].rate, part[0].width, part[0].mode, part[1]) == (2, 7, "a", 5)
    assert (flag, count, text) == (True, 1, "x")
    assert type(anything["more"]["a"]).__name__ == "Bare"


def test_injected_arguments_go_to_those_who_take_them(plugins: list[str]) -> None:
    assert build(node("Part"), plugins=plugins, rate=3, unrelated=object()).rate == 3
    assert build(node("Part", rate=1), plugins=plugins, rate=3).rate == 3, "an injected argument wins"


def test_a_missing_argument_is_no_error_while_injected_ones_are_unknown(plugins: list[str]) -> None:
    bind(node("Part"), plugins=plugins)
    bind(node("Part"), plugins=plugins, injected={"rate"})


def test_objects_are_passed_as_they_are(plugins: list[str]) -> None:
    rate = object()
    assert build(node("Part", rate=rate), plugins=plugins).rate is rate


def test_an_annotation_that_is_not_imported_at_run_time_fits_everything(plugins: list[str]) -> None:
    assert build(node("Record", size=1, unknown="x"), plugins=plugins).unknown == "x"


def test_a_fault_of_the_program_stays_one(plugins: list[str]) -> None:
    with pytest.raises(ValueError, match="a fault of the program") as caught:
        build(node("fails"), plugins=plugins)
    assert not isinstance(caught.value, UserError)


def test_the_node_is_left_as_it_was(plugins: list[str]) -> None:
    given = node("record", part=[node("Bare")])
    build(given, plugins=plugins)
    assert given == node("record", part=[node("Bare")])


def test_keras_objects_are_built_and_their_refusals_are_one_line() -> None:
    optimizer = build({"_target_": "keras.optimizers.SGD", "learning_rate": 0.5, "momentum": 0.25})
    assert isinstance(optimizer, keras.optimizers.SGD)
    assert (float(optimizer.learning_rate), optimizer.momentum) == (0.5, 0.25)
    layer = build({"_target_": "keras.layers.Dense", "units": 3, "name": "head", "dtype": "float32"})
    assert (layer.units, layer.name) == (3, "head")
    for target in ("keras.optimizers.Adam", "recipes.optimizers.adam.Adam"):  # the second with Keras' constructor
        with pytest.raises(UserError) as caught:
            build({"_target_": target, "clipnorm": 1.0, "clipvalue": 1.0}, group="optimizer")
        assert str(caught.value).startswith(f"{target} refuses its arguments: Only one of")
    with pytest.raises(UserError, match="Unknown argument 'beta1' for keras.optimizers.Adam. Did you mean 'beta_1'?"):
        build({"_target_": "keras.optimizers.Adam", "beta1": 0.9})
    initializer = {"_target_": "keras.initializers.HeNormal", "sed": 1}
    with pytest.raises(UserError, match="Unknown argument 'sed' for keras.initializers.HeNormal"):
        bind({"_target_": "keras.layers.Dense", "units": 3, "kernel_initializer": initializer})
