"""A network: one Keras model, the optimizer that trains it, and names for its variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.select import unique_name

if TYPE_CHECKING:
    from hookline.trainer.final_activation import FinalActivation


@dataclass
class Network:
    """Hold a model with its optimizer.

    Attributes:
        name: unique among the networks of a run, such as "model" or "generator".
        model: any built Keras 3 model. Hooks may replace it once, before training, by `rebuild_model`.
        optimizer: the Keras optimizer of this network alone. Two networks never share one.
        taps: inner tensors that hooks requested, by name. Functional models only.
        tapped: the model with the taps as further outputs; made on first use.
        shared: whether several objectives may train it.
        fixed: whether no objective trains it.
        final_activations: left out of the model, since the loss takes logits; exports have them.
        started_from: lines on initial weights that are not its own.
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
    def optimizer_variables(self) -> dict[str, keras.Variable]:
        """Return the optimizer's variables (iterations, slots) by unique name, without the optimizer's own name."""
        variables = self.optimizer.variables
        return name_variables(variables, {id(v): v.path.partition("/")[2] or v.path for v in variables})

    @property
    def rate_factor(self) -> tf.Variable | None:
        """Return the variable that scales the schedule of the learning rate; None if the rate is a number."""
        from hookline.trainer.rate_schedules import ScaledRate  # a class of Keras: not imported before this module

        rate = getattr(self.optimizer, "inner_optimizer", self.optimizer)._learning_rate
        return rate.factor if isinstance(rate, ScaledRate) else None

    def lower_rate(self, factor: float) -> None:
        """Multiply the learning rate from now on."""
        if (variable := self.rate_factor) is not None:
            variable.assign(variable * factor)
        else:
            self.optimizer.learning_rate = float(self.optimizer.learning_rate) * factor

    def optimizer_slots(self, name: str) -> dict[str, keras.Variable]:
        """Return the optimizer's slots of a latent variable that have its shape, by attribute, such as "_momentums"."""
        variable = self.variables[name]
        optimizer = getattr(self.optimizer, "inner_optimizer", self.optimizer)
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


def check_model(name: str, model: Any) -> None:
    """Refuse what is no model, and a model without variables yet."""
    if not isinstance(model, keras.Model):
        raise UserError(f"The model of '{name}' is a {type(model).__name__}. Expected a built keras.Model.")
    if not model.built:
        raise UserError(f"The model of '{name}' is not built: it has no variables. Begin it with keras.Input.")


def settle(model: keras.Model) -> None:
    """Let layers that compute with a copy of their weights, which assigning does not change, copy them again."""
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()


def name_variables(
    variables: Iterable[keras.Variable], names: Mapping[int, str] | None = None
) -> dict[str, keras.Variable]:
    """Return variables by their Keras path, or by `names` (of identities); a path that repeats gets "_1", "_2", ..."""
    named: dict[str, keras.Variable] = {}
    for variable in variables:
        named[unique_name((names or {}).get(id(variable), variable.path), named)] = variable
    return named


def _seed_names(model: keras.Model) -> dict[int, str]:
    """Return names for seed states after the layer that draws; Keras numbers them by the process's history instead."""
    return {
        id(generator.state): f"{layer.path or layer.name}/seed_generator_state"
        for layer in model._flatten_layers()
        for generator in layer._seed_generators
    }
