"""Pruning on a schedule: masks over kernels, made from magnitudes inside the traced step, and held by projection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from hookline.hooks.kernels import Kernel, Target, entry_shares, left_out_advice, left_out_weights
from hookline.hooks.masking import mask_pictures
from hookline.hooks.options import check_epochs, epoch_start, project_with_average
from hookline.hooks.pruning.rewinding import Rewinding, check_rewind
from hookline.hooks.pruning.selector import MaskSelector, kept_counts
from hookline.hooks.pruning.settings import (
    check_structure,
    layer_report,
    layer_sparsities,
    parse_settings,
    select_kernels,
    stored_bytes,
)
from hookline.trainer.hook import Arrays, Bits, Declaration, GraphHook, Tensors
from hookline.trainer.objective import Shown
from hookline.trainer.ops.estimators import straight_through, zero_unless
from hookline.trainer.step.context import BuildContext, StepContext

if TYPE_CHECKING:
    from hookline.trainer.run.run import Run


class Prune(GraphHook):
    r"""Prune kernels: the smallest entries become 0 and stay 0.

    Kernels are the weights of dense layers, convolutions, attention and other einsums, recurrent cells and embeddings,
    and the weights of your own layers with the names "kernel" or "recurrent_kernel". If "*" leaves other weights with
    two or more axes dense, a message names them and their number.

    Schedules: "one_shot" prunes once, at `begin_epoch`. "constant" has the final sparsity from `begin_epoch` on and
    recomputes the masks until `end_epoch`, like ConstantSparsity of TensorFlow Model Optimization; but here pruned
    entries are exactly 0, and so the smallest, so the masks do not change. "polynomial" goes from `initial_sparsity` to
    the final one. "iterative" prunes to each of `stages` and trains the survivors in between. "splicing" follows the
    polynomial too, but only the forward pass sees zeros: latent entries keep their value, get the gradient of the
    masked entries, and may return until `end_epoch`.

    In a step the masks change before the weights do: they are computed from the weights at the start of the step, and
    apply from its end. Of the n entries (blocks, channels) of a kernel exactly round(sparsity * n) are pruned. Among
    equal entries the last are pruned first. The largest entry always stays, even at sparsity 1. Biases and batch norm
    are not pruned.

    Pruned entries get no gradient and are exactly 0 after every step, also in the optimizer's moving average, whatever
    momentum, weight decay or regularizers do. With splicing this holds once the masks are final (`best_from_step`). Add
    the hook `frozen_mask` to clear the optimizer's slots too.

    With `rewind_epoch` the hook finds lottery tickets. In the step that makes the masks final, and at every stage,
    survivors return to their values at that epoch. Everything else that training has changed returns too: biases,
    moving statistics, the optimizer's slots, and its step count, hence also the learning rate schedule, as in the
    paper. (The paper's code starts with new slots; with Adam, these would not match the bias correction at that step
    count.) The run does not become longer, so choose a schedule for the remaining steps: schedule=constant, or
    milestones of schedule=step within them. Random draws, the order of examples and the state of other hooks, such as
    averages and a lowered learning rate, continue. Layers that `freeze_layers` froze after that epoch return too.
    `incremental_quantization` is refused together with `rewind_epoch`.

    Under a name other than "prune", the hook's reports are prefixed with that name and "/".

    Group:
        technique

    Equation:
        polynomial:  s_t = s_f + (s_i - s_f) (1 - (t - t0) / (t1 - t0))^power    at t0, every `frequency` steps, and t1
        m = 0 at the round(s_t n) units with the smallest score: |w|; of blocks and channels the L1 norm, or the L2 norm
        forward:              m w in place of w;  dL/dw = m dL/d(m w), for splicing dL/d(m w) until t1
        after the optimizer:  w <- m w, for splicing from t1 on; and so its moving average
        splicing:             a pruned unit takes the place of a kept one where its score > hysteresis * the other's
        rewinding:            w <- m w_k, k the step of `rewind_epoch`, in the step of final or a stage's masks

    State:
        mask/<variable>: True where an entry is kept.
        updates: how often the masks have changed.

    Scalars:
        sparsity/total: share of zeros that the next forward pass sees, over all pruned kernels.
        sparsity/<layer>: the same for one layer.
        sparsity/network: the same over all kernels, if there are any that `layers` leaves out.

    Pictures:
        prune/mask/<variable>: the mask.

    Cost:
        Two passes over the kernels per step; the sort for the masks runs only when they change. Measured: 0.97 of the
        speed (LeNet-5, batch 100), and 1.1 times that of TFMOT's pruning on the same network. With `rewind_epoch`,
        checkpoints and memory contain a second copy of the weights and slots, as state early/<variable>.

    Pitfalls:
        tests/hooks/pruning/test_schedules.py: the final sparsity is missed if the frequency does not divide the number
            of steps; here the end is always an update.
        tests/hooks/test_prune.py: pruned entries are 0 after every step, not only in the next forward pass; ties and
            kernels of zeros are pruned to the exact number, and a mask update in a skipped step is made up for; with
            splicing, entries get the gradient of the masked network and return.
        tests/hooks/pruning/test_rewinding.py: survivors and the optimizer's state return together, to the values from
            before the update of one step.
        tests/hooks/pruning/test_criteria.py: the smallest units are pruned first, and ties have a fixed order.

    Reference:
        Zhu and Gupta 2017, "To prune, or not to prune", arXiv 1710.01878, equation 1; Han et al. 2015, arXiv 1506.02626
        (iterative); Guo et al. 2016, "Dynamic Network Surgery", arXiv 1608.04493, equation 3 (splicing);
        Frankle et al. 2019, "Stabilizing the Lottery Ticket Hypothesis", arXiv 1903.01611, algorithm 1 (rewinding).

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
            layers: patterns on paths or names of layers that hold kernels, such as "encoder/*" or "lstm_cell".
            schedule: "one_shot", "constant", "polynomial", "iterative" or "splicing".
            final_sparsity: in [0, 1], or one by layer pattern, of which the last that matches counts; "auto" for what
                `structure` or `stages` say, else 0.5.
            initial_sparsity: at `begin_epoch`, for "polynomial" and "splicing".
            begin_epoch: epochs before the first masks.
            end_epoch: by the end of which masks are final; None for halfway from the begin to the end of training.
            frequency: steps between updates of the masks. There is always one at the end.
            frequency_growth: of at least 1; how many times as long as the last each interval between updates is.
            power: of the polynomial, above 0.
            stages: rising sparsities, each as `final_sparsity`, for "iterative"; the last one is the final one.
            stage_epochs: epochs from one stage to the next.
            hysteresis: of at least 1, for "splicing"; a pruned entry so many times as large as a kept one replaces it.
            rewind_epoch: before the masks are final, for "iterative" before the first ones; survivors go back to what
                they were after so many epochs. None to train on.
            scope: "per_layer", or "global" to rank the entries of all kernels together.
            structure: "unstructured"; "channel" for whole output channels; {"n_m": [n, m]} to keep n of every m
                consecutive inputs (input channels of a convolution) of an output; {"block": [rows, columns]} of the
                matrix [inputs, outputs]. Sparsities of blocks and channels count these, not entries.
            criterion: how blocks and channels are ranked: "magnitude" (L1 norm) or "l2".
            network: name of the network.
        """
        given = {name: value for name, value in locals().items() if name not in ("self", "network", "rewind_epoch")}
        self.settings = parse_settings(given)
        self.rewind_epoch = None if rewind_epoch is None else check_epochs("rewind_epoch", rewind_epoch)
        if rewind_epoch is not None:
            self.conflicts = ("incremental_quantization",)  # whose levels it would put back, too
        self.network = network
        self._kernels: list[Kernel] = []
        self._steps: list[int] = []
        self._others: list[Target] = []  # kernels that stay dense
        self._masks: dict[str, tf.Variable] = {}
        self._updates: Any = None  # the variable, once built
        self._rewinding: Rewinding | None = None

    def build(self, context: BuildContext) -> None:
        settings, network = self.settings, context.network
        self._network = network
        self._kernels = select_kernels(network, settings.layers)
        check_structure(network, self._kernels, settings.structure)
        self._others = left_out_weights(network, {kernel.name for kernel in self._kernels})
        self._steps = settings.schedule.steps(context.total_steps, context.steps_per_epoch)
        self._selector = MaskSelector(
            self._kernels,
            kept_counts(
                self._kernels,
                layer_sparsities(network, self._kernels, settings, self._steps),
                settings.structure,
                settings.scope,
            ),
            settings.structure,
            settings.criterion,
            settings.hysteresis,
        )
        self._masks = {kernel.name: kernel.new_mask() for kernel in self._kernels}
        self._updates = tf.Variable(0, trainable=False, dtype=tf.int64, name="updates")
        if self.rewind_epoch is not None:
            step = epoch_start(self.rewind_epoch, context.steps_per_epoch)
            check_rewind(self.rewind_epoch, step, self._steps[self._rewound_from])
            self._rewinding = Rewinding(network, step)

    @property
    def _rewound_from(self) -> int:
        """Return the first update that is followed by rewinding: of stages every one, else only the last."""
        return 0 if self.settings.stages else len(self._steps) - 1

    @property
    def _splices(self) -> bool:
        """Return whether pruned entries may come back before the masks are final."""
        return self.settings.hysteresis is not None

    def declare(self) -> Declaration:
        state = {f"mask/{name}": mask for name, mask in self._masks.items()}
        state |= {} if self._updates is None else {"updates": self._updates}
        state |= {} if self._rewinding is None else self._rewinding.state
        projected = self._masks if self._rewinding is None else self._network.trainable_variables
        return Declaration(state, writes=state, projected=set(projected), best_from_step=self._settled)

    @property
    def _settled(self) -> int:
        return self._steps[-1] + 1 if self._steps else 0

    def shipped_bits(self, shipped: Mapping[str, np.ndarray]) -> Bits:
        """Return bits per entry of each pruned kernel, stored sparse (CSR) or dense, whichever is smaller."""
        sizes = {kernel.name: stored_bytes(kernel, shipped[kernel.name]) / kernel.size for kernel in self._kernels}
        return Bits({name: 8.0 * size for name, size in sizes.items()})

    def transform_weights(self, weights: Tensors, context: StepContext) -> Tensors:
        return {**weights, **{name: self._masked(weights[name], mask) for name, mask in self._masks.items()}}

    def _masked(self, weight: tf.Tensor, mask: tf.Variable) -> tf.Tensor:
        masked = zero_unless(tf.convert_to_tensor(mask), weight)
        if not self._splices:
            return masked
        return zero_unless(self._trained(mask), straight_through(masked, weight))

    def _trained(self, mask: tf.Variable) -> tf.Tensor:
        """Return where entries get a gradient and keep their value: kept entries; in splicing all, until the end."""
        kept = tf.convert_to_tensor(mask)
        return tf.logical_or(kept, self._updates < len(self._steps)) if self._splices else kept

    def _wanted(self, context: StepContext) -> tf.Tensor:
        """Return how often the masks should have changed when this step is done."""
        return tf.math.count_nonzero(tf.constant(self._steps, tf.int64) <= context.step)

    def transform_state(self, new_state: Tensors, context: StepContext) -> Tensors:
        if self._rewinding is None:
            return new_state
        wanted = self._wanted(context)
        changes = tf.logical_and(wanted > self._updates, wanted > self._rewound_from)
        context.taps[self._tap] = tf.logical_and(changes, self._rewinding.is_kept)
        return self._rewinding.early_or(new_state, context.taps[self._tap])

    @property
    def _tap(self) -> str:
        """Return the name under which later stages find whether this step rewinds."""
        return f"{self.name}/rewinds"

    def update_ops(self, context: StepContext) -> list[tf.Operation | tf.Tensor]:
        done = tf.convert_to_tensor(self._updates)
        wanted = self._wanted(context)
        masks = {name: tf.convert_to_tensor(mask) for name, mask in self._masks.items()}
        # Masks are computed at due steps only. Counting updates makes up for a due step that was held back.
        changed = tf.cond(
            wanted > done,
            lambda: self._selector(context.latent, masks, wanted - 1),
            lambda: [tf.identity(mask) for mask in masks.values()],
        )
        assigned = [mask.assign(value) for mask, value in zip(self._masks.values(), changed, strict=True)]
        kept = [] if self._rewinding is None else self._rewinding.keep(context)
        return [*assigned, *kept, self._updates.assign(tf.maximum(wanted, done))]

    def project(self, context: StepContext) -> None:
        if self._rewinding is not None and self._tap in context.taps:  # the hook takes part
            self._rewinding.put_back(context.latent, context.taps[self._tap])
        for kernel in self._kernels:
            trained = self._trained(self._masks[kernel.name])
            project_with_average(context.network.optimizer, kernel.variable, partial(zero_unless, trained))

    def measure(self, context: StepContext) -> Tensors:
        zeros = [self._zeros(kernel.variable, self._masks[kernel.name]) for kernel in self._kernels]
        name = "sparsity" if self.key in ("", "prune") else f"{self.key}/sparsity"
        shares = entry_shares(name, self._kernels, zeros)
        total = shares.pop(name)
        network = {f"{name}/network": self._share_of_network(total)} if self._others else {}
        return {f"{name}/total": total, **network, **shares}

    def _share_of_network(self, total: tf.Tensor) -> tf.Tensor:
        """Return the share of zeros among all kernels, given that among the pruned ones."""
        others = [tf.cast(tf.convert_to_tensor(each.variable.value) == 0, tf.float32) for each in self._others]
        pruned = sum(kernel.size for kernel in self._kernels)
        entries = pruned + sum(each.size for each in self._others)
        return (total * pruned + tf.add_n([tf.reduce_sum(each) for each in others])) / entries

    def _zeros(self, variable: keras.Variable, mask: tf.Variable) -> tf.Tensor:
        zeros = tf.convert_to_tensor(variable.value) == 0
        return tf.logical_or(zeros, tf.logical_not(mask)) if self._splices else zeros

    def show(self, observed: Arrays) -> Shown:
        return Shown(mask_pictures(self._masks))

    def summary(self) -> dict[str, Any]:
        if not self._masks:
            return {}
        return {
            "schedule": self.settings.schedule.name,
            "structure": self.settings.structure.config,
            "final_sparsity": self.settings.final_sparsity,
            "settled_at": self._settled,
            **({} if self._rewinding is None else {"rewound_to": self._rewinding.early_step}),
            **layer_report(self._network, self._kernels, self._masks, self._others),
        }

    def advise(self, run: Run) -> Sequence[str]:
        covered = [kernel.name for kernel in self._kernels]
        reason = "Of layers of your own, weights that are named 'kernel' are pruned."
        lines = left_out_advice(self._network, self.settings.layers, covered, state="dense", reason=reason)
        if self._rewinding is not None:
            lines += self._rewinding.advise(last=self._steps[-1], total=run.total_steps)
        return lines
