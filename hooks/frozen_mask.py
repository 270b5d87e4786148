"""Freeze entries of weights under a mask, at whatever value they have, while the other entries train."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hookline.hooks import masking
from hookline.hooks.kernels import Target, kernel_names, layer_rows, left_out_advice, select_targets
from hookline.hooks.options import begin_step, check_epochs
from hookline.trainer.errors import UserError, check_choice, check_number
from hookline.trainer.hook import Arrays, Declaration, GraphHook, Run, Tensors
from hookline.trainer.objective import Shown
from hookline.trainer.ops.backward import entry_stop_gradients
from hookline.trainer.step.context import BuildContext, StepContext

SOURCES = ("magnitude", "file", "zeros", "hook")
FROZEN_PARTS = ("masked", "survivors")


class FrozenMask(GraphHook):
    """Keep the entries under a mask at their values, zero or not, bit for bit, while the others train.

    A mask says for each entry whether it survives (True) or is masked (False). Masked entries are frozen; with
    freeze="survivors" the surviving ones are. The gradient of a frozen entry is stopped, including that of a
    regularizer, and the entry's value is restored after the optimizer's update. Its slots are set to 0 when it freezes,
    and its moving average equals its value.

    Masks are applied before rounding: `bnn_rounding` rounds a frozen 0 to +1. Keras's Adafactor produces NaN if a whole
    row and a whole column have had no gradient from the start; with such masks, set its epsilon_1 to 1e-12.

    With masks=hook, this hook follows the masks in the states "mask/<variable>" of the other hook as they change. With
    masks=magnitude and a `begin_epoch` above 0, the masks are computed once, in the step in which freezing begins.

    Group: technique

    Equation:
        with m = 1 where an entry trains, 0 where it is frozen:
        forward:               y = w, bit for bit;  dL/dw = m dL/dy
        after the optimizer:   w <- w where m = 1, else w as the step found it;  its average <- w where m = 0
        when m changes:        its slots <- 0 where m = 0
        masks=magnitude:       masked: the round(fraction * n) smallest |w| of each kernel

    State:
        mask/<variable>: True where an entry trains: where the mask is True or, with freeze=survivors, where it is
            False. Absent with masks=hook.

    Scalars:
        frozen_mask/share: share of entries that are frozen.

    Pictures:
        frozen_mask/mask/<variable>: the hook's own masks; with masks=hook the other hook shows them.

    Cost: 0.96 of the speed (LeNet-5, batch 100).

    Pitfalls:
        tests/hooks/test_frozen_mask.py: masking only the gradient does not freeze an entry: earlier momentum, weight
            decay and the optimizer's average still move it.
        tests/trainer/ops/test_entry_stop_gradients.py: the common stop_gradient((1 - m) w) + m w turns infinity into
            NaN.

    Reference: Han et al. 2015, arXiv 1506.02626; the rules for slots, decay and averages are this project's own.

    Example:
        python train.py recipe=frozen_mask
        python train.py recipe=baseline +hooks=frozen_mask hooks.frozen_mask.fraction=0.8
    """

    before = ("bnn_rounding",)
    after = ("prune", "incremental_quantization")
    priority = 60

    def __init__(
        self,
        *,
        layers: str | Sequence[str] = "*",
        masks: str = "magnitude",
        fraction: float = 0.5,
        path: str | None = None,
        hook: str | None = None,
        freeze: str = "masked",
        begin_epoch: float = 0.0,
        network: str = "model",
    ) -> None:
        """Check the options.

        Args:
            layers: patterns on paths or names of layers that have a mask: layers with kernels, or those that the file
                or the hook has masks for.
            masks: where masks come from. "magnitude": the smallest |w| of each kernel are masked; "file": an npz file;
                "zeros": the weights of a run that are 0; "hook": another hook, whose masks are followed as they change.
            fraction: in [0, 1]; for "magnitude", the share of each kernel that is masked.
            path: for "file", an npz file with an array of bool, or of 0 and 1, for each variable, by its name; for
                "zeros", a run directory.
            hook: for "hook", the name of a hook with the states "mask/<variable>".
            freeze: "masked" freezes the masked entries and trains the survivors; "survivors" the other way round.
            begin_epoch: 0 or more; before it nothing is frozen. To follow splicing, begin when its masks are final.
            network: name of the network.
        """
        self.layers = layers
        self.masks = check_choice("masks", masks, SOURCES)
        self.freeze = check_choice("freeze", freeze, FROZEN_PARTS)
        self.fraction = check_number("fraction", fraction, minimum=0.0, maximum=1.0)
        self.begin_epoch = check_epochs("begin_epoch", begin_epoch)
        self.path = masking.check_partner("path", path, masks, users=("file", "zeros"))
        self.hook = masking.check_partner("hook", hook, masks, users=("hook",))
        self.network = network
        if self.hook is not None:
            if freeze == "survivors":
                raise UserError(
                    f"freeze=survivors cannot follow '{hook}'. Expected freeze=masked, or a new run with masks=zeros."
                )
            self.reads = (f"{self.hook}/mask",)
        self._known: dict[str, tf.Tensor] = {}  # static masks that do not depend on the weights
        self._state: dict[str, tf.Variable] = {}
        self._followed: dict[str, tf.Variable] = {}
        self._held: dict[str, tf.Tensor] = {}  # the masks of the step being traced, as read at its start

    def build(self, context: BuildContext) -> None:
        self._begin = begin_step(self.begin_epoch, context)
        self._network = network = context.network
        if self.hook is not None:
            self._followed = masking.followed_masks(context, self.hook, self.name)
            kind = f"layer with a mask of {self.hook}"
            self._targets = select_targets(network, self.layers, self._followed, kind=kind)
            return
        if self.masks == "file":
            survives = masking.read_mask_file(str(self.path), network)
            self._targets = select_targets(network, self.layers, survives, kind=f"layer with a mask in {self.path}")
        else:
            self._targets = select_targets(network, self.layers, kernel_names(network), kind="kernel layer")
            names = [target.name for target in self._targets]
            survives = masking.read_zeros(str(self.path), network, names) if self.masks == "zeros" else {}
        trains = {name: tf.constant(mask) for name, mask in survives.items()}
        self._known = trains if self.freeze == "masked" else {name: ~mask for name, mask in trains.items()}
        for target in self._targets:
            latent = tf.convert_to_tensor(target.variable.value)
            mask = tf.ones(latent.shape, tf.bool) if self._begin else self._choose(target, latent)
            self._state[target.name] = tf.Variable(mask, trainable=False, name="mask")

    def _choose(self, target: Target, latent: tf.Tensor) -> tf.Tensor:
        """Return the mask that holds from `begin_epoch` on: True where entries train."""
        if target.name in self._known:
            return self._known[target.name]
        survives = masking.largest_entries(latent, self.fraction)
        return survives if self.freeze == "masked" else tf.logical_not(survives)

    def declare(self) -> Declaration:
        state = {f"mask/{name}": variable for name, variable in self._state.items()}
        names = {target.name for target in self._targets}
        return Declaration(state, state if self._begin else {}, projected=names, best_from_step=self._begin)

    def frozen_entries(self, context: StepContext) -> Tensors:
        begun = context.step > self._begin
        return {name: tf.logical_and(begun, tf.logical_not(mask)) for name, mask in self._mask_variables().items()}

    def transform_weights(self, weights: Tensors, context: StepContext) -> Tensors:
        if not context.training:
            return weights
        self._held = self._read_masks(context)  # a maker changes its masks before `project` runs
        stopped = {name: entry_stop_gradients(weights[name], mask) for name, mask in self._held.items()}
        return {**weights, **stopped}

    def _read_masks(self, context: StepContext) -> dict[str, tf.Tensor]:
        """Return the current masks; in the step in which freezing begins, those that hold from then on."""
        masks = {name: tf.convert_to_tensor(variable) for name, variable in self._mask_variables().items()}
        if not self._begin:
            return masks
        if self._followed:
            return {name: tf.logical_or(mask, context.step < self._begin) for name, mask in masks.items()}
        values = tf.cond(
            tf.equal(context.step, self._begin),
            lambda: [self._choose(target, context.latent[target.name]) for target in self._targets],
            lambda: list(masks.values()),
        )
        return dict(zip(masks, values, strict=True))

    def _mask_variables(self) -> dict[str, tf.Variable]:
        variables = self._followed or self._state
        return {target.name: variables[target.name] for target in self._targets}

    def update_ops(self, context: StepContext) -> list[tf.Operation | tf.Tensor]:
        return [variable.assign(self._held[name]) for name, variable in self._state.items()] if self._begin else []

    def project(self, context: StepContext) -> None:
        before = self._held
        after = self._read_masks(context) if self._followed else before
        masking.hold_values(self._targets, before, context.latent)
        masking.hold_averages(context.network, self._targets, after)
        changes = [tf.equal(context.step, self._begin)]
        if self._followed:
            changes += [tf.reduce_any(tf.not_equal(before[name], mask)) for name, mask in after.items()]
            # An entry that another hook releases in this very step starts with a slot of 0 as well.
            after = {name: tf.logical_and(before[name], mask) for name, mask in after.items()}
        masking.clear_slots(context.network, self._targets, after, when=tf.reduce_any(tf.stack(changes)))

    def measure(self, context: StepContext) -> Tensors:
        masks = self._read_masks(context) if self._followed else self._held
        trained = tf.add_n([tf.reduce_sum(tf.cast(mask, tf.float32)) for mask in masks.values()])
        entries = sum(target.size for target in self._targets)
        return {f"{self.key}/share": 1.0 - trained / entries}

    def show(self, observed: Arrays) -> Shown:
        return Shown(masking.mask_pictures(self._state))

    def advise(self, run: Run) -> Sequence[str]:
        if self.masks not in ("magnitude", "zeros"):
            return ()  # the maker of the masks chose what they cover
        covered = [target.name for target in self._targets]
        return left_out_advice(self._network, self.layers, covered, state="without a mask")

    def summary(self) -> dict[str, Any]:
        layers = layer_rows(self._targets, self._mask_variables())
        return {
            "masks": self.hook or self.masks,
            "freeze": self.freeze,
            "begin_step": self._begin,
            "share": sum(row["frozen"] for row in layers) / sum(row["entries"] for row in layers),
            "layers": layers,
        }
