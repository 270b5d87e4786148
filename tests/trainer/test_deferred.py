"""TensorFlow and Keras are imported at first use and can be forbidden until then; functions are checked before."""

from tests.support.workers import run_python

CODE = """
import sys, threading
from omegaconf import OmegaConf
from hookline.trainer.config.build import resolve
from hookline.trainer.deferred import NeedsFramework, defer_frameworks, without_frameworks

try:
    with without_frameworks():
        import hookline.recipes.optimizers.fused_update
except NeedsFramework:
    assert "hookline.recipes.optimizers.fused_update" not in sys.modules
else:
    raise AssertionError("imported")
defer_frameworks()
assert sum(type(each).__name__ == "_Finder" for each in sys.meta_path) == 1

from hookline.hooks import catalogue
from hookline.trainer.run.blueprint import build_hook

with without_frameworks():
    for name, entry in catalogue().items():
        build_hook(name, OmegaConf.to_container(OmegaConf.load(entry.config_file))[name])
    for argument in sys.argv[1:]:
        group, path = argument.split(":")
        resolve(path, group=group)
assert not {"tensorflow.python", "keras.src", "sklearn", "matplotlib"} & set(sys.modules)

import keras
import tensorflow as tf
import tensorflow
for use in (lambda: tf.constant(1), lambda: keras.Model, lambda: __import__("keras.layers"), lambda: hasattr(tf, "x")):
    try:
        with without_frameworks():
            use()
    except NeedsFramework:
        assert "tensorflow.python" not in sys.modules and "keras.src" not in sys.modules
    else:
        raise AssertionError("used")
found = []
threads = [threading.Thread(target=lambda: found.append(tf.constant(2).numpy())) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert found == [2] * 4
with without_frameworks():
    assert int(tf.constant(3)) == 3 and keras.layers.Dense  # loaded: nothing is forbidden
assert type(tf) is type(sys) and type(keras) is type(sys)
assert sys.modules["tensorflow"] is tf and tf.keras.layers.Dense is keras.layers.Dense
assert not {"sklearn", "matplotlib"} & set(sys.modules)
assert keras.wrappers.SKLearnClassifier and keras.visualization.plot_image_gallery
assert "sklearn" in sys.modules
import hookline.recipes.optimizers.fused_update  # now it may
"""
DATA = ["arrays.arrays", "canvases.cluttered", "digits.digits", "canvases.domains", "hubs.hugging_face"]
DATA += ["image_folder.image_folder", "keras_dataset.keras_dataset", "hubs.tfds", "tfrecord.tfrecord"]


def test_hooks_and_functions_are_inspected_before_tensorflow_is_imported():
    sources = [f"data:hookline.recipes.data.{name}" for name in DATA]
    functions = ["schedule:hookline.trainer.schedules.cosine", "task:hookline.recipes.gan.gan"]
    run_python("-c", CODE, *sources, *functions)
