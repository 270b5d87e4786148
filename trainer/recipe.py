"""A recipe: the networks that are trained and the objectives of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import keras

from hookline.trainer.input.data import Data
from hookline.trainer.network import Network
from hookline.trainer.objective import Objective


@dataclass(frozen=True)
class Recipe:
    """Hold what a recipe's builder returns.

    Attributes:
        networks: with unique names; their optimizers are not built yet.
        objectives: in the order in which a step runs them.
    """

    networks: list[Network]
    objectives: list[Objective]


@dataclass(frozen=True)
class Parts:
    """Give a recipe's builder what the config describes.

    Attributes:
        data: the opened data.
        build_model: returns a new model as `model` in the config says; keyword arguments are passed on.
        build_optimizer: returns a new optimizer as `optimizer` and `schedule` in the config say. It takes two keyword
            arguments: `learning_rate`, another one than the config's (None: the config's), and `updates`, how many
            updates the network makes in a step (1), so that the schedule ends with the run.
        plugins: packages that the user allows, also for other runs that the recipe loads.
    """

    data: Data
    build_model: Callable[..., keras.Model]
    build_optimizer: Callable[..., keras.optimizers.Optimizer]
    plugins: tuple[str, ...] = ()
