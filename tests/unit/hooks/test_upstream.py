"""Which layers are upstream of others, in graphs with branches, shared layers, nested models and wrappers."""

from __future__ import annotations

import keras
import pytest

from hooks.freezing.upstream import with_inner_layers, with_upstream_layers
from trainer.errors import UserError
from trainer.select import layer_paths, select_layers

layers = keras.layers


def upstream(model: keras.Model, *patterns: str) -> set[str]:
    found = with_upstream_layers(model, select_layers(model, patterns))
    return {path for path, layer in layer_paths(model).items() if id(layer) in found}


def branches() -> keras.Model:
    inputs = keras.Input((4,), name="inputs")
    stem = layers.Dense(4, name="stem")(inputs)
    left = layers.Dense(4, name="left")(stem)
    right = layers.Dense(4, name="right")(stem)
    joined = layers.Add(name="join")([left, right])
    return keras.Model(inputs, layers.Dense(2, name="head")(joined + 1.0))


def test_a_chain_is_upstream_up_to_the_layer_itself():
    model = keras.Sequential([keras.Input((4,)), *(layers.Dense(4, name=name) for name in "abc")])
    assert upstream(model, "b") == {"a", "b"}
    assert upstream(model, "a") == {"a"}


def test_a_branch_is_upstream_but_not_its_sibling():
    assert upstream(branches(), "left") - {"inputs"} == {"stem", "left"}
    assert upstream(branches(), "join") - {"inputs"} == {"stem", "left", "right", "join"}
    assert upstream(branches(), "left", "right") - {"inputs"} == {"stem", "left", "right"}


def test_nothing_is_upstream_of_the_input_and_all_layers_are_upstream_of_all():
    assert upstream(branches(), "inputs") == {"inputs"}
    assert upstream(branches(), "*") == set(layer_paths(branches()))


def test_operations_that_are_no_layers_pass_on_what_came_before():
    assert {"stem", "left", "right", "join", "head"} <= upstream(branches(), "head")


def test_every_call_of_a_shared_layer_counts_but_not_the_calls_of_what_is_before_it():
    inputs = keras.Input((4,))
    shared, first, second = (layers.Dense(4, name=name) for name in ("shared", "first", "second"))
    a, b = first(inputs), second(inputs)
    model = keras.Model(inputs, layers.Add(name="sum")([shared(a), shared(b)]))
    assert {"first", "second", "shared"} <= upstream(model, "shared")
    inputs = keras.Input((4,))
    chosen, behind = layers.Dense(4, name="chosen"), layers.Dense(4, name="behind")
    after = chosen(shared(inputs))
    model = keras.Model(inputs, layers.Add(name="sum")([after, shared(behind(inputs))]))
    assert "behind" not in upstream(model, "chosen")
    assert {"shared", "chosen"} <= upstream(model, "chosen")


@pytest.mark.parametrize("sequential", [False, True], ids=["functional", "sequential"])
def test_a_nested_model_is_looked_into(sequential: bool):
    stack = [layers.Dense(4, name=name) for name in ("one", "two", "three")]
    if sequential:
        nested = keras.Sequential([keras.Input((4,)), *stack], name="nested")
    else:
        inputs = x = keras.Input((4,))
        for layer in stack:
            x = layer(x)
        nested = keras.Model(inputs, x, name="nested")
    outer = keras.Input((4,))
    model = keras.Model(outer, layers.Dense(2, name="head")(nested(layers.Dense(4, name="stem")(outer))))
    found = upstream(model, "nested/two")
    assert {"stem", "nested/one", "nested/two"} <= found
    assert not {"nested/three", "head"} & found
    assert {"stem", "nested", "nested/one", "nested/two", "nested/three"} <= upstream(model, "nested")
    assert {"stem", "nested/three", "head"} <= upstream(model, "head")


def test_a_wrapper_stands_for_the_layer_inside_it_whose_own_place_is_unknown():
    inputs = keras.Input((3, 4))
    inner = layers.TimeDistributed(layers.Dense(4, name="inner"), name="wrapper")
    model = keras.Model(inputs, layers.Dense(2, name="head")(inner(layers.Dense(4, name="stem")(inputs))))
    assert {"stem", "wrapper", "wrapper/inner"} <= upstream(model, "wrapper")
    assert {"stem", "wrapper/inner", "head"} <= upstream(model, "head")
    with pytest.raises(UserError, match="^What comes before layer 'wrapper/inner' is not known: it is inside a layer"):
        upstream(model, "wrapper/inner")


def test_a_subclassed_model_is_refused():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(2, name="dense")

        def call(self, inputs):
            return self.dense(inputs)

    model = Own()
    model(keras.ops.zeros((1, 4)))
    with pytest.raises(UserError, match="^A subclassed model has no graph .* Expected stop=weights") as error:
        upstream(model, "dense")
    assert "\n" not in str(error.value)


def test_inner_layers_are_those_of_nested_models_and_wrappers():
    nested = keras.Sequential([keras.Input((3, 4)), layers.TimeDistributed(layers.Dense(4))], name="nested")
    wrapper = nested.layers[0]
    assert with_inner_layers({"nested": nested}) >= {id(nested), id(wrapper), id(wrapper.layer)}
    assert with_inner_layers({"wrapper": wrapper}) == {id(wrapper), id(wrapper.layer)}
