"""NaN guard: withhold a step whose loss, gradients or new state are not finite, and stop the run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
NOTHING = "No variable was changed by"
VETO = re.compile(rf"(?P<place>(?:[^/]+/){{0,2}}?)(?P<kind>{'|'.join(KINDS)})/(?P<name>.+)")
"""A veto of the guard: perhaps an objective among several and a network, the kind, and what it holds."""


class NanGuard(GraphHook, HostHook):
    """Stop before a value that is not finite reaches a variable.

    The check is part of the step, so the step that fails is the one that is withheld, however long the chunk.
    Under a LossScaleOptimizer, gradients that overflow are ordinary: it withholds those steps and lowers its scale
    itself. Gradients are not checked then; losses and state are.

    With several objectives, one that is held back holds back those after it in the step (see `GraphHook.veto`).
    """

    priority = 0  # speaks before any other hook acts on the chunk

    def __init__(self, *, network: str = "*") -> None:
        """Set up the guard.

        Args:
            network: name of the network that is watched, or a pattern; "*" guards every network of a run.
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
        found: dict[tuple[str, str], dict[str, list[str]]] = {}
        for veto in filter(None, map(VETO.fullmatch, run.vetoes)):
            kinds = found.setdefault(self._place(veto["place"]), {kind: [] for kind in KINDS})
            kinds[veto["kind"]].append(veto["name"])
        if not found:
            return
        first = next(objective for objective, _ in found)
        written = f"Nothing of objective '{first}' was written, nor of those after it in" if first else NOTHING
        details = "; ".join(f"{_in_words(*place)}{describe(kinds)}" for place, kinds in found.items())
        raise NonFiniteError(
            f"NaN or infinity at step {run.step}: {details}. {written} this step. "
            "Lower the learning rate, clip the gradients, or check the data for NaN."
        )

    def _place(self, prefix: str) -> tuple[str, str]:
        """Return the objective, among several, and the network, among several, that stand before a veto's name."""
        objective, network = prefix.rstrip("/"), ""
        if self.scope:
            objective, _, network = objective.rpartition("/")
        return objective, network


def _in_words(objective: str, network: str) -> str:
    named = (("objective", objective), ("network", network))
    place = ", ".join(f"{kind} '{name}'" for kind, name in named if name)
    return f"{place}: " if place else ""


def describe(kinds: Mapping[str, Sequence[str]]) -> str:
    """Return what was not finite in words, such as "losses total; gradients of dense/kernel".

    Args:
        kinds: names by kind; those without names are left out.
    """
    return "; ".join(f"{KINDS[kind]} {shorten(names)}" for kind, names in kinds.items() if names)


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
