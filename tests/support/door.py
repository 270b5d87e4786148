"""Small trainings of one model on one set of images, by Python and by the command line."""

import random
from contextlib import contextmanager
from functools import cache

import keras
import numpy as np
import tensorflow as tf

import hookline
from hookline.hooks import catalogue, load
from hookline.recipes.models.cnn import plain_cnn
from hookline.trainer.config.command import parse_command
from hookline.trainer.config.preflight import preflight
from hookline.trainer.hook import GraphHook
from hookline.trainer.run.session import execute

EVERYWHERE = {"fused_batch_norm", "nan_guard"}  # every run has them, so every pair trains beside them
SHAPE, CLASSES, SEED = (8, 8, 1), 3, 3
OPTIONS = {"freeze_layers": {"layers": "outputs"}}
SETTINGS = {"compile": "off"}  # compiling takes longer than these runs


@cache
def techniques():
    return [name for name in sorted(catalogue()) if issubclass(load(name), GraphHook) and name not in EVERYWHERE]


@cache
def images():
    """Return examples that can be learned: a bright third of the image is the class."""
    rng = np.random.default_rng(0)
    labels = np.arange(120) % CLASSES
    inputs = rng.normal(size=(120, *SHAPE)).astype(np.float32)
    for row, label in enumerate(labels):
        inputs[row, :, 2 * label : 2 * label + 3] += 1.5
    parts = {"train": slice(0, 80), "validation": slice(80, 120), "test": slice(80, 120)}
    arrays = (("x", inputs), ("y", labels))
    return {f"{name}_{part}": array[rows] for part, rows in parts.items() for name, array in arrays}


def held_out():
    return images()["x_validation"], images()["y_validation"]


def small_model(end=None):
    keras.utils.clear_session()
    keras.utils.set_random_seed(SEED)
    model = plain_cnn(input_shape=SHAPE, classes=CLASSES, filters=[4, 8], activation="hard_tanh")
    return model if end is None else keras.Model(model.inputs, keras.layers.Activation(end)(model.outputs[0]))


def small_trainer(*hooks, model=None, **more):
    given = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"], "seed": SEED, **SETTINGS, **more}
    return hookline.Trainer(model or small_model(), hooks=hooks, **given)


def train(trainer, epochs=1, **more):
    data = images()
    given = {"validation_data": held_out(), "epochs": epochs, "batch_size": 16, "verbose": 0, **more}
    return trainer.fit(data["x_train"], data["y_train"], **given)


@contextmanager
def generators_kept():
    """Check that the block does not change what the global random generators draw next."""

    def drawn():
        own = random.random(), np.random.random()  # noqa: NPY002 - what `set_random_seed` sets
        return *own, float(tf.random.normal([])), float(keras.random.normal(()))

    keras.utils.set_random_seed(SEED + 1)
    _, expected = drawn(), drawn()
    keras.utils.set_random_seed(SEED + 1)
    drawn()
    yield
    assert drawn() == expected


def by_python(*hooks, epochs=2, **more):
    trainer = small_trainer(*({name: OPTIONS.get(name, {})} for name in hooks), **more)
    return trainer, train(trainer, epochs)


def by_command_line(*hooks, folder):
    np.savez(folder / "images.npz", **images())
    texts = [
        *("recipe=baseline", "model=plain_cnn", "model.filters=[4,8]", "model.activation=hard_tanh"),
        *("data=arrays", f"data.path={folder / 'images.npz'}", "optimizer=adam", "schedule=constant"),
        "optimizer.learning_rate=0.001",
        *("trainer.epochs=2", "trainer.batch_size=16", f"seed={SEED}", f"run_dir={folder / 'run'}"),
        *(f"trainer.{name}={value}" for name, value in SETTINGS.items()),
        *("hooks.tensorboard=null", "hooks.pictures=null", "hooks.projector=null", "hooks.progress=null"),
        f"+hooks=[{','.join(hooks)}]",
        *(f"hooks.{name}.{key}={value}" for name in hooks for key, value in OPTIONS.get(name, {}).items()),
    ]
    (job,) = preflight(parse_command(texts))
    return execute(job.config, job.recipe, job.overrides).summary
