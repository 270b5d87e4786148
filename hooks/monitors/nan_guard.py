"""NaN guard: withhold a step whose loss, gradients or new state are not finite, and stop the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from trainer.errors import NonFiniteError
from trainer.hook import GraphHook, HostHook, Tensors
from trainer.step.context import StepContext

if TYPE_CHECKING:
    from trainer.run.control import Report, Run

SHOWN_NAMES = 5
KINDS = {"loss": "losses", "gradient": "gradients of", "state": "new state of"}


class NanGuard(GraphHook, HostHook):
    """Stop before a value that is not finite reaches a variable.

    The check is part of the step, so the step that fails is the one that is withheld, however long the chunk.
    Under a LossScaleOptimizer, gradients that overflow are ordinary: it withholds those steps and lowers its scale
    itself. Gradients are not checked then; losses and state are.
    """

    priority = 0  # speaks before any other hook acts on the chunk

    def __init__(self, *, network: str = "model") -> None:
        """Set up the guard.

        Args:
            network: name of the network that is watched.
        """
        self.network = network

    def state(self) -> dict[str, tf.Variable]:
        """Return no variables: the guard remembers nothing."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return no state: the guard remembers nothing."""
        return {}

    def veto(self, context: StepContext) -> Tensors:
        """Return for each loss, gradient and new state value whether it holds NaN or infinity."""
        checked = {f"loss/{name}": value for name, value in context.losses.items()}
        if not isinstance(context.network.optimizer, keras.optimizers.LossScaleOptimizer):
            checked |= {f"gradient/{name}": value for name, value in context.gradients.items() if value is not None}
        checked |= {f"state/{name}": value for name, value in context.new_state.items()}
        return {name: is_not_finite(value) for name, value in checked.items() if value.dtype.is_floating}

    def on_chunk_end(self, run: Run, report: Report | None) -> None:
        """Raise when the latest step was withheld for a value that was not finite.

        Raises:
            NonFiniteError: names the step, the losses and the variables.
        """
        kinds = [kind for kind in KINDS if any(name.startswith(f"{kind}/") for name in run.vetoes)]
        if not kinds:
            return
        found = [
            f"{KINDS[kind]} {shorten([v.removeprefix(f'{kind}/') for v in run.vetoes if v.startswith(f'{kind}/')])}"
            for kind in kinds
        ]
        raise NonFiniteError(
            f"NaN or infinity at step {run.step}: {'; '.join(found)}. No variable was changed by this step. "
            "Lower the learning rate, clip the gradients, or check the data for NaN."
        )


def is_not_finite(value: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
    """Return a bool scalar: whether any entry is NaN or infinite.

    Args:
        value: floating point, any shape; of slices, the rows that are present.
    """
    values = value.values if isinstance(value, tf.IndexedSlices) else value
    return tf.logical_not(tf.reduce_all(tf.math.is_finite(values)))


def shorten(names: Sequence[str]) -> str:
    """Return the first names and the count of the others.

    Args:
        names: at least one.
    """
    shown = ", ".join(names[:SHOWN_NAMES])
    return f"{shown} and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else shown
