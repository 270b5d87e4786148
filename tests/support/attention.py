"""What tests of attention share: images with a bright square somewhere, small convolutional networks, a loop."""

import keras
import numpy as np
import tensorflow as tf

from hookline.hooks.bernoulli_attention import BernoulliAttention
from hookline.trainer.network import Network
from hookline.trainer.step.loop import ChunkLoop
from tests.support.hooked import built

SIDE, BATCH, CLASSES = 8, 8, 3
BRANCH = {"filters": [4], "initial_keep_rate": 0.6}
layers = keras.layers


def square_batch(step):
    """Return 8 noisy images of 8 x 8, each with a square of one of 3 textures; "map" is 1 on the square."""
    generator = np.random.default_rng(0)
    inputs = generator.normal(scale=0.3, size=(32, SIDE, SIDE, 1)).astype(np.float32)
    maps = np.zeros((32, SIDE, SIDE), np.float32)
    targets = generator.integers(0, CLASSES, 32)
    for row, target in enumerate(targets):
        top, left = generator.integers(0, SIDE - 3, 2)
        texture = [np.ones((4, 4)), np.eye(4) * 2, np.tile([[1.0, -1.0], [-1.0, 1.0]], (2, 2))][target]
        inputs[row, top : top + 4, left : left + 4, 0] += texture
        maps[row, top : top + 4, left : left + 4] = 1.0
    rows = (step * BATCH + tf.range(BATCH, dtype=tf.int64)) % 32
    arrays = {"inputs": inputs, "map": maps, "targets": targets}
    return {name: tf.gather(tf.constant(array), rows) for name, array in arrays.items()}


def image_model(*, batch_norm=True):
    inputs = x = keras.Input((SIDE, SIDE, 1), name="image")
    x = layers.Conv2D(4, 3, padding="same", name="conv_1")(x)
    x = layers.BatchNormalization(name="norm_1")(x) if batch_norm else x
    x = layers.Activation("relu", name="activation_1")(x)
    x = layers.MaxPooling2D(2, name="pool_1")(x)
    x = layers.Conv2D(4, 3, padding="same", activation="relu", name="conv_2")(x)
    x = layers.Flatten(name="flatten")(x)
    return keras.Model(inputs, layers.Dense(CLASSES, name="logits")(x), name="net")


def binary_model():
    """Return convolutions with batch norm and hard_tanh, and a dense layer: the middle convolutions become binary."""
    inputs = x = keras.Input((SIDE, SIDE, 1), name="image")
    for number in (1, 2, 3):
        x = layers.Conv2D(4, 3, padding="same", use_bias=False, name=f"conv_{number}")(x)
        x = layers.BatchNormalization(name=f"norm_{number}")(x)
        x = layers.Activation("hard_tanh", name=f"activation_{number}")(x)
    return keras.Model(inputs, layers.Dense(CLASSES, name="logits")(layers.Flatten(name="flatten")(x)), name="net")


def attention(**options):
    hook = BernoulliAttention(**{"branch": BRANCH, "keep_rate": None, **options})
    hook.name = "bernoulli_attention"
    return hook


def prepare(hooks, model=None, optimizer=None):
    network = Network("model", model or image_model(), optimizer or keras.optimizers.Adam(0.01))
    return built(network, *hooks)


def image_loop(hooks, model=None, *, xla=False):
    return ChunkLoop(prepare(hooks, model), square_batch, xla=xla)
