"""Masks: where they come from, how they hold entries, and how they are shown."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from PIL import Image

from hookline.hooks.kernels import Target, variable_layers
from hookline.hooks.options import AVERAGE
from hookline.hooks.pruning.selector import keep_largest
from hookline.trainer.errors import ARRAY_FAULTS, UserError, did_you_mean, unknown_name, user_path
from hookline.trainer.files import check_folders
from hookline.trainer.network import Network
from hookline.trainer.ops.estimators import zero_unless
from hookline.trainer.run.checkpoint import CheckpointStore
from hookline.trainer.step.context import BuildContext


def check_partner(name: str, value: Any, masks: str, *, users: Sequence[str]) -> str | None:
    """Return an option that only some sources of masks need, and these must have."""
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
        if name not in layers:
            raise unknown_name(f"variable in {path}", name, layers)
        _check_shape(f"The mask '{name}' in {path}", array, variables[name].shape)
        if array.dtype != bool and not np.isin(array, (0, 1)).all():
            raise UserError(
                f"The mask '{name}' in {path} holds other values than 0 and 1. Expected 1 for what survives."
            )
        masks[name] = array.astype(bool)
    return masks


def _load_arrays(path: str) -> dict[str, np.ndarray]:
    found = user_path(path, "path")
    try:
        with np.load(found, allow_pickle=False) as loaded:  # of one array without a name this is a TypeError
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
    tensors = store.load("best" if "best" in store.tags() else "last").tensors
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
        raise UserError(
            f"No weight in the run {path} is 0, so it gives no mask. Expected a pruned run, or masks=magnitude."
        )
    return masks


def _check_shape(what: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    if array.shape != tuple(shape):
        raise UserError(f"{what} has the shape {list(array.shape)}. Expected {list(shape)}, the shape of the variable.")


def largest_entries(weights: tf.Tensor, fraction: float) -> tf.Tensor:
    """Return a mask that is False for exactly round(fraction * size) entries, the smallest; ties in order."""
    size = math.prod(weights.shape.as_list())
    backwards = tf.reshape(tf.abs(weights), [size])[::-1]  # of equal entries `keep_largest` keeps the first
    survives = keep_largest(backwards, size - math.floor(fraction * size + 0.5))
    return tf.reshape(survives[::-1], weights.shape)


def followed_masks(context: BuildContext, hook: str, reader: str) -> dict[str, tf.Variable]:
    """Return the masks that another hook offers as state "mask/<variable>", by variable name."""
    prefix = f"{hook}/mask/"
    found = {key.removeprefix(prefix): variable for key, variable in context.states.items() if key.startswith(prefix)}
    if not found:
        makers = sorted({key.partition("/")[0] for key in context.states if "/mask/" in key})
        raise UserError(
            f"The hook '{reader}' follows the masks of '{hook}', but no hook of this run offers the state "
            f"'{prefix}<variable>'.{did_you_mean(hook, makers)} Expected one of: {', '.join(makers) or 'none'}. "
            f"Add +hooks={hook}, or choose masks=magnitude, file or zeros."
        )
    return found


LARGEST = 512  # pixels a side


def mask_pictures(masks: Mapping[str, tf.Variable]) -> dict[str, np.ndarray]:
    """Return a picture of each mask, named "mask/<variable>": white where entries are kept, black where masked."""
    return {f"mask/{name}": mask_picture(mask.numpy()) for name, mask in masks.items()}


def mask_picture(mask: np.ndarray) -> np.ndarray:
    """Return a mask as a grey picture: a pixel is an entry, or the kept share of several."""
    image = Image.fromarray(mask.reshape(-1, mask.shape[-1]).astype(np.float32))
    image = image.resize((min(image.width, LARGEST), min(image.height, LARGEST)), Image.Resampling.BOX)
    return np.clip(np.asarray(image), 0.0, 1.0)[..., np.newaxis]


Masks: TypeAlias = "Mapping[str, tf.Tensor]"


def hold_values(targets: Sequence[Target], masks: Masks, latent: Mapping[str, tf.Tensor]) -> None:
    """Restore frozen entries to their values at the start of the step."""
    for target in targets:
        value = target.variable.value
        value.assign(tf.where(masks[target.name], value, latent[target.name]))


def hold_averages(network: Network, targets: Sequence[Target], masks: Masks) -> None:
    """Set the optimizer's moving average of a frozen entry, which was taken before the entry was restored."""
    for target in targets:
        average = network.optimizer_slots(target.name).get(AVERAGE)
        if average is not None:
            average.value.assign(tf.where(masks[target.name], average.value, target.variable.value))


def clear_slots(network: Network, targets: Sequence[Target], masks: Masks, *, when: tf.Tensor) -> None:
    """Set the optimizer's slots to 0 where the mask is False: when masks change, since 0 stays without a gradient."""
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
