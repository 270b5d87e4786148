"""What a hook sees of the run when it is built, and of the step when it is traced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from trainer.errors import UserError
from trainer.network import Network
from trainer.objective import Batch
from trainer.replicas.replica import Replica
from trainer.step.draws import seed_of


@dataclass(frozen=True)
class BuildContext:
    """Tell a hook about the run before anything is traced.

    Attributes:
        network: the network that the hook works on, after every `rebuild_model`.
        total_steps: optimizer steps that the run will make.
        steps_per_epoch: optimizer steps an epoch; a fraction when the batch does not divide the set.
        batch_size: examples per step.
        seed: the run's seed.
        states: state variables of the hooks built before, keyed "hook/variable".
        classes: number of classes of the data; labels lie in [0, classes). None where that is not known.
    """

    network: Network
    total_steps: int
    steps_per_epoch: float
    batch_size: int
    seed: int
    states: Mapping[str, tf.Variable] = field(default_factory=dict)
    classes: int | None = None

    def state_of(self, key: str) -> tf.Variable:
        """Return another hook's state variable, such as "prune/mask".

        Args:
            key: "hook/variable". The reader declares it in `reads`, which orders the two hooks.
        """
        if key not in self.states:
            raise UserError(f"No hook offers the state '{key}'. Expected one of: {', '.join(sorted(self.states))}.")
        return self.states[key]


@dataclass
class StepContext:
    """Hold the tensors of one step for one network. Later stages find more of it filled in.

    Attributes:
        step: int64 scalar, optimizer steps made before this one.
        seed: the run's seed.
        training: whether this is a training step (True) or an evaluation (False).
        objective: name of the objective.
        network: the network that the hook works on.
        batch: the batch.
        latent: latent variables as read at the start of the step, by name.
        state: state variables (moving statistics, seed state) as read at the start of the step, by name.
        held: which entries of variables stand still, by name, in an evaluation: what the hooks' `held` say together.
        weights: what the forward pass uses in their place, by name.
        taps: inner tensors that hooks asked for, by name. In `add_losses` a hook may put in tensors [batch, ...] of its
            own for later stages: those find here what all micro batches gave.
        outputs: what the objective calls its outputs.
        new_state: values that the forward pass wants to write (moving statistics, seed state), by name.
        losses: named losses, each a scalar; "total" is their sum.
        gradients: gradient of the total loss with respect to each latent variable; None when unconnected.
        micro_batch: int32 scalar, which micro batch is at hand while losses are added; None where all of it is.
        update: which of the runs that the objective has in this step (`Objective.updates`), from 0. Every stage but
            `transform_batch` runs once for each, at the same `step`, on its own part of the batch.
        stream: names the hook's draws of this pass: nothing more for the only network and objective of a run.
        replica: which part of the batch this is; an evaluation has all of it.
        sums: what the hook's `batch_sums` returned, added up over the replicas, by "<hook>/<name>".
    """

    step: tf.Tensor
    seed: int
    training: bool
    objective: str
    network: Network
    batch: Batch
    latent: dict[str, tf.Tensor] = field(default_factory=dict)
    state: dict[str, tf.Tensor] = field(default_factory=dict)
    held: dict[str, tf.Tensor] = field(default_factory=dict)
    weights: dict[str, tf.Tensor] = field(default_factory=dict)
    taps: dict[str, tf.Tensor] = field(default_factory=dict)
    outputs: Any = None
    new_state: dict[str, tf.Tensor] = field(default_factory=dict)
    losses: dict[str, tf.Tensor] = field(default_factory=dict)
    gradients: dict[str, tf.Tensor | None] = field(default_factory=dict)
    micro_batch: tf.Tensor | None = None
    update: int = 0
    stream: str = ""
    replica: Replica = field(default_factory=Replica)
    sums: dict[str, tf.Tensor] = field(default_factory=dict)

    def stateless_seed(self, salt: str) -> tf.Tensor:
        """Return a seed for `tf.random.stateless_*`: a pure function of (run seed, salt, step, micro batch).

        Where a run has several networks or objectives, it depends on their names as well, and on the update.

        Args:
            salt: what the draw is for, such as "bnn_rounding/conv/kernel". Two draws of one step need two salts.

        Returns:
            int32 tensor of shape [2].
        """
        return seed_of(f"{self.seed}/{self.stream}{salt}", self.step, self.micro_batch)
