"""A network loaded from a .keras file."""

from __future__ import annotations

from collections.abc import Sequence

import keras

from hookline.trainer.deferred import prechecked
from hookline.trainer.errors import UserError, user_path
from hookline.trainer.final_activation import take_off
from hookline.trainer.graph import as_functional, is_graph, is_of, maker
from hookline.trainer.run.finished import check_parts, load_keras, own_classes

HEAD = "outputs"


def check_file(path: str) -> None:
    """Refuse a path that is not a .keras file."""
    given = user_path(path, "model.path")
    if given.suffix != ".keras" or not given.is_file():
        reason = "is not a .keras file" if given.exists() else "does not exist"
        raise UserError(
            f"model.path={path} {reason}. Expected a file that model.save('net.keras') has written; weights alone go "
            "into a model of the same layers, by init_from=."
        )


@prechecked(check_file)
def keras_file(
    input_shape: Sequence[int],
    classes: int,
    *,
    path: str,
    weights: bool = True,
    new_head: bool = False,
    packages: Sequence[str] = (),
) -> keras.Model:
    """Return the model in a .keras file.

    Keras loads it in safe mode: only classes of Keras and of the packages given by `plugins=` are instantiated, and
    Lambda layers are refused.

    `packages` are the user's packages that define classes of the file.
    """
    file = user_path(path, "model.path")
    with own_classes(packages):
        try:
            check_parts(file, packages)
            model = load_keras(file)
        except UserError as error:
            raise UserError(
                f"model.path={path}: {error} Classes of your own need plugins=[<module>]; weights alone go into a "
                "model of the same layers, by init_from=."
            ) from error
        if not weights:
            model = keras.models.clone_model(model)
            if not model.built:
                model(keras.Input(tuple(input_shape)))
    if new_head:
        return _with_new_head(model, classes, path)
    shape = getattr(model, "output_shape", None)
    if isinstance(shape, tuple) and isinstance(shape[-1], int) and shape[-1] != classes:
        raise UserError(
            f"The model of model.path={path} has {shape[-1]} outputs. Expected {classes}, one for each class of the "
            "data: model.new_head=true replaces the last layer."
        )
    return model


def _with_new_head(model: keras.Model, classes: int, path: str) -> keras.Model:
    model, _ = take_off(model)
    model = as_functional(model) if is_graph(model) else model
    last = maker(model, model.outputs[0]) if is_graph(model) and len(model.outputs) == 1 else None
    if last is None or not is_of(last.operation, ["Dense"]):
        raise UserError(
            f"model.new_head=true received, and the model of model.path={path} does not end in one dense layer. "
            f"Expected a model of yours that ends in {classes} units, by model=custom, and init_from={path}."
        )
    return keras.Model(model.input, keras.layers.Dense(classes, name=HEAD)(last.input_tensors[0]), name=model.name)
