"""Freeze the masked entries of weights at their values, zero or not, while the other entries train."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from PIL import Image

from hookline.hooks.kernels import Target, kernel_names, layer_rows, left_out_advice, select_targets, variable_layers
from hookline.hooks.options import AVERAGE, begin_step, check_place
from hookline.hooks.pruning.selector import keep_largest
from hookline.trainer.errors import ARRAY_FAULTS, UserError, check_choice, check_number, did_you_mean, user_path
from hookline.trainer.files import check_folders
from hookline.trainer.hook import Arrays, Declaration, GraphHook, Run, Tensors
from hookline.trainer.network import Network
from hookline.trainer.objective import Shown
from hookline.trainer.ops.backward import entry_stop_gradients
from hookline.trainer.ops.estimators import zero_unless
from hookline.trainer.run.checkpoint import CheckpointStore
from hookline.trainer.run.checkpoint_files import tensors_digest
from hookline.trainer.step.context import BuildContext, StepContext


class FrozenMask(GraphHook):
    """Keep the entries under a mask at their values, zero or not, bit for bit, while the others train.

    A mask marks each entry as surviving (True) or masked (False). Masked entries are frozen; with freeze="survivors"
    the surviving ones are. The gradient of a frozen entry is stopped, including that of a regularizer, and the entry's
    value is restored after the optimizer's update. Its slots are set to 0 when it freezes, and its moving average
    equals its value. A frozen entry that another hook masks and sets to 0, as `prune` does, is 0 from then on.

    Masks are applied before rounding: `bnn_rounding` rounds a frozen 0 too, for example to +1. Keras's Adafactor
    produces NaN if a whole row and a whole column have had no gradient from the start; with such masks, set its
    epsilon_1 to 1e-12.

    With masks=hook, this hook follows the masks in the states "mask/<variable>" of the other hook as they change. With
    masks=magnitude and a `begin_epoch` above 0, the masks are computed once, in the step in which freezing begins. If
    that step is skipped, freezing begins in the next one.

    Group: technique

    Equation:
        with m = 1 where an entry trains, 0 where it is frozen:
        forward:               y = w, bit for bit;  dL/dw = m dL/dy
        after the optimizer:   w <- w where m = 1, else w at the start of the step;  its average <- w where m = 0
        when m changes:        its slots <- 0 where m = 0
        masks=magnitude:       masked: the round(fraction * n) smallest |w| of each kernel

    State:
        mask/<variable>: True where an entry trains: the mask itself or, with freeze=survivors, its inverse. Absent with
            masks=hook.

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
            path: for "file", an npz file with an array of bool, or of 0 and 1, for each variable, under its name; for
                "zeros", a run directory.
            hook: for "hook", the name of a hook with the states "mask/<variable>".
            freeze: "masked" freezes the masked entries and trains the survivors; "survivors" does the opposite.
            begin_epoch: 0 or more; before it nothing is frozen. To follow splicing, begin when its masks are final.
            network: name of the network.
        """
        self.layers = layers
        self.masks = check_choice("masks", masks, ("magnitude", "file", "zeros", "hook"))
        self.freeze = check_choice("freeze", freeze, ("masked", "survivors"))
        self.fraction = check_number("fraction", fraction, minimum=0.0, maximum=1.0)
        self.begin_epoch = check_number("begin_epoch", begin_epoch, 0)
        self.path = check_partner("path", path, masks, users=("file", "zeros"))
        self.hook = check_partner("hook", hook, masks, users=("hook",))
        self.network = network
        if self.hook is not None:
            if freeze == "survivors":
                raise UserError(
                    f"freeze=survivors cannot follow '{hook}'. Expected freeze=masked, or a new run with masks=zeros."
                )
            self.reads = (f"{self.hook}/mask",)
        self._known: dict[str, tf.Tensor] = {}  # static masks that do not depend on the weights
        self._digest = ""  # of the masks from `path`
        self._state: dict[str, tf.Variable] = {}
        self._followed: dict[str, tf.Variable] = {}
        self._held: dict[str, tf.Tensor] = {}  # the masks of the step being traced, as read at its start
        self._others: dict[str, tf.Variable] = {}  # the masks of hooks before this one, by "hook/mask/<variable>"

    def build(self, context: BuildContext) -> None:
        self._begin = begin_step(self.begin_epoch, context)
        self._network = network = context.network
        self._others = {key: each for key, each in context.states.items() if "/mask/" in key}
        if self.hook is not None:
            self._followed = followed_masks(context, self.hook, self.name)
            kind = f"layer with a mask of {self.hook}"
            self._targets = select_targets(network, self.layers, self._followed, kind=kind)
            return
        if self.masks == "magnitude" and self.freeze == "masked" and (makers := mask_makers(context)):
            raise UserError(
                f"The hook '{self.name}' has masks=magnitude, but '{makers[0]}' makes others. To freeze those, set "
                f"hooks.{self.name}.masks=hook hooks.{self.name}.hook={makers[0]}."
            )
        if self.path is not None:
            check_place(f"hooks.{self.key}.path", self.path)
        if self.masks == "file":
            survives = read_mask_file(str(self.path), network)
            self._targets = select_targets(network, self.layers, survives, kind=f"layer with a mask in {self.path}")
        else:
            self._targets = select_targets(network, self.layers, kernel_names(network), kind="kernel layer")
            names = [target.name for target in self._targets]
            survives = read_zeros(str(self.path), network, names) if self.masks == "zeros" else {}
        self._digest = tensors_digest(survives) if survives else ""
        trains = {name: tf.constant(mask) for name, mask in survives.items()}
        self._known = trains if self.freeze == "masked" else {name: ~mask for name, mask in trains.items()}
        for target in self._targets:
            latent = tf.convert_to_tensor(target.variable.value)
            mask = tf.ones(latent.shape, tf.bool) if self._begin else self._choose(target, latent)
            self._state[target.name] = tf.Variable(mask, trainable=False, name="mask")

    def _choose(self, target: Target, latent: tf.Tensor) -> tf.Tensor:
        """Return the mask that applies from `begin_epoch` on: True where entries train."""
        if target.name in self._known:
            return self._known[target.name]
        survives = largest_entries(latent, self.fraction)
        return survives if self.freeze == "masked" else tf.logical_not(survives)

    def declare(self) -> Declaration:
        state = {f"mask/{name}": variable for name, variable in self._state.items()}
        names = {target.name for target in self._targets}
        outside = {"path": self._digest} if self._digest else {}
        written = state if self._begin else {}
        return Declaration(state, written, projected=names, best_from_step=self._begin, outside=outside)

    def frozen_entries(self, context: StepContext) -> Tensors:
        begun = context.step > self._begin
        return {name: tf.logical_and(begun, tf.logical_not(mask)) for name, mask in self._mask_variables().items()}

    def transform_weights(self, weights: Tensors, context: StepContext) -> Tensors:
        if not context.training:
            return weights
        masks = self._read_masks(context)
        self._begins = tf.equal(context.step, 0)
        if self._begin and not self._followed:
            whole = [tf.reduce_all(mask) for mask in masks.values()]  # all True until chosen, even after a skip
            self._begins = tf.reduce_all([context.step >= self._begin, *whole])
            values = tf.cond(
                self._begins,
                lambda: [self._choose(target, context.latent[target.name]) for target in self._targets],
                lambda: list(masks.values()),
            )
            masks = dict(zip(masks, values, strict=True))
        self._held = masks  # a followed hook updates its masks before `project` runs
        stopped = {name: entry_stop_gradients(weights[name], mask) for name, mask in self._held.items()}
        return {**weights, **stopped}

    def _read_masks(self, context: StepContext) -> dict[str, tf.Tensor]:
        """Return the current masks; those of another hook apply from `begin_epoch` on."""
        masks = {name: tf.convert_to_tensor(variable) for name, variable in self._mask_variables().items()}
        if not (self._begin and self._followed):
            return masks
        return {name: tf.logical_or(mask, context.step < self._begin) for name, mask in masks.items()}

    def _mask_variables(self) -> dict[str, tf.Variable]:
        variables = self._followed or self._state
        return {target.name: variables[target.name] for target in self._targets}

    def update_ops(self, context: StepContext) -> list[tf.Operation | tf.Tensor]:
        return [variable.assign(self._held[name]) for name, variable in self._state.items()] if self._begin else []

    def project(self, context: StepContext) -> None:
        before = self._held
        after = self._read_masks(context) if self._followed else before
        hold_values(self._targets, before, context.latent, self._others)
        hold_averages(context.network, self._targets, after)
        clear = self._begins
        if self._followed:
            clear = context.step >= self._begin  # any of these steps may change the masks
            # An entry that another hook releases in this step also starts with a slot of 0.
            after = {name: tf.logical_and(before[name], mask) for name, mask in after.items()}
        clear_slots(context.network, self._targets, after, when=clear)

    def measure(self, context: StepContext) -> Tensors:
        masks = self._read_masks(context) if self._followed else self._held
        trained = tf.add_n([tf.reduce_sum(tf.cast(mask, tf.float32)) for mask in masks.values()])
        entries = sum(target.size for target in self._targets)
        return {f"{self.key}/share": 1.0 - trained / entries}

    def show(self, observed: Arrays) -> Shown:
        return Shown(mask_pictures(self._state))

    def advise(self, run: Run) -> Sequence[str]:
        if self.masks not in ("magnitude", "zeros"):
            return ()  # the source of the masks decides what they cover
        covered = [target.name for target in self._targets]
        lines = left_out_advice(self._network, self.layers, covered, state="without a mask")
        if self.masks == "zeros" and self.freeze == "masked" and not run.from_checkpoint:
            trains = self._mask_variables()
            if any(each.variable.numpy()[~trains[each.name].numpy()].any() for each in self._targets):
                lines.append(
                    f"entries that are 0 in {self.path} are frozen at other values here. Set init_from={self.path} to "
                    "begin with its weights."
                )
        return lines

    def summary(self) -> dict[str, Any]:
        layers = layer_rows(self._targets, self._mask_variables())
        return {
            "masks": self.hook or self.masks,
            "freeze": self.freeze,
            "begin_step": self._begin,
            "share": sum(row["frozen"] for row in layers) / sum(row["entries"] for row in layers),
            "layers": layers,
        }


def check_partner(name: str, value: Any, masks: str, *, users: Sequence[str]) -> str | None:
    """Return an option's value; it is required with some sources of masks and refused with all others."""
    if masks in users and (not isinstance(value, str) or not value):
        raise UserError(f"masks={masks} needs {name}=... Received: {name}={value!r}.")
    if masks not in users and value is not None:
        raise UserError(f"{name}={value} has no effect with masks={masks}. Expected masks={' or '.join(users)}.")
    return value


def read_mask_file(path: str, network: Network) -> dict[str, np.ndarray]:
    """Return the masks of an npz file, by variable name: bool, True where an entry survives."""
    variables, layers = network.trainable_variables, variable_layers(network)
    masks = {}
    for name, array in _load_arrays(path).items():
        check_choice(f"variable in {path}", name, layers)
        _check_shape(f"The mask '{name}' in {path}", array, variables[name].shape)
        if array.dtype != bool and not np.isin(array, (0, 1)).all():
            raise UserError(f"Mask '{name}' in {path} has values other than 0 and 1. Expected 1 for surviving entries.")
        masks[name] = array.astype(bool)
    return masks


def _load_arrays(path: str) -> dict[str, np.ndarray]:
    found = user_path(path, "path")
    try:
        with np.load(found, allow_pickle=False) as loaded:  # a single unnamed array raises TypeError here
            return {name: loaded[name] for name in loaded.files}
    except ARRAY_FAULTS as error:
        raise UserError(
            f"The mask file {path} cannot be read ({error}). Expected an npz file with a mask for each variable."
        ) from error


def read_zeros(path: str, network: Network, names: Collection[str]) -> dict[str, np.ndarray]:
    """Return masks from the weights of a run, by variable name: bool, False where a weight is exactly 0."""
    directory = user_path(path, "path") / "checkpoints"
    check_folders(directory.parent, "path")
    if not directory.is_dir():
        raise UserError(f"path={path} has no checkpoints. Expected the directory of a run whose zeros give the masks.")
    store = CheckpointStore(directory)
    tensors = store.load_sound(store.best_or_last()).tensors
    masks = {}
    for name in names:
        key = f"network/{network.name}/{name}"
        if key not in tensors:
            raise UserError(
                f"The run {path} has no '{key}'.{did_you_mean(key, tensors)} Expected a run of the same network."
            )
        _check_shape(f"'{key}' in the run {path}", tensors[key], network.variables[name].shape)
        masks[name] = np.asarray(tensors[key] != 0)
    if all(mask.all() for mask in masks.values()):
        raise UserError(f"No weight in run {path} is 0: it gives no mask. Expected a pruned run, or masks=magnitude.")
    return masks


def _check_shape(what: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    if array.shape != tuple(shape):
        raise UserError(f"{what} has the shape {list(array.shape)}. Expected {list(shape)}, the shape of the variable.")


def largest_entries(weights: tf.Tensor, fraction: float) -> tf.Tensor:
    """Return a mask that is False for exactly the round(fraction * size) smallest entries; of equal ones, the first."""
    size = math.prod(weights.shape.as_list())
    backwards = tf.reshape(tf.abs(weights), [size])[::-1]  # of equal entries `keep_largest` keeps the first
    survives = keep_largest(backwards, size - math.floor(fraction * size + 0.5))
    return tf.reshape(survives[::-1], weights.shape)


def followed_masks(context: BuildContext, hook: str, reader: str) -> dict[str, tf.Variable]:
    """Return the masks that another hook has as state "mask/<variable>", by variable name."""
    prefix = f"{hook}/mask/"
    found = {key.removeprefix(prefix): variable for key, variable in context.states.items() if key.startswith(prefix)}
    if not found:
        makers = mask_makers(context)
        raise UserError(
            f"The hook '{reader}' follows the masks of '{hook}', but no hook of this run offers the state "
            f"'{prefix}<variable>'.{did_you_mean(hook, makers)} Expected one of: {', '.join(makers) or 'none'}. "
            f"Add +hooks={hook}, or choose masks=magnitude, file or zeros."
        )
    return found


def mask_makers(context: BuildContext) -> list[str]:
    """Return the names of the hooks before this one that have masks."""
    return sorted({key.partition("/")[0] for key in context.states if "/mask/" in key})


LARGEST = 512  # maximum height and width of a picture, in pixels


def mask_pictures(masks: Mapping[str, tf.Variable]) -> dict[str, np.ndarray]:
    """Return a picture of each mask, named "mask/<variable>": white where entries are kept, black where masked."""
    pictures = {}
    for name, mask in masks.items():  # a pixel is an entry, or the kept share of several
        image = Image.fromarray(mask.numpy().reshape(-1, mask.shape[-1]).astype(np.float32))
        image = image.resize((min(image.width, LARGEST), min(image.height, LARGEST)), Image.Resampling.BOX)
        pictures[f"mask/{name}"] = np.clip(np.asarray(image), 0.0, 1.0)[..., np.newaxis]
    return pictures


Masks: TypeAlias = "Mapping[str, tf.Tensor]"


def hold_values(targets: Sequence[Target], masks: Masks, latent: Masks, others: Mapping[str, tf.Variable]) -> None:
    """Restore frozen entries to their values at the start of the step, except those set to 0 by other masks."""
    for target in targets:
        value, kept = target.variable.value, masks[target.name]
        for key, mask in others.items():
            if key.endswith(f"/mask/{target.name}") and mask.shape == kept.shape:
                kept = tf.logical_or(kept, tf.logical_and(tf.logical_not(mask), tf.equal(value, 0)))
        value.assign(tf.where(kept, value, latent[target.name]))


def hold_averages(network: Network, targets: Sequence[Target], masks: Masks) -> None:
    """Set the optimizer's moving averages of frozen entries, computed before these were restored, to their values."""
    for target in targets:
        average = network.optimizer_slots(target.name).get(AVERAGE)
        if average is not None:
            average.value.assign(tf.where(masks[target.name], average.value, target.variable.value))


def clear_slots(network: Network, targets: Sequence[Target], masks: Masks, *, when: tf.Tensor) -> None:
    """Set the optimizer's slots to 0 where the mask is False. Once is enough: without a gradient they stay 0."""
    slots = [
        (slot.value, masks[target.name])
        for target in targets
        for attribute, slot in network.optimizer_slots(target.name).items()
        if attribute != AVERAGE
    ]

    def clear() -> tf.Tensor:
        for slot, mask in slots:
            slot.assign(zero_unless(mask, slot))
        return tf.constant(True)

    if slots:
        tf.cond(when, clear, lambda: tf.constant(False))
