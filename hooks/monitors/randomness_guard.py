"""Randomness guard: check before the first step that random draws vary and that the same seeds repeat them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from hookline.trainer.errors import UserError, check_choice
from hookline.trainer.hook import HostHook, Run
from hookline.trainer.input.augment import Augment, Augmentation
from hookline.trainer.input.batches import TrainingBatches
from hookline.trainer.input.order import example_seeds
from hookline.trainer.objective import Batch

EXAMPLES, DRAWS = 16, 4
UNLIKELY = 1e-6  # chance of a false alarm
COIN = 0.5  # assumed for changes made to every example: a coin flip is the least varied one
WARN, STOP = "warn", "stop"
REMEDY = "Expected independent draws for each example, derived only from its seeds: see trainer/input/order.py."

Changed: TypeAlias = "Callable[[Batch, tf.Tensor], dict[str, Batch]]"


class RandomnessGuard(HostHook):
    """Draw some training examples several times before training begins, and compare.

    - Reading a row of the data source twice must give the same result: a source has no seed, so random draws in it
      could not be repeated or resumed. Random changes belong in `augment`.
    - The batch of a step must be the same when it is made twice, as in two runs with one seed.
    - Each augmentation is checked alone. The same seeds must give the same result, and different seeds different ones:
      a draw by NumPy happens only once, when a step is traced, and a cache keeps its first result. Each example of a
      batch must have its own draws: copies of one image must come out differently.

    Rows and single augmentations are compared on at most 16 examples, the batch of a step as a whole. Draws are not
    compared where they may be equal by chance: in batches of fewer than 7 examples, and for an augmentation with a
    probability below 0.2 or above 0.8, except 1. In batches of 7 to 15 examples these limits are closer to 0.5.

    Group: guard

    Cost: Before the first step, 0.02 s on the digits without augmentation.

    Pitfalls:
        tests/hooks/monitors/test_randomness_guard.py: NumPy draws inside a traced function are constants, and one seed
            for a whole batch gives equal draws.
        tests/trainer/input/test_order.py: draws depend only on seed, step, position and augmentation.

    Example:
        python train.py recipe=baseline +augment=standard_digits hooks.randomness_guard.on_fault=warn
    """

    def __init__(self, *, on_fault: str = STOP) -> None:
        """Set what to do about a fault.

        Args:
            on_fault: "stop" ends the run with an error; "warn" shows a warning for each fault and continues.
        """
        self._on_fault = check_choice("on_fault", on_fault, (STOP, WARN))
        self._faults: list[str] = []

    def state_dict(self) -> dict[str, Any]:
        return {}

    def on_fit_begin(self, run: Run) -> None:
        self._faults = find_faults(run.training, run.step)
        if self._faults and self._on_fault == STOP:
            raise UserError(f"{self._faults[0]} To train anyway, set hooks.{self.name}.on_fault=warn.")
        for fault in self._faults:
            warnings.warn(fault, stacklevel=2)

    def summary(self) -> dict[str, Any]:
        return {"faults": self._faults}


def find_faults(training: TrainingBatches, step: int) -> list[str]:
    """Return the faults found in the batches of a run from `step` on, one line each."""
    now = tf.constant(step, tf.int64)
    rows = training.indices(now)[:EXAMPLES]
    examples = training.read(rows)
    if differing := _differing(examples, training.read(rows)):
        return [
            f"Reading the same rows twice returns different {_listed(differing)}, so no run can be repeated or "
            "resumed. Expected the same result each time; put random changes into augment."
        ]
    faults = _augment_faults(training, examples, now) if training.augmentation else {}
    if not faults and (differing := _differing(training.batch(now), training.batch(now))):
        return [f"Two runs with one seed would differ in {_listed(differing)} of a batch. {REMEDY}"]
    return [f"augment.{name} {fault} {REMEDY}" for name, fault in faults.items()]


def _augment_faults(training: TrainingBatches, examples: Batch, step: tf.Tensor) -> dict[str, str]:
    """Return the faults of augmentations, by name."""
    assert training.augmentation is not None
    augments = training.augmentation.augments
    alone = {each.name: Augmentation([each], classes=training.augmentation.classes) for each in augments}
    positions = tf.range(len(examples["index"]), dtype=tf.int64)
    seeds = [example_seeds(training.seed, step + number, positions) for number in range(DRAWS)]

    def change(batch: Batch, seeds: tf.Tensor) -> dict[str, Batch]:
        return {name: each(batch, seeds) for name, each in alone.items()}

    # Traced, as in a run: draws outside TensorFlow become constants.
    traced = tf.function(change, autograph=False).get_concrete_function(examples, seeds[0])
    draws = [traced(examples, each) for each in seeds]
    judged = [each.name for each in augments if _may_judge(each, len(examples["index"]))]
    still = {name for name in judged if not any(_differing(draws[0][name], other[name]) for other in draws[1:])}
    alike = {each.name for each in augments if each.name in judged and not each.mixes} - still
    for row in range(len(examples["index"]) if alike else 0):
        alike -= _varied(traced, alike, examples, row, seeds)
    once, again = change(examples, seeds[0]), change(examples, seeds[0])
    faults = {
        name: f"gives different {_listed(differing)} for the same seeds: two runs with one seed would differ."
        for name in alone
        if (differing := _differing(once[name], again[name]))
    }
    faults |= dict.fromkeys(alike, "makes the same random change to all examples of a batch.")
    frozen = f"gives the same result at each of {DRAWS} steps: it draws only once, or a cache keeps its first draw."
    faults |= dict.fromkeys(still, frozen)
    return {name: faults[name] for name in alone if name in faults}


def _may_judge(augment: Augment, count: int) -> bool:
    """Return whether equal draws are unlikely by chance, even for a change with a single form, such as mirroring."""
    probability = COIN if augment.probability == 1.0 else augment.probability
    same = probability**DRAWS + (1.0 - probability) ** DRAWS
    return same**count <= UNLIKELY


def _varied(traced: Changed, names: set[str], examples: Batch, row: int, seeds: Sequence[tf.Tensor]) -> set[str]:
    """Return the augmentations that change an example differently at different positions in a batch."""
    count = len(examples["index"])
    copies = {name: tf.repeat(tensor[row : row + 1], count, axis=0) for name, tensor in examples.items()}
    found: set[str] = set()
    for each in seeds:
        if names - found:
            changed = traced(copies, each)
            found |= {name for name in names if len({image.tobytes() for image in changed[name]["inputs"].numpy()}) > 1}
    return found


def _differing(first: Batch, second: Batch) -> list[str]:
    """Return the names of the entries of two batches whose bits differ."""
    return [name for name in first if _bits(first[name]) != _bits(second[name])]


def _bits(value: tf.Tensor) -> bytes:
    """Return the bytes of a tensor, or of all tensors of a structure."""
    return b"".join(np.asarray(tensor.numpy()).tobytes() for tensor in tf.nest.flatten(value))


def _listed(names: list[str]) -> str:
    return " and ".join(f"'{name}'" for name in dict.fromkeys(names))
