"""The contexts that hooks get while a step is traced, and the scopes in which its ops are traced."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from hookline.trainer.network import Network
from hookline.trainer.objective import Batch
from hookline.trainer.replicas.replica import Replica


def seed_of(source: str, step: tf.Tensor, micro_batch: tf.Tensor | None = None) -> tf.Tensor:
    """Return a seed for `tf.random.stateless_*`, int32 [2]: a pure function of its arguments."""
    constant = zlib.crc32(source.encode()) & 0x7FFFFFFF
    seed = tf.stack([tf.constant(constant, tf.int32), tf.cast(step, tf.int32)])
    return seed if micro_batch is None else tf.random.fold_in(seed, micro_batch)


@dataclass(frozen=True)
class BuildContext:
    """Information about the run for a hook, before anything is traced.

    Attributes:
        network: the network that the hook works on, after every `rebuild_model`.
        total_steps: optimizer steps that the run will make.
        steps_per_epoch: optimizer steps per epoch; a fraction when the batch does not divide the set.
        batch_size: examples per step.
        seed: the run's seed.
        states: state variables of the hooks built earlier, keyed "hook/variable".
        classes: number of classes of the data; labels lie in [0, classes). None if unknown.
        rounded: the network's variables that hooks built earlier round: the hook's key by variable name.
    """

    network: Network
    total_steps: int
    steps_per_epoch: float
    batch_size: int
    seed: int
    states: Mapping[str, tf.Variable] = field(default_factory=dict)
    classes: int | None = None
    rounded: Mapping[str, str] = field(default_factory=dict)


@dataclass
class StepContext:
    """The tensors of one step for one network. In later stages, more of them are set.

    Attributes:
        step: int64 scalar, optimizer steps made before this one.
        seed: the run's seed.
        training: whether this is a training step (True) or an evaluation (False).
        objective: name of the objective.
        network: the network that the hook works on.
        batch: the batch.
        latent: latent variables as read at the start of the step, by name.
        state: state variables (moving statistics, seed state) as read at the start of the step, by name; in an
            evaluation, as transformed by earlier hooks.
        frozen_entries: which entries of variables are fixed, by name, in an evaluation: the union over the hooks.
        weights: values that the forward pass uses instead of the latent variables, by name.
        taps: inner tensors that hooks requested, by name. In `add_losses` a hook may add its own tensors [batch, ...]
            for later stages, which get those of all micro batches.
        outputs: the `outputs` of the objective's `ObjectiveOutput`.
        new_state: new values of state variables from the forward pass (moving statistics, seed state), by name.
        losses: named losses, each a scalar; "total" is their sum.
        gradients: gradient of the total loss with respect to each latent variable; None when unconnected.
        micro_batch: int32 scalar, the current micro batch while losses are added; None for the whole batch.
        update: index of the objective's run in this step (`Objective.updates`), from 0. Every stage runs once for each
            run, at the same `step`, on its own part of the batch.
        observing: whether `evaluate` collects tensors for `show`: of a few examples, traced apart from the evaluation.
        stream: prefix of the hook's draws in this pass; empty in update 0 of a run's only network and objective.
        replica: determines the part of the batch; an evaluation has all of it.
        sums: results of `batch_sums` of the hooks, summed over the replicas, by "<hook>/<name>".
    """

    step: tf.Tensor
    seed: int
    training: bool
    objective: str
    network: Network
    batch: Batch
    latent: dict[str, tf.Tensor] = field(default_factory=dict)
    state: dict[str, tf.Tensor] = field(default_factory=dict)
    frozen_entries: dict[str, tf.Tensor] = field(default_factory=dict)
    weights: dict[str, tf.Tensor] = field(default_factory=dict)
    taps: dict[str, tf.Tensor] = field(default_factory=dict)
    outputs: Any = None
    new_state: dict[str, tf.Tensor] = field(default_factory=dict)
    losses: dict[str, tf.Tensor] = field(default_factory=dict)
    gradients: dict[str, tf.Tensor | None] = field(default_factory=dict)
    micro_batch: tf.Tensor | None = None
    update: int = 0
    observing: bool = False
    stream: str = ""
    replica: Replica = field(default_factory=Replica)
    sums: dict[str, tf.Tensor] = field(default_factory=dict)

    def stateless_seed(self, salt: str) -> tf.Tensor:
        """Return a seed for `tf.random.stateless_*`: a pure function of (run seed, salt, step, micro batch).

        It also depends on the update and, if a run has several networks or objectives, on their names.

        Args:
            salt: what the draw is for, such as "bnn_rounding/conv/kernel". Two draws of one step need two salts.

        Returns:
            int32 tensor of shape [2].
        """
        return seed_of(f"{self.seed}/{self.stream}{salt}", self.step, self.micro_batch)

    def objective_seed(self, salt: str) -> tf.Tensor:
        """Return a seed for a draw of the objective itself, int32 [2]; in an evaluation, the same at every step."""
        if not self.training:
            return seed_of(f"{self.seed}/evaluation/{salt}", tf.constant(0))
        own = f"/replica_{self.replica.index}" if self.replica.index else ""  # each has its own noise
        return seed_of(f"{self.seed}/{self.objective}/{self.update}/{salt}{own}", self.step, self.micro_batch)


@contextmanager
def named_scope(*names: str, inside: str | None = None) -> Iterator[None]:
    """Trace ops under a path of names, which can be re-entered; do nothing without a graph or names."""
    if not names or tf.executing_eagerly():
        yield
        return
    start = current_scope() if inside is None else inside
    path = [start] if start else []
    with tf.name_scope("/".join([*path, *map(scope_name, names)]) + "/"):
        yield


def current_scope() -> str:
    """Return the path of the current name scope; empty outside a graph and at its top level."""
    return "" if tf.executing_eagerly() else tf.compat.v1.get_default_graph().get_name_scope()


def scope_name(name: str) -> str:
    """Return a valid scope name: letters, digits, "_", "." and "-", starting with a letter, a digit or "."."""
    allowed = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    return allowed if re.match(r"[A-Za-z0-9.]", allowed) else f"scope{allowed}"
