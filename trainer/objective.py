"""An objective: what one part of a step minimises, and which networks it may change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from trainer.embedding import Embedding

Batch = dict[str, tf.Tensor]
"""A batch: "inputs" [batch, ...], "targets" [batch, ...], and whatever else the source gives."""

ForwardFunction = Callable[..., Any]
"""Called as forward(network_name, inputs); returns what the model returns."""

Examples = Callable[[Sequence[int]], dict[str, np.ndarray]]
"""Called with positions in a split; returns a batch of arrays, "inputs" and "targets" among them."""


@dataclass
class ObjectiveOutput:
    """Hold what an objective computed for one batch.

    Attributes:
        losses: name to tensor of shape [batch] (one loss per example) or [] (a mean already). Their sum is minimised.
        metrics: name to tensor of shape [batch] or []; averaged over examples, never minimised.
        outputs: what hooks see as the outputs, such as logits [batch, classes].
        collected: tensors [batch, ...] by name that an evaluation keeps for the whole split; training ignores them.
    """

    losses: dict[str, tf.Tensor]
    metrics: dict[str, tf.Tensor] = field(default_factory=dict)
    outputs: Any = None
    collected: dict[str, tf.Tensor] = field(default_factory=dict)


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

    def split_metrics(self, collected: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return metrics that no average over batches gives, such as recall@k: scalars by name.

        Traced once and pure.

        Args:
            collected: what `compute` collected, over all examples of the split: [examples, ...] by name.
        """
        return {}

    def pictures(self, collected: dict[str, np.ndarray], examples: Examples) -> dict[str, np.ndarray]:
        """Return pictures to show now, by name: float [height, width, channels] in [0, 1], 1 or 3 channels.

        Args:
            collected: what `compute` collected in the latest evaluation; empty before the first one.
            examples: returns rows of that split as a batch of arrays, by their positions in it.
        """
        return {}

    def embeddings(self, collected: dict[str, np.ndarray], examples: Examples) -> dict[str, Embedding]:
        """Return vectors of examples to look at in a projector, by name.

        Args:
            collected: what `compute` collected in the latest evaluation; empty before the first one.
            examples: returns rows of that split as a batch of arrays, by their positions in it.
        """
        return {}
