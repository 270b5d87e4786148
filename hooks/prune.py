"""Pruning on a schedule: masks over kernels, computed from magnitudes in the traced step, enforced by projection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from hookline.hooks.frozen_mask import FrozenMask, mask_pictures
from hookline.hooks.kernels import entry_shares, left_out_advice, left_out_weights, select_kernels
from hookline.hooks.options import epoch_start, project_with_average
from hookline.hooks.pruning.report import check_structure, layer_report, layer_sparsities, stored_bytes
from hookline.hooks.pruning.selector import MaskSelector, kept_counts
from hookline.hooks.pruning.settings import Settings
from hookline.trainer.errors import UserError, check_number
from hookline.trainer.hook import Arrays, Bits, Declaration, GraphHook, Run, Tensors
from hookline.trainer.network import Network
from hookline.trainer.objective import Shown
from hookline.trainer.ops.estimators import straight_through, zero_unless
from hookline.trainer.step.context import BuildContext, StepContext
from hookline.trainer.step.copy_network import moving_variables


class Prune(GraphHook):
    r"""Prune kernels: the smallest entries become 0 and stay 0.

    Kernels are the weights of dense layers, convolutions, attention and other einsums, recurrent cells and embeddings,
    and weights of your own layers named "kernel" or "recurrent_kernel"; a message names others that "*" omits.
    Biases and batch norm are not pruned.

    Schedules: "one_shot" prunes once, at `begin_epoch`; "constant" does the same, but only evaluations after
    `end_epoch` can count as the best; "polynomial" goes from `initial_sparsity` to the final one; "iterative" prunes to
    each of `stages` and trains the survivors in between. "splicing" follows the same polynomial, but until `end_epoch`
    only the forward pass uses the zeros: latent values keep training, with the gradient of the masked network, and
    entries may return.

    Masks are computed from the weights at the start of a step and apply from its end. Exactly round(sparsity * n) of n
    units (entries, blocks or channels) are pruned: n counts the units of one kernel; with scope=global, of all kernels
    together; with structure={n_m: ...}, of one group of m inputs. Among equal units those at the end are pruned first,
    but the largest of a kernel always stays. Pruned entries get no gradient and are exactly 0 after every step,
    regardless of the optimizer. (With splicing, this holds once the masks are final.) `bnn_rounding` then rounds these
    zeros to other values, unless its kernel quantizer is `ste_tern`. To clear the optimizer's slots too, add the hook
    `frozen_mask` with masks=hook and hook=prune; with splicing, its begin_epoch must not be before the end_epoch of
    this hook.

    With `rewind_epoch` the hook finds lottery tickets. In the step that makes the masks final (with `stages`: at every
    stage), survivors return to their values at `rewind_epoch`, and so do biases, moving statistics, the optimizer's
    slots and step count, hence the learning rate schedule. (The paper's code starts with empty slots.) The run does not
    become longer, so the learning rate does not reach the end of its schedule: use `schedule=constant` (not
    `hooks.prune.schedule`), or `schedule=step` with early enough milestones, since steps count from `rewind_epoch`
    again. Random draws, the order of examples and other hooks continue; `rewind_epoch` cannot be combined with
    `incremental_quantization`.

    Group: technique

    Equation:
        polynomial:  s_t = s_f + (s_i - s_f) (1 - (t - t0) / (t1 - t0))^power    at t0, every `frequency` steps, and t1
                     s_i, s_f: initial and final sparsity;  t0, t1: steps of the first and of the final masks
        m = 0 at the round(s_t n) units with the smallest score: |w|; of blocks and channels the mean |w|, or the root
                     mean square of w (criterion=l2)
        forward:              m w instead of w;  dL/dw = m dL/d(m w), for splicing dL/d(m w) until t1
        after the optimizer:  w <- m w, for splicing from t1 on; the same for its moving average
        splicing:             a pruned unit replaces a kept one if its score > hysteresis * the other's
        rewinding:            w <- m w_k in the step that makes masks final (with `stages`: at each); k = `rewind_epoch`

    State:
        mask/<variable>: True where an entry is kept.
        updates: number of mask updates so far.

    Scalars:
        sparsity/total: share of zeros over all pruned kernels, after masking and before other hooks round.
        sparsity/<layer>: the same for one layer.
        sparsity/network: the same over all kernels, if there are any that `layers` leaves out.

    Pictures:
        prune/mask/<variable>: the mask.

    Cost: 0.95 to 0.97 of the speed (LeNet-5, batch 100), 1.1 times TFMOT's speed. With `rewind_epoch`, checkpoints and
        memory contain a second copy of the weights and slots, as the states early/<variable>.

    Pitfalls:
        tests/hooks/pruning/test_settings.py: the end is always an update, even if the frequency does not divide the
            number of steps.
        tests/hooks/test_prune.py: pruned entries are 0 after every step, not only in the next forward pass; an update
            that is due in a skipped step takes place in the next one. Rewinding returns survivors and the optimizer's
            state together, to the values of one step.
        tests/hooks/pruning/test_selector.py: even among equal entries, exactly the required number is pruned.

    Reference: Zhu and Gupta 2017, arXiv 1710.01878, equation 1; Han et al. 2015, arXiv 1506.02626 (iterative); Guo et
        al. 2016, arXiv 1608.04493, equation 3 (splicing); Frankle et al. 2019, arXiv 1903.01611, algorithm 1
        (rewinding).

    Example:
        python train.py recipe=frozen_mask hooks.prune.final_sparsity=0.95
        python train.py recipe=baseline +hooks=prune "hooks.prune.structure={n_m: [2, 4]}"
        python train.py recipe=baseline +hooks=prune hooks.prune.schedule=splicing
        python train.py recipe=baseline schedule=constant +hooks=prune hooks.prune.schedule=one_shot \
            hooks.prune.begin_epoch=50 hooks.prune.rewind_epoch=2
    """

    before = ("bnn_rounding", "frozen_mask")
    priority = 40

    def __init__(
        self,
        *,
        layers: str | Sequence[str] = "*",
        schedule: str = "polynomial",
        final_sparsity: float | str | Mapping[str, float] = "auto",
        initial_sparsity: float = 0.0,
        begin_epoch: float = 0.0,
        end_epoch: float | None = None,
        frequency: int = 100,
        frequency_growth: float = 1.0,
        power: float = 3.0,
        stages: Sequence[float | Mapping[str, float]] | None = None,
        stage_epochs: float | None = None,
        hysteresis: float = 1.1,
        rewind_epoch: float | None = None,
        scope: str = "per_layer",
        structure: str | Mapping[str, Sequence[int]] = "unstructured",
        criterion: str = "magnitude",
        network: str = "model",
    ) -> None:
        """Check the options.

        Args:
            layers: patterns on paths or names of layers that hold kernels, such as "encoder/*".
            schedule: "one_shot", "constant", "polynomial", "iterative" or "splicing".
            final_sparsity: in [0, 1], or a dict by layer pattern, in which the last match counts; "auto" for that of
                `structure` or `stages`, else 0.5.
            initial_sparsity: at `begin_epoch`, for "polynomial" and "splicing".
            begin_epoch: epochs before the first masks.
            end_epoch: epochs after which masks are final; None for halfway from `begin_epoch` to the end of training.
            frequency: steps between updates of the masks.
            frequency_growth: at least 1; factor from one interval between updates to the next.
            power: above 0; exponent of the polynomial.
            stages: increasing sparsities, each like `final_sparsity`, for "iterative"; the last one is the final one.
            stage_epochs: epochs from one stage to the next.
            hysteresis: at least 1, for "splicing"; a pruned entry replaces a kept one if it is more than this many
                times as large.
            rewind_epoch: epoch to which survivors are rewound; before the masks are final, or for "iterative" before
                the first ones. None: no rewinding.
            scope: "per_layer", or "global" to rank the entries of all kernels together.
            structure: "unstructured"; "channel" for whole output channels; {"n_m": [n, m]} to keep n of every m
                consecutive inputs (input channels of a convolution) of an output; {"block": [rows, columns]} of the
                matrix [inputs, outputs]. Sparsities count blocks and channels.
            criterion: how blocks and channels are ranked: "magnitude" (mean |w|) or "l2" (root mean square).
            network: name of the network.
        """
        given = {name: value for name, value in locals().items() if name not in ("self", "network", "rewind_epoch")}
        self.settings = Settings(**given)
        self.rewind_epoch = None if rewind_epoch is None else check_number("rewind_epoch", rewind_epoch, 0)
        if rewind_epoch is not None:
            self.conflicts = ("incremental_quantization",)  # rewinding would reset its levels, too
        self.network = network

    def build(self, context: BuildContext) -> None:
        settings, network = self.settings, context.network
        self._network = network
        self._kernels = select_kernels(network, settings.layers, doing="pruned")
        check_structure(network, self._kernels, settings.structure)
        self._others = left_out_weights(network, {kernel.name for kernel in self._kernels})  # they stay dense
        self._steps = settings.steps(context.total_steps, context.steps_per_epoch)
        sparsities = layer_sparsities(network, self._kernels, settings, self._steps)
        counts = kept_counts(self._kernels, sparsities, settings.structure, settings.scope)
        hysteresis = settings.hysteresis if self._splices else None
        self._selector = MaskSelector(self._kernels, counts, settings.structure, settings.criterion, hysteresis)
        self._masks = {kernel.name: kernel.new_mask() for kernel in self._kernels}
        self._updates = tf.Variable(0, trainable=False, dtype=tf.int64, name="updates")
        self._rewinding: Rewinding | None = None
        if self.rewind_epoch is not None:
            step = epoch_start(self.rewind_epoch, context.steps_per_epoch)
            first = self._steps[self._rewound_from]
            if step >= first:
                raise UserError(
                    f"rewind_epoch={self.rewind_epoch:g} (step {step}) is not before step {first}, when the masks "
                    "for rewinding are made. Expected an earlier rewind_epoch, or a later begin_epoch or end_epoch."
                )
            self._rewinding = Rewinding(network, step)

    @property
    def _rewound_from(self) -> int:
        """Return the first update that is followed by rewinding."""
        return 0 if self.settings.stages else len(self._steps) - 1

    @property
    def _splices(self) -> bool:
        """Return whether pruned entries may come back before the masks are final."""
        return self.settings.schedule == "splicing"

    def declare(self) -> Declaration:
        state = {f"mask/{name}": mask for name, mask in self._masks.items()}
        state |= {"updates": self._updates} | ({} if self._rewinding is None else self._rewinding.state)
        projected = self._masks if self._rewinding is None else self._network.trainable_variables
        return Declaration(state, writes=state, projected=set(projected), best_from_step=self._steps[-1] + 1)

    def shipped_bits(self, shipped: Mapping[str, np.ndarray]) -> Bits:
        """Return bits per entry of each pruned kernel, stored sparse (CSR) or dense, whichever is smaller."""
        sizes = {kernel.name: stored_bytes(kernel, shipped[kernel.name]) / kernel.size for kernel in self._kernels}
        return Bits({name: 8.0 * size for name, size in sizes.items()})

    def transform_weights(self, weights: Tensors, context: StepContext) -> Tensors:
        changed = dict(weights)
        for name, mask in self._masks.items():
            changed[name] = zero_unless(tf.convert_to_tensor(mask), weights[name])
            if self._splices:
                passed = straight_through(changed[name], weights[name])
                changed[name] = zero_unless(self._trained(mask), passed)
        return changed

    def _trained(self, mask: tf.Variable) -> tf.Tensor:
        """Return where entries train: kept entries or, with splicing, all entries until the masks are final."""
        kept = tf.convert_to_tensor(mask)
        return tf.logical_or(kept, self._updates < len(self._steps)) if self._splices else kept

    def _wanted(self, context: StepContext) -> tf.Tensor:
        """Return the number of mask updates that should be done by the end of this step."""
        return tf.math.count_nonzero(tf.constant(self._steps, tf.int64) <= context.step)

    def transform_state(self, new_state: Tensors, context: StepContext) -> Tensors:
        if self._rewinding is None:
            return new_state
        wanted = self._wanted(context)
        changes = tf.logical_and(wanted > self._updates, wanted > self._rewound_from)
        context.taps[f"{self.name}/rewinds"] = tf.logical_and(changes, self._rewinding.is_kept)
        return self._rewinding.early_or(new_state, context.taps[f"{self.name}/rewinds"])

    def update_ops(self, context: StepContext) -> list[tf.Operation | tf.Tensor]:
        done = tf.convert_to_tensor(self._updates)
        wanted = self._wanted(context)
        masks = {name: tf.convert_to_tensor(mask) for name, mask in self._masks.items()}
        # Counting updates makes up for a due step that was skipped.
        changed = tf.cond(
            wanted > done,
            lambda: self._selector(context.latent, masks, wanted - 1),
            lambda: [tf.identity(mask) for mask in masks.values()],
        )
        assigned = [mask.assign(value) for mask, value in zip(self._masks.values(), changed, strict=True)]
        kept = [] if self._rewinding is None else self._rewinding.keep(context)
        return [*assigned, *kept, self._updates.assign(tf.maximum(wanted, done))]

    def project(self, context: StepContext) -> None:
        if self._rewinding is not None and f"{self.name}/rewinds" in context.taps:  # the hook takes part
            self._rewinding.put_back(context.latent, context.taps[f"{self.name}/rewinds"])
        for kernel in self._kernels:
            trained = self._trained(self._masks[kernel.name])
            project_with_average(context.network, kernel.name, partial(zero_unless, trained))

    def measure(self, context: StepContext) -> Tensors:
        zeros = [tf.convert_to_tensor(kernel.variable.value) == 0 for kernel in self._kernels]
        if self._splices:
            masks = self._masks.values()
            zeros = [tf.logical_or(each, tf.logical_not(mask)) for each, mask in zip(zeros, masks, strict=True)]
        name = "sparsity" if self.key == "prune" else f"{self.key}/sparsity"
        shares = entry_shares(name, self._kernels, zeros)
        total = shares.pop(name)
        if not self._others:
            return {f"{name}/total": total, **shares}
        others = [tf.cast(tf.convert_to_tensor(each.variable.value) == 0, tf.float32) for each in self._others]
        pruned, rest = (sum(each.size for each in group) for group in (self._kernels, self._others))
        network = (total * pruned + tf.add_n([tf.reduce_sum(each) for each in others])) / (pruned + rest)
        return {f"{name}/total": total, f"{name}/network": network, **shares}

    def show(self, observed: Arrays) -> Shown:
        return Shown(mask_pictures(self._masks))

    def summary(self) -> dict[str, Any]:
        return {
            "schedule": self.settings.schedule,
            "structure": self.settings.structure.config,
            "final_sparsity": self.settings.final_sparsity,
            "settled_at": self._steps[-1] + 1,
            **({} if self._rewinding is None else {"rewound_to": self._rewinding.early_step}),
            **layer_report(self._network, self._kernels, self._masks, self._others),
        }

    def advise(self, run: Run) -> Sequence[str]:
        lines, end = [], self._steps[-1]
        for each in run.hooks if self._splices else ():
            if isinstance(each, FrozenMask) and each.hook == self.name and each.declare().best_from_step < end:
                lines.append(
                    f"'{each.key}' freezes pruned entries from step {each.declare().best_from_step} on, so splicing "
                    f"brings none back. Set hooks.{each.key}.begin_epoch={end / run.steps_per_epoch:g}."
                )
        covered = [kernel.name for kernel in self._kernels]
        return lines + left_out_advice(self._network, self.settings.layers, covered, state="dense")


NOT_YET = -1


class Rewinding:
    """Save latent variables, moving statistics, and the optimizer's slots and step count; restore them together."""

    def __init__(self, network: Network, begin: int) -> None:
        """Create the variables for the saved values; seeds are excluded, so draws do not repeat."""
        self._network, self._begin = network, begin
        own = network.weights
        self._optimizer = {f"optimizer/{name}": each for name, each in moving_variables(network).items()}
        self._live = {**own, **self._optimizer}
        self._early = {
            name: tf.Variable(tf.zeros(each.shape, each.dtype), trainable=False, name="early")
            for name, each in self._live.items()
        }
        self._step = tf.Variable(NOT_YET, trainable=False, dtype=tf.int64, name="early_step")

    @property
    def state(self) -> dict[str, tf.Variable]:
        return {"early_step": self._step, **{f"early/{name}": variable for name, variable in self._early.items()}}

    @property
    def is_kept(self) -> tf.Tensor:
        """Return whether a state has been saved."""
        return tf.not_equal(self._step, NOT_YET)

    @property
    def early_step(self) -> int | None:
        """Return the step of the saved state; None before it."""
        step = int(self._step.numpy())
        return None if step == NOT_YET else step

    def keep(self, context: StepContext) -> list[tf.Operation | tf.Tensor]:
        """Return ops that save the state before step `begin`, or before the first later step that is not held back."""
        due = tf.logical_and(tf.logical_not(self.is_kept), context.step >= self._begin)
        found = {**context.latent, **context.state, **{name: each.value for name, each in self._optimizer.items()}}
        values = tf.cond(
            due,
            lambda: [tf.convert_to_tensor(found[name]) for name in self._early],
            lambda: [tf.convert_to_tensor(early) for early in self._early.values()],
        )
        kept = [early.assign(value) for early, value in zip(self._early.values(), values, strict=True)]
        return [*kept, self._step.assign(tf.where(due, context.step, self._step))]

    def early_or(self, new_state: Mapping[str, tf.Tensor], when: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return new moving statistics or, if `when` is True, the saved ones."""
        early = {name: self._early[name] for name in new_state if name in self._early}
        return {
            name: tf.where(when, early[name], tf.cast(value, early[name].dtype)) if name in early else value
            for name, value in new_state.items()
        }

    def put_back(self, latent: Iterable[str], when: tf.Tensor) -> None:
        """Assign the saved values to latent variables and the optimizer; the step writes moving statistics."""

        def assign() -> tf.Tensor:
            for name in (*latent, *self._optimizer):
                self._live[name].value.assign(self._early[name])
            return tf.constant(True)

        tf.cond(when, assign, lambda: tf.constant(False))
