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
    """Hold the result of a recipe's builder.

    Attributes:
        networks: with unique names; their optimizers are not built yet.
        objectives: in the order in which a step runs them.
    """

    networks: list[Network]
    objectives: list[Objective]


@dataclass(frozen=True)
class Parts:
    """Hold the parts that a config describes, for a recipe's builder.

    Attributes:
        data: the opened data.
        build_model: returns a new model as configured under `model`; keyword arguments are passed on.
        build_optimizer: returns a new optimizer as configured under `optimizer` and `schedule`. It takes two keyword
            arguments: `learning_rate`, which overrides the config's (None keeps it), and `updates`, the number of
            updates that the network makes per step (default 1), so that the schedule ends with the run.
        plugins: packages that the user allows, also for other runs that the recipe loads.
    """

    data: Data
    build_model: Callable[..., keras.Model]
    build_optimizer: Callable[..., keras.optimizers.Optimizer]
    plugins: tuple[str, ...] = ()
