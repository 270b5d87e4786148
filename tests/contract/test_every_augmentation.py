"""What every augmentation must do. A new one is covered automatically."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from omegaconf import OmegaConf

from hookline.hooks.monitors.randomness_guard import find_faults
from hookline.trainer.input.augment import Augmentation
from hookline.trainer.input.batches import TrainingBatches
from hookline.trainer.input.data import ArraySource, Split
from hookline.trainer.objective import SOFT_TARGETS
from hookline.trainer.run.blueprint import build_augments
from tests.support.batches import assert_same_bits, eager_batches, traced_batches
from tests.trainer.input.test_batches import scaled

DIRECTORY = Path(__file__).parents[2] / "configs" / "augment"
FILES = {path.stem: OmegaConf.to_container(OmegaConf.load(path)) for path in sorted(DIRECTORY.glob("*.yaml"))}
SINGLE = {name: content[name] for name, content in FILES.items() if "defaults" not in content}
IN_COLOR = {"color": {"saturation": 0.2, "hue": 0.1}}
SIZE, BATCH, CLASSES = 50, 16, 7


def build(*names):
    return build_augments({name: {**SINGLE[name], **IN_COLOR.get(name, {})} for name in names}, [])


def batches(*names, seed=0):
    generator = np.random.default_rng(0)
    arrays = {
        "inputs": generator.integers(0, 256, (SIZE, 12, 10, 3), np.uint8),
        "targets": generator.integers(0, CLASSES, SIZE),
    }

    split = Split("train", ArraySource(arrays, scaled), np.arange(SIZE, dtype=np.int64))
    augmentation = Augmentation(build(*names), classes=CLASSES)
    return TrainingBatches(split, batch_size=BATCH, seed=seed, augmentation=augmentation)


ALL = [*[(name,) for name in SINGLE], tuple(SINGLE)]


@pytest.mark.parametrize("name", SINGLE)
def test_draws_differ_by_seed_and_step_and_repeat_with_the_seed(name):
    first, again, other = (eager_batches(batches(name, seed=seed), 3, 5) for seed in (1, 1, 2))
    assert_same_bits(first, again)
    assert not np.array_equal(first["inputs"], other["inputs"])
    training, rows = batches(name), tf.constant([4, 9, 33, 12], tf.int64)
    drawn = np.stack([training.drawn(rows, tf.constant(step, tf.int64))["inputs"] for step in range(12)])
    assert all(len({image.tobytes() for image in drawn[:, place]}) > 1 for place in range(4))
    assert not np.array_equal(drawn, np.broadcast_to(training.read(rows)["inputs"].numpy(), drawn.shape))


@pytest.mark.parametrize("names", ALL, ids="+".join)
def test_no_op_is_stateful_and_the_randomness_guard_finds_nothing(names):
    training = batches(*names)
    assert_same_bits(eager_batches(training, 2, 5), traced_batches(training, 2, 5))  # across an epoch boundary
    traced = tf.function(training.batch, autograph=False).get_concrete_function(tf.TensorSpec([], tf.int64))
    assert [op.name for op in traced.graph.get_operations() if op.op_def.is_stateful] == []
    shapes = {name: tuple(tensor.shape) for name, tensor in traced.structured_outputs.items()}
    assert shapes["inputs"] == (BATCH, 12, 10, 3)
    assert shapes.get(SOFT_TARGETS, (BATCH, CLASSES)) == (BATCH, CLASSES)
    assert find_faults(training, 0) == []
