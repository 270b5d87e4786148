"""The exported network as a plain Keras model, and its card."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from hookline.deploy.formats import first_line
from hookline.deploy.inference.card import Card
from hookline.trainer.errors import UserError
from hookline.trainer.final_activation import put_back, with_final
from hookline.trainer.graph import graph_calls, is_graph
from hookline.trainer.hook import Run
from hookline.trainer.network import Network, name_variables, settle
from hookline.trainer.run.finished import foreign_parts
from hookline.trainer.run.state import shipped_weights
from hookline.trainer.step.stage import checked, in_stage
from hookline.trainer.step.trainer import Trainer


@contextmanager
def assigned(network: Network, weights: Mapping[str, np.ndarray]) -> Iterator[None]:
    """Assign other values to variables within the block, and restore the old ones afterwards."""
    variables = network.variables
    before = {name: np.array(variables[name].numpy()) for name in weights}
    try:
        for name, value in weights.items():
            variables[name].assign(value)
        yield
    finally:
        for name, value in before.items():
            variables[name].assign(value)


MIXED = "mixed_"
FULL = "float32"


def is_fake(operation: Any) -> bool:
    """Return whether an operation is Keras's fake quantization."""
    return type(operation).__name__ == "FakeQuantWithMinMaxVars"


def is_fake_quantized(model: keras.Model) -> bool:
    """Return whether a model rounds the tensors between its layers, as integer runtimes do."""
    return is_graph(model) and any(is_fake(call.operation) for call in graph_calls(model))


def mixed_dtypes(model: keras.Model) -> set[str]:
    """Return the half precisions in which layers with float32 variables compute, such as {"bfloat16"}."""
    policies = {layer.dtype_policy.name for layer in model._flatten_layers()}
    return {name.removeprefix(MIXED) for name in policies if name.startswith(MIXED)}


def architecture(part: Any, mixed: Collection[str] = ()) -> Any:
    """Return the config of a model or another part without its `compile` config, which names an optimizer and a loss.

    If mixed dtypes are given, float32 replaces mixed policies, and these dtypes between layers.
    """
    return _changed(keras.saving.serialize_keras_object(part), mixed)


def _changed(config: Any, mixed: Collection[str]) -> Any:
    if isinstance(config, list | tuple):
        return type(config)(_changed(value, mixed) for value in config)
    if not isinstance(config, Mapping):
        return config
    if mixed and config.get("class_name") == "DTypePolicy":
        is_mixed_policy = config["config"].get("name", "").startswith(MIXED)
        return {**config, "config": {**config["config"], "name": FULL}} if is_mixed_policy else config
    return {
        key: FULL if key == "dtype" and isinstance(value, str) and value in mixed else _changed(value, mixed)
        for key, value in config.items()
        if key != "compile_config"
    }


def rebuilt(model: keras.Model, *, full: bool = False) -> keras.Model:
    """Return a new model with the same layers and values of variables; if `full`, in float32.

    Built layers keep their dtype policy. On a CPU, half precision is slower than float32 and less exact.
    """
    config = architecture(model, mixed_dtypes(model) if full else ())
    kinds = {type(layer) for layer in model._flatten_layers()}
    classes = {kind.__name__: kind for kind in kinds if not _is_of_keras(kind.__module__)}  # `x + 3` is an Add, too
    with keras.saving.custom_object_scope(classes):
        made = keras.saving.deserialize_keras_object(config)
    assign_weights(made, model)
    return made


def assign_weights(model: keras.Model, values: keras.Model) -> None:
    """Copy weights and moving statistics, and the seed states that both models have, from another model.

    A model's config does not show which layers have a seed state: a dropout built with rate 0 has none.
    """
    for variable, given in zip(model.weights, values.weights, strict=True):
        variable.assign(given.value)
    assign_seeds(model, values)
    settle(model)


def assign_seeds(model: keras.Model, values: keras.Model) -> None:
    """Copy the seed states that both models have from another model, so that both draw the same random numbers."""
    seeds = dict(_seeds(values))
    for place, state in _seeds(model):
        if place in seeds:
            state.assign(seeds[place].value)


def draws_numbers(model: keras.Model, inputs: Any) -> bool:
    """Return whether a model draws random numbers in inference."""
    with keras.StatelessScope() as scope:
        model(inputs)
    return any(id(state) in scope.state_mapping for _, state in _seeds(model))


def _seeds(model: keras.Model) -> Iterator[tuple[tuple[int, int], keras.Variable]]:
    """Yield the seed states of a model, by the index of the layer and the index of its seed generator."""
    for place, layer in enumerate(model._flatten_layers()):  # names may differ in a file
        for number, generator in enumerate(layer._seed_generators):
            yield (place, number), generator.state


@contextmanager
def plain_model(trainer: Trainer, step: int, network: str, *, full: bool = True) -> Iterator[keras.Model]:
    """Yield the model that `finished_model` returns, in float32 if `full`; restore the trainer afterwards."""
    owner, shipped = trainer.networks[network], shipped_weights(trainer, step)[network]
    with assigned(owner, shipped), put_back(strip_model(trainer, network), owner.final_activations) as model:
        yield _with_shipped(owner, shipped, model, full=full)


def finished_model(run: Run, network: str) -> keras.Model:
    """Return the model of a network with the weights that evaluation uses, without hooks, in float32.

    It ends with the activation of the user's model. It is a deep copy, unless it was trained in float32 and has parts
    that are not Keras's, which may not be rebuildable from their config: then it is the network's own model, changed.
    """
    owner, shipped = run.trainer.networks[network], shipped_weights(run.trainer, run.step)[network]
    with assigned(owner, shipped):
        model = with_final(strip_model(run.trainer, network), owner.final_activations)
    return _with_shipped(owner, shipped, model, full=True)


def _with_shipped(owner: Network, shipped: Mapping[str, np.ndarray], model: keras.Model, *, full: bool) -> keras.Model:
    """Return a copy with the weights that evaluation uses, or the model itself if parts of it are not Keras's."""
    variables = owner.variables
    values = {id(variables[name]): np.array(value) for name, value in shipped.items()}
    made, foreign = model, foreign_names(model)
    if not foreign or (full and mixed_dtypes(model)):
        try:
            made = rebuilt(model, full=full)
        except Exception as error:
            if not foreign:
                raise UserError(
                    f"Keras cannot rebuild '{model.name}': {first_line(error)} Expected layers that it can rebuild: "
                    "instead of a Lambda, a class of your own."
                ) from error
            raise UserError(
                f"'{model.name}' was trained in half precision, and Keras cannot rebuild it in float32: "
                f"{first_line(error)} Expected classes whose get_config returns all constructor arguments, or a run "
                "with trainer.precision=float32."
            ) from error
    for variable, own in zip(made.weights, model.weights, strict=True):
        if id(own) in values:
            variable.assign(values[id(own)])
    settle(made)
    return made


def strip_model(trainer: Trainer, network: str) -> keras.Model:
    """Return the model of a network without the parts that hooks inserted; it shares the network's variables."""
    model = trainer.networks[network].model
    for hook in reversed(trainer.hooks):
        if hook.network == network:
            with in_stage(hook, "strip_model"):
                model = checked(hook, "strip_model", hook.strip_model(model))
    return model


def check_plain(model: keras.Model) -> None:
    """Refuse a model with parts that are not Keras's own."""
    if foreign := foreign_names(model):
        raise UserError(
            f"format=sparse holds only Keras parts. '{model.name}' also has: {', '.join(foreign)}. Expected a "
            "network without them, or format=saved_model."
        )


def foreign_names(model: keras.Model) -> list[str]:
    """Return the layers of a model that are not Keras classes; if there are none, its other parts that are not."""
    foreign = [layer for layer in model._flatten_layers() if not _is_of_keras(type(layer).__module__)]
    layers = [f"{layer.name} ({type(layer).__name__})" for layer in foreign]
    return layers or sorted(set(foreign_parts(architecture(model))))


def check_weights(weights: Iterable[keras.Variable], format_name: str, lacks: Callable[[str], bool]) -> None:
    """Refuse weights of a dtype that a format lacks."""
    for name, variable in name_variables(weights).items():
        if lacks(variable.dtype):
            raise UserError(
                f"The weight {name} is of {variable.dtype}. Expected float32 for format={format_name}, or format=keras."
            )


def card_of(run: Run, network: str) -> Card:
    """Return the card of a network, with the preparation and the classes of the data if they fit the network."""
    model, data = run.trainer.networks[network].model, run.data
    shape = _example_shape(model, "input_shape")
    if shape is None or None in shape:  # a subclassed model has no known shape, and another may take any size
        shape = data.input_shape
    classifies = any(each.class_losses and network in each.trains for each in run.trainer.objectives)
    classes: tuple[str, ...] = ()
    if classifies and _example_shape(model, "output_shape") in (None, (data.classes,)):
        classes = data.class_names or tuple(str(label) for label in range(data.classes))
    preparation = data.preparation if data.preparation and data.preparation.shape == shape else None
    ends = run.trainer.networks[network].final_activations if classes else ()
    activation = next((each.name for each in ends), None)
    inputs = {} if shape else data.preparations
    return Card(network, run.checkpoint, run.step, shape, classes, preparation, activation, inputs)


def _example_shape(model: keras.Model, attribute: str) -> tuple[int, ...] | None:
    shape = getattr(model, attribute, None)
    return tuple(shape[1:]) if isinstance(shape, tuple) else None


def single_model(run: Run, network: str, model: keras.Model, format_name: str) -> keras.Model:
    """Return a model as a functional graph from one tensor to another, each [batch, ...]."""
    if not hasattr(model, "inputs"):
        inputs = keras.Input(card_of(run, network).shape)
        model = keras.Model(inputs, model(inputs), name=model.name)
    check_single(model, format_name)
    return model


def check_single(model: keras.Model, format_name: str) -> None:
    """Refuse a model with several inputs or outputs."""
    if (len(model.inputs), len(model.outputs)) != (1, 1):
        raise UserError(
            f"'{model.name}' has {len(model.inputs)} inputs and {len(model.outputs)} outputs. Expected one of each for "
            f"format={format_name}, or format=keras."
        )


def _is_of_keras(module: str | None) -> bool:
    return (module or "").partition(".")[0] == "keras"
