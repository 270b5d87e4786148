"""The networks of a group, built: one stacked network, or several separate ones."""

from __future__ import annotations

import keras

from recipes.adversarial.groups import Group
from recipes.adversarial.settings import Settings
from recipes.models.roles import DISCRIMINATOR, GENERATOR
from trainer.errors import UserError
from trainer.final_activation import take_off
from trainer.network import Network
from trainer.recipe import Parts

ENTRYWISE = {"Adadelta", "Adagrad", "Adam", "Adamax", "AdamW", "Ftrl", "Lion", "Nadam", "RMSprop", "SGD"}
"""Optimizers of Keras that move each entry of a variable by the gradients of that entry alone."""


class NetworkBuilder:
    """Build generators and discriminators of one recipe."""

    def __init__(self, parts: Parts, settings: Settings) -> None:
        """Take what the config describes.

        Args:
            parts: data and builders.
            settings: of the recipe.
        """
        self._parts, self._settings = parts, settings

    def build(self, role: str, name: str, *, stacked: int | None = None, updates: int = 1) -> Network:
        """Return a network; of a discriminator without a final sigmoid, since its losses take scores.

        Args:
            role: "generator" or "discriminator".
            name: of the network.
            stacked: how many networks it holds; None for a plain one.
            updates: of it in a step.

        Raises:
            UserError: a model that is not made for this role, or batch norm in a discriminator beside a penalty.
        """
        model = self._model(role, stacked)
        if role == DISCRIMINATOR:
            self._check_batch_norm(model)
        model, activations = take_off(model) if role == DISCRIMINATOR else (model, ())
        rate = self._settings.discriminator_learning_rate if role == DISCRIMINATOR else None
        optimizer = self._parts.build_optimizer(learning_rate=rate, updates=updates)
        return Network(name, model, optimizer, final_activations=activations)

    def group(
        self, role: str, name: str, count: int, *, stacked: bool, updates: int = 1
    ) -> tuple[Group, list[Network]]:
        """Return several networks of one kind.

        Args:
            role: "generator" or "discriminator".
            name: of one; "<name>s" where they are stacked, else "<name>_0" and so on.
            count: how many.
            stacked: whether to build them as one.
            updates: of each in a step.

        Raises:
            UserError: as `build`.
        """
        if stacked:
            networks = [self.build(role, f"{name}s", stacked=count, updates=updates)]
        else:
            networks = [self.build(role, f"{name}_{place}", updates=updates) for place in range(count)]
        return Group(tuple(network.name for network in networks), count), networks

    def can_stack(self, count: int) -> str | None:
        """Return why networks cannot be stacked; None where they can.

        Args:
            count: how many.
        """
        optimizer = self._parts.build_optimizer()
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        kind = type(optimizer).__name__
        if kind not in ENTRYWISE:
            return f"the optimizer {kind} may mix the entries of a weight"
        if optimizer.clipnorm is not None or optimizer.global_clipnorm is not None:
            return "clipping by the norm of a gradient would mix the networks"
        try:
            for role in (GENERATOR, DISCRIMINATOR):
                self._model(role, count)
        except UserError as error:
            return str(error).partition(". Expected")[0].rstrip(".")
        return None

    def _model(self, role: str, stacked: int | None) -> keras.Model:
        latent, shape = self._settings.noise.size, tuple(self._parts.data.input_shape)
        model = self._parts.build_model(input_shape=shape, role=role, latent_size=latent, stacked=stacked, classes=1)
        leading = (None,) if stacked is None else (stacked, None)
        expected = (
            ((*leading, latent), (*leading, *shape)) if role == GENERATOR else ((*leading, *shape), (*leading, 1))
        )
        found = (getattr(model, "input_shape", None), getattr(model, "output_shape", None))
        if found != expected:
            raise UserError(
                f"The network '{model.name}' maps {found[0]} to {found[1]}. Expected {expected[0]} to {expected[1]} of "
                f"a {role}: model=gan_mlp, or dcgan for images."
            )
        return model

    def _check_batch_norm(self, model: keras.Model) -> None:
        layers = model._flatten_layers(include_self=False)
        if self._settings.penalty and any(isinstance(each, keras.layers.BatchNormalization) for each in layers):
            raise UserError(
                "A gradient penalty needs scores that depend on one example alone, but the discriminator has batch "
                "norm. Expected model.batch_norm=generator, or task.gradient_penalty=0."
            )
