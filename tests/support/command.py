"""Run a command line in this process."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from hookline.trainer.config.command import parse_command
from hookline.trainer.config.preflight import preflight
from hookline.trainer.run.session import execute
from tests.support.images import write_images

FOR_RECIPE = {
    # two epochs leave the accuracy at chance, where one digit decides
    "attention": "model=plain_cnn model.filters=[4,8] data.train_examples=600 "
    "trainer.monitor=loss/cross_entropy trainer.monitor_mode=min",
    "int8": "model=plain_cnn model.filters=[4,8]",
    "multi_label": "model=plain_cnn model.filters=[2,2,2] data.train_examples=256",
    "segmentation": "model=u_net model.filters=[2,4] data.train_examples=256",
    "custom_gradient": "model=toy_product",
    # a step of each rate
    "fine_tuning": "model=plain_cnn model.filters=[4,8] hooks.freeze_layers.end_epoch=1 trainer.batch_size=64",
    "center_loss": "model=lenet_plus_plus model.filters=[2,2,2]",
    "gradient_reversal": "model=two_headed_cnn model.filters=[4,8] data.train_examples=600 data.test_examples=179",
    # two epochs cover nothing
    "gan": "data.examples=600 task.samples=100 trainer.monitor=generator/loss/total trainer.monitor_mode=min",
    # a new run makes new messengers at once
    "sgan": "data.examples=600 task.samples=100 task.pairs=2 trainer.monitor=local_generators/loss/total "
    "trainer.monitor_mode=min task.messenger_every=3 task.messenger_optimizer=reset",
    "retrieval": "trainer.batch_size=120",  # a multiple of classes_per_batch
    "clothing_retrieval": "model=plain_cnn data.image_size=16 data.validation_share=0.25 data.test_share=0.25 "
    "model.filters=[4,8] task.embedding_size=8 task.recall_at=[1,5] trainer.batch_size=16 trainer.classes_per_batch=4",
}
"""What small runs of single recipes need in addition to, or instead of, the values that all have."""
FOR_RECIPE = {name: dict(each.split("=") for each in text.split()) for name, text in FOR_RECIPE.items()}
NEEDS_IMAGES = {"clothing_retrieval"}
"""Recipes for the user's own images: a small run makes some beside its run directory."""

IMAGE_MODEL = ("model=plain_cnn", "model.filters=[4,8]", "model.activation=hard_tanh")
NEEDS = {
    "bernoulli_attention": IMAGE_MODEL,
    "fused_batch_norm": ("hooks.fused_batch_norm.min_entries=0",),  # it leaves the layers of small networks to Keras
}
WITH_IMAGE_MODEL = {"freeze_layers": ("hooks.freeze_layers.layers=outputs",)}


def overrides_for(*hooks):
    """Return the overrides that a run on the digits needs beside `+hooks`, with layers for these hooks to work on."""
    needed = list(dict.fromkeys(override for hook in hooks for override in NEEDS.get(hook, ())))
    needed += [f"hooks.distillation.teacher={teacher_file()}"] if "distillation" in hooks else []
    images = IMAGE_MODEL[0] in needed
    return [*needed, *(override for hook in hooks if images for override in WITH_IMAGE_MODEL.get(hook, ()))]


@cache
def teacher_file():
    import keras

    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    keras.utils.set_random_seed(0)
    layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)]
    keras.Sequential(layers, name="teacher").save(folder / "teacher.keras")
    return folder / "teacher.keras"


def run_small(recipe, *overrides, run_dir):
    defaults = {
        "trainer.epochs": "2",
        "trainer.batch_size": "128",
        "trainer.compile": "off",  # compiling takes longer than these runs
        "model.units": "[16,16]",
        "run_dir": str(run_dir),
        "recipe": recipe,
        **FOR_RECIPE.get(recipe, {}),
    }
    if recipe in NEEDS_IMAGES:
        defaults["data.path"] = str(write_images(run_dir.parent / "images"))
    given = {override.partition("=")[0] for override in overrides}
    if "model" in given or "model" in defaults:
        del defaults["model.units"]  # the other model has other arguments
    if not any(key.startswith("hooks.tensorboard") for key in given):
        defaults["hooks.tensorboard.graph"] = "false"
    texts = [f"{key}={value}" for key, value in defaults.items() if key not in given]
    (job,) = preflight(parse_command([*texts, *overrides]))
    return execute(job.config, job.recipe, job.overrides).summary
