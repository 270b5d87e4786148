"""A classifier out of a run directory, to measure samples with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from trainer.errors import UserError
from trainer.graph import as_functional, is_graph, layer_input
from trainer.network import Network
from trainer.run.finished import read_config, restore_beside

TASK = "recipes.classification.classification"
NETWORK = "model"


@dataclass(frozen=True)
class Classifier:
    """Hold a trained classifier that never changes again.

    Attributes:
        run: directory of the run that trained it.
        model: images [n, height, width, channels] to [features [n, d], logits [n, classes]].
        classes: number of classes.
        width: d, of the features: the inputs of the last dense layer.
    """

    run: str
    model: keras.Model
    classes: int
    width: int

    def __call__(self, images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the features and the classes of images, also inside a traced function.

        Args:
            images: floats [n, height, width, channels], scaled as the data is.

        Returns:
            features float32 [n, d] and predicted classes int32 [n].
        """
        features, logits = self.model(images, training=False)
        return tf.cast(features, tf.float32), tf.argmax(logits, axis=-1, output_type=tf.int32)


def load_classifier(run: str, *, input_shape: Sequence[int], classes: int, plugins: Sequence[str] = ()) -> Classifier:
    """Return the classifier that a finished run trained, with the weights it is evaluated with at its best checkpoint.

    The state of random numbers and the names that Keras gives afterwards do not depend on it.

    Args:
        run: directory of a run of recipe=baseline, on the same data.
        input_shape: of one image, without the batch.
        classes: of the data.
        plugins: packages that the run may use; its own file is not believed.

    Raises:
        UserError: no such run, another shape of images, another number of classes, or a run that is no classifier.
    """
    try:
        return _load(run, tuple(input_shape), classes, plugins)
    except UserError as error:
        raise UserError(f"classifier={run}: {error}") from error


def _load(run: str, input_shape: tuple[int, ...], classes: int, plugins: Sequence[str]) -> Classifier:
    config = read_config(run, plugins)
    task = config.get("task")
    if not isinstance(task, dict) or task.get("_target_") != TASK:
        raise UserError("this run trained no classifier. Expected the directory of a run of recipe=baseline.")
    from trainer.run.shipped import shipped_weights  # needs Keras: not for a look at options

    finished = restore_beside(run, config)
    trainer = finished.parts.trainer
    network = trainer.networks[NETWORK]
    for name, value in shipped_weights(trainer, finished.step)[NETWORK].items():
        network.variables[name].assign(value)
    model = _with_features(network)
    found, logits = tuple(model.inputs[0].shape[1:]), model.outputs[1].shape[-1]
    if (found, logits) != (input_shape, classes):
        raise UserError(
            f"this run tells {logits} classes of inputs {list(found)} apart. Expected one of the same data, with "
            f"{classes} classes of inputs {list(input_shape)}."
        )
    return Classifier(run, model, classes, model.outputs[0].shape[-1])


def _with_features(network: Network) -> keras.Model:
    """Return a model of the inputs of the last dense layer and of the logits; it shares the network's variables."""
    if not is_graph(network.model):
        raise _no_features(f"its network is a {type(network.model).__name__}, whose inner tensors are not known")
    model = as_functional(network.model)
    dense = [layer for layer in model.layers if isinstance(layer, keras.layers.Dense)]
    if not dense:
        raise _no_features("its network has no dense layer")
    features: Any = layer_input(model, dense[-1])
    if len(features.shape) != 2 or features.shape[-1] is None:
        raise _no_features(f"the inputs of its last dense layer have the shape {tuple(features.shape)}")
    return keras.Model(model.inputs[0], [features, model.outputs[0]])


def _no_features(reason: str) -> UserError:
    return UserError(f"{reason}. Expected a functional or Sequential network that ends with a dense layer of [n, d].")
