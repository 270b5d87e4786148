"""The contents of an export's card."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from hookline.deploy.inference.card import Card

if TYPE_CHECKING:
    from hookline.trainer.run.run import Run


def card_of(run: Run, network: str) -> Card:
    """Return the card's facts on a network's input and outputs.

    Inputs are prepared like the data's if their shapes match, and outputs are its classes if their numbers match.
    """
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
