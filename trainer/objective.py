"""An objective: what one part of a step minimises, and which networks it may change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

Batch = dict[str, tf.Tensor]
"""A batch: "inputs" [batch, ...], "targets" [batch, ...], and whatever else the source gives."""

ForwardFunction = Callable[..., Any]
"""Called as forward(network_name, inputs); returns what the model returns."""


@dataclass
class ObjectiveOutput:
    """Hold what an objective computed for one batch.

    Attributes:
        losses: name to tensor of shape [batch] (one loss per example) or [] (a mean already). Their sum is minimised.
        metrics: name to tensor of shape [batch] or []; averaged over examples, never minimised.
        outputs: what hooks see as the outputs, such as logits [batch, classes].
    """

    losses: dict[str, tf.Tensor]
    metrics: dict[str, tf.Tensor] = field(default_factory=dict)
    outputs: Any = None


class Objective(ABC):
    """Define one loss of a step.

    Attributes:
        name: unique among the objectives of a run.
        changes: names of the networks whose variables this objective may change.
    """

    name: str = "objective"
    changes: tuple[str, ...] = ("model",)

    @abstractmethod
    def compute(self, forward: ForwardFunction, batch: Batch) -> ObjectiveOutput:
        """Run the networks on a batch and return losses, metrics and outputs.

        Traced once and pure: it writes no variable and no file.

        Args:
            forward: `forward(network_name, inputs)` runs a network with its transformed weights.
            batch: the batch after every `transform_batch`.
        """
