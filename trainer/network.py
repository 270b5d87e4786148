"""A network: a Keras model with its optimizer and names for its variables, and checks of the user's model."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.graph import unique_name

if TYPE_CHECKING:
    from hookline.trainer.final_activation import FinalActivation
    from hookline.trainer.input.data import Data


@dataclass
class Network:
    """Hold a model with its optimizer.

    Attributes:
        name: unique among the networks of a run, such as "model" or "generator".
        model: any built Keras 3 model. Hooks may replace it once, before training, by `rebuild_model`.
        optimizer: the Keras optimizer of this network alone. Two networks never share one.
        taps: inner tensors that hooks requested, by name. Functional models only.
        tapped: the model with the taps as additional outputs; created on first use.
        shared: whether several objectives may train it.
        fixed: whether no objective trains it.
        final_activations: removed from the model, since the loss takes logits; exports include them.
        started_from: lines about initial weights that were loaded from elsewhere.
    """

    name: str
    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    taps: dict[str, Any] = field(default_factory=dict)
    tapped: keras.Model | None = None
    shared: bool = False
    fixed: bool = False
    final_activations: tuple[FinalActivation, ...] = ()
    started_from: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_model(self.name, self.model)

    @property
    def variables(self) -> dict[str, keras.Variable]:
        """Return every variable of the model (weights, moving statistics, seed state) by unique name."""
        return name_variables(self.model.variables, _seed_names(self.model))

    def _named(self, wanted: Iterable[keras.Variable]) -> dict[str, keras.Variable]:
        chosen = {id(variable) for variable in wanted}
        return {name: variable for name, variable in self.variables.items() if id(variable) in chosen}

    @property
    def weights(self) -> dict[str, keras.Variable]:
        """Return the model's weights and moving statistics, without seed state, by unique name."""
        return self._named(self.model.weights)

    @property
    def trainable_variables(self) -> dict[str, keras.Variable]:
        return self._named(self.model.trainable_variables)

    @property
    def state_variables(self) -> dict[str, keras.Variable]:
        """Return the variables that the forward pass may change: moving statistics and seed state."""
        trainable = self.trainable_variables
        return {name: variable for name, variable in self.variables.items() if name not in trainable}

    @property
    def seed_names(self) -> list[str]:
        """Return the names of the state variables that are seed states."""
        weights = self.weights
        return [name for name in self.variables if name not in weights]

    @property
    def optimizer_variables(self) -> dict[str, keras.Variable]:
        """Return the optimizer's variables (iterations, slots) by unique name, without the optimizer's own name."""
        variables = self.optimizer.variables
        return name_variables(variables, {id(v): v.path.partition("/")[2] or v.path for v in variables})

    @property
    def rate_factor(self) -> tf.Variable | None:
        """Return the variable that scales the schedule of the learning rate; None if the rate is a number."""
        from hookline.trainer.rate_schedules import ScaledRate  # imported here to keep Keras deferred

        rate = inner_of(self.optimizer)._learning_rate
        return rate.factor if isinstance(rate, ScaledRate) else None

    def lower_rate(self, factor: float) -> None:
        """Multiply the learning rate by a factor from now on."""
        if (variable := self.rate_factor) is not None:
            variable.assign(variable * factor)
        else:
            self.optimizer.learning_rate = float(self.optimizer.learning_rate) * factor

    def optimizer_slots(self, name: str) -> dict[str, keras.Variable]:
        """Return the optimizer's slots of a latent variable that have its shape, by attribute, such as "_momentums"."""
        variable = self.variables[name]
        optimizer = inner_of(self.optimizer)
        index = optimizer._get_variable_index(variable)
        count = len(optimizer._trainable_variables)
        return {
            attribute: slots[index]
            for attribute, slots in vars(optimizer).items()
            if attribute != "_trainable_variables"
            and isinstance(slots, list)
            and len(slots) == count
            and isinstance(slots[index], keras.Variable)
            and slots[index].shape == variable.shape
        }


def inner_of(optimizer: keras.optimizers.Optimizer) -> Any:
    """Return the optimizer inside a LossScaleOptimizer; return any other unchanged."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def undecayed(optimizer: keras.optimizers.Optimizer, model: keras.Model) -> list[int]:
    """Return the indices of the trainable variables that `exclude_from_weight_decay` exempts from weight decay."""
    decays = inner_of(optimizer)._use_weight_decay
    return [place for place, variable in enumerate(model.trainable_variables) if not decays(variable)]


FUNCTION_OPTIONS = "_fn_kwargs"
"""The attribute of Keras losses and metrics with the arguments of their function; some `get_config`s omit these."""


def settings_of(part: Any) -> Any:
    """Return the settings of a layer or a loss as JSON values, without names and seeds; {} if it has none."""
    if isinstance(part, keras.Model | keras.layers.Lambda) or not hasattr(part, "get_config"):
        return {}  # a model's layers are listed separately; a Lambda's code depends on its line number
    try:
        config = part.get_config() | getattr(part, FUNCTION_OPTIONS, {})
        text = json.dumps(config, default=lambda each: type(each).__name__)
        return json.loads(text, object_hook=lambda each: {k: v for k, v in each.items() if k not in ("name", "seed")})
    except (TypeError, ValueError, NotImplementedError, AttributeError):
        return {}


def layers_digest(model: keras.Model) -> str:
    """Return the number of a model's layers, and a digest of their settings that is the same in every process."""
    own = [[type(each).__name__, each.dtype_policy.name, settings_of(each)] for each in model._flatten_layers()]
    return f"{len(own)}, sha256 {hashlib.sha256(json.dumps(own).encode()).hexdigest()[:16]}"


def check_model(name: str, model: Any) -> None:
    """Refuse anything but a built Keras model."""
    if not isinstance(model, keras.Model):
        raise UserError(f"The model of '{name}' is a {type(model).__name__}. Expected a built keras.Model.")
    if not model.built:
        raise UserError(f"The model of '{name}' is not built: it has no variables. Start it with keras.Input.")


def settle(model: keras.Model) -> None:
    """Refresh layers that compute with a copy of their weights; assigning the weights does not update that copy."""
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()


def name_variables(
    variables: Iterable[keras.Variable], names: Mapping[int, str] | None = None
) -> dict[str, keras.Variable]:
    """Return variables by Keras path, or by `names` (keyed by `id`); repeated names get the suffixes "_1", "_2", ..."""
    named: dict[str, keras.Variable] = {}
    for variable in variables:
        named[unique_name((names or {}).get(id(variable), variable.path), named)] = variable
    return named


def _seed_names(model: keras.Model) -> dict[int, str]:
    """Return names for seed states by the layer that draws; Keras's own names depend on the history of the process."""
    return {
        id(generator.state): f"{layer.path or layer.name}/seed_generator_state"
        for layer in model._flatten_layers()
        for generator in layer._seed_generators
    }


SCOPE = re.compile(r"[A-Za-z0-9_.\\/>-]*")
"""Valid names of TensorFlow scopes; every layer opens one."""
LONGEST_REASON = 300
NOISE = re.compile(r"\x1b\[[0-9;]*m|\{\{.*?\}\}|\[Op:.*", re.DOTALL)
"""Parts of error messages: Keras's colors, and positions in TensorFlow's graphs."""


@contextmanager
def told_in_one_line(what: str, data: Data | None = None) -> Iterator[None]:
    """Turn an error in the code of the user's model into a one-line `UserError`."""
    try:
        yield
    except (UserError, MemoryError, tf.errors.ResourceExhaustedError):
        raise
    except Exception as error:
        reason = NOISE.sub("", str(error).partition("\n\nArguments received")[0])
        reason = " ".join(reason.split())[:LONGEST_REASON].rstrip(" .")
        expected = ""
        if data is not None:
            shape = listed_shapes(data.model_shape) if data.preparations else f"of shape {list(data.input_shape)}"
            of_classes = f" and {data.classes} classes" if data.classes else ""
            expected = f" Expected a model for inputs {shape}{of_classes}.{shape_hint(data)}"
        raise UserError(
            f"{what} raised {type(error).__name__}: {reason}.{expected} debug=true shows the traceback."
        ) from error


def shape_hint(data: Data) -> str:
    """Return a hint at the option that leaves examples as stored, if an axis of channels was added to them, else ""."""
    if data.preparation is None or data.preparation.axes != "new":
        return ""
    return f" data.channels=none leaves examples as they are stored, {list(data.preparation.raw_shape)}."


OF_TRAINING = ("train_step", "test_step", "compute_loss", "compute_metrics")


def check_training(model: keras.Model) -> None:
    """Refuse a model that overrides Keras's training methods, which are not called here."""
    for name in OF_TRAINING:
        if getattr(type(model), name) is not getattr(keras.Model, name):
            raise UserError(
                f"The model '{model.name}' overrides {name}, which is not called here. Expected a model without it: "
                "compute this in a loss, or in an Objective of your own (recipes/OWN.md)."
            )


def check_names(model: keras.Model) -> None:
    """Refuse layers with names that are not valid scope names in TensorFlow."""
    for layer in model._flatten_layers():
        if not SCOPE.fullmatch(layer.name):
            raise UserError(
                f"The model '{model.name}' has a layer named '{layer.name}'. Expected only unaccented letters, "
                "digits, '_', '.' and '-', such as "
                f"name='{re.sub(r'[^A-Za-z0-9_.-]+', '_', layer.name)}': TensorFlow accepts no others."
            )


def listed_shapes(shapes: Mapping[str, Sequence[int | None]]) -> str:
    """Return names with their shapes, as text."""
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
