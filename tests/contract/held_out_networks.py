"""Networks that no recipe uses, as users write them: functions, with custom layers, a model and a task."""

import keras
import numpy as np
from keras import layers

from hookline.recipes.classification import Classification
from hookline.trainer.network import Network
from hookline.trainer.recipe import Recipe

TIME, FEATURES, TOKENS, SIDE, CLASSES, EXAMPLES = 6, 4, 10, 6, 3, 16


def arrays_of(kind):
    generator = np.random.default_rng(0)
    arrays = {}
    for part in ("train", "validation", "test"):
        targets = np.arange(EXAMPLES) % CLASSES
        shape = (SIDE, SIDE, 1) if kind == "images" else (TIME, FEATURES)
        inputs = generator.normal(size=(EXAMPLES, *shape)).astype(np.float32) + targets.reshape(-1, *(1 for _ in shape))
        arrays[f"x_{part}"] = generator.integers(TOKENS, size=(EXAMPLES, TIME)) if kind == "tokens" else inputs
        arrays[f"y_{part}"] = targets
    return arrays


class Positions(layers.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=(TIME, shape[-1]), initializer="random_normal", name="table")

    def call(self, inputs):
        return inputs + self.table


class Block(layers.Layer):
    def __init__(self, heads, width, **options):
        super().__init__(**options)
        self.heads, self.width = heads, width
        self.attention = layers.MultiHeadAttention(heads, width // heads)
        self.norm_1, self.norm_2 = layers.LayerNormalization(), layers.LayerNormalization()
        self.wide, self.narrow = layers.Dense(2 * width, activation="gelu"), layers.Dense(width)

    def build(self, shape):
        self.attention.build(shape, shape)
        self.norm_1.build(shape)
        self.norm_2.build(shape)
        self.wide.build(shape)
        self.narrow.build((*shape[:-1], 2 * self.width))

    def call(self, inputs):
        normal = self.norm_1(inputs)
        mixed = inputs + self.attention(normal, normal)
        return mixed + self.narrow(self.wide(self.norm_2(mixed)))

    def get_config(self):
        return {**super().get_config(), "heads": self.heads, "width": self.width}


class Transformer(keras.Model):
    def __init__(self, classes, **options):
        super().__init__(**options)
        self.classes = classes
        self.embed, self.positions, self.block = layers.Dense(8), Positions(), Block(2, 8)
        self.pool, self.classify = layers.GlobalAveragePooling1D(), layers.Dense(classes, name="outputs")

    def call(self, inputs):
        return self.classify(self.pool(self.block(self.positions(self.embed(inputs)))))

    def get_config(self):
        return {**super().get_config(), "classes": self.classes}


class Anchored(layers.Layer):
    """Center and scale the inputs, with an added loss, and a moving average that is updated in training."""

    def build(self, shape):
        self.scale = self.add_weight(shape=shape[-1:], initializer="ones", name="scale")
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")
        self.mean = self.add_weight(shape=shape[-1:], initializer="zeros", trainable=False, name="mean")

    def call(self, inputs, training=None):
        if training:
            self.calls.assign(self.calls + 1.0)
            self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(inputs, axis=0))
        self.add_loss(0.01 * keras.ops.square(inputs * self.scale))  # Keras sums it
        return (inputs - self.mean) * self.scale


def subclassed_transformer(*, input_shape, classes):
    model = Transformer(classes)
    model(keras.ops.zeros((1, *input_shape)))
    return model


def functional_transformer(*, input_shape, classes):
    inputs = keras.Input(input_shape)
    hidden = Positions()(layers.EinsumDense("abc,cd->abd", (None, 8), name="embed")(inputs))
    normal = layers.LayerNormalization()(hidden)
    hidden = hidden + layers.MultiHeadAttention(2, 4)(normal, normal)
    hidden = layers.Add()([hidden, layers.Dense(8)(layers.Dense(16, activation="gelu")(hidden))])
    hidden = layers.GlobalAveragePooling1D()(hidden)
    return keras.Model(inputs, layers.Dense(classes, name="outputs")(hidden))


def embedding_lstm(*, input_shape, classes):
    embedding = layers.Embedding(TOKENS, 6, mask_zero=True)
    both_ways = layers.Bidirectional(layers.LSTM(4, return_sequences=True))
    return _stack(input_shape, embedding, both_ways, layers.LSTM(6), layers.Dense(classes, name="outputs"))


def shared_layers(*, input_shape, classes):
    inputs = keras.Input(input_shape)
    twice, norm = layers.Dense(6, activation="tanh"), layers.BatchNormalization()
    hidden = layers.Flatten()(norm(twice(norm(twice(layers.Dense(6)(inputs))))))
    return keras.Model(inputs, layers.Dense(classes, name="outputs")(hidden))


def nested_models(*, input_shape, classes):
    convolution = layers.Conv2D(4, 3, use_bias=False, name="conv")
    stem = _stack(input_shape, convolution, layers.BatchNormalization(), layers.Activation("tanh"), name="stem")
    inner = keras.Input(stem.output_shape[1:])
    hidden = layers.Conv2D(4, 3, padding="same", activation="tanh", name="conv")(inner)
    body = keras.Model(inner, layers.Add()([inner, hidden]), name="body")
    inputs = keras.Input(input_shape)
    pooled = layers.GlobalAveragePooling2D()(body(stem(inputs)))
    return keras.Model(inputs, layers.Dense(classes, name="outputs")(pooled))


def every_convolution(*, input_shape, classes):
    return _stack(
        input_shape,
        layers.Conv2D(4, 3, padding="same", activation="tanh"),
        layers.DepthwiseConv2D(3, padding="same"),
        layers.SeparableConv2D(4, 3, padding="same", activation="tanh"),
        layers.Conv2DTranspose(2, 3, strides=2, padding="same"),
        layers.Reshape((24, 12)),
        layers.Conv1D(4, 3, activation="tanh"),
        layers.DepthwiseConv1D(3),
        layers.SeparableConv1D(4, 3, activation="tanh"),
        layers.Conv1DTranspose(4, 3),
        layers.Reshape((5, 4, 4, 1)),
        layers.Conv3D(2, 2, activation="tanh"),
        layers.Conv3DTranspose(2, 2),
        layers.Flatten(),
        layers.Dense(classes, name="outputs"),
    )


def own_layer(*, input_shape, classes):
    inputs = keras.Input(input_shape)
    hidden = Anchored()(layers.Dense(6, activation="tanh")(layers.Flatten()(inputs)))
    hidden = layers.Dense(6, activation="tanh")(hidden)
    return keras.Model(inputs, layers.Dense(classes, name="outputs")(hidden))


def softmax_end(*, input_shape, classes):
    return _stack(
        input_shape,
        layers.Conv2D(4, 3, activation="relu"),
        layers.Conv2D(4, 3, activation="relu"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(classes, activation="softmax", name="outputs"),
    )


def two_inputs(*, input_shape, classes):
    early, late = (keras.Input((TIME // 2, input_shape[-1])) for _ in range(2))
    dense = layers.Dense(6, activation="tanh")
    hidden = layers.Concatenate()([layers.Flatten()(dense(early)), layers.Flatten()(late)])
    return keras.Model([early, late], layers.Dense(classes, name="outputs")(hidden))


def _stack(input_shape, *stacked, name=None):
    return keras.Sequential([keras.Input(input_shape), *stacked], name=name)


def halves(inputs):
    """Return the inputs of the network with two inputs: the first and the second half of each series."""
    return [inputs[:, : TIME // 2], inputs[:, TIME // 2 :]]


class OfHalves(Classification):
    def compute(self, forward, batch):
        return super().compute(lambda name, inputs: forward(name, halves(inputs)), batch)


def classify_halves(*, parts, label_smoothing=0.0):
    assert label_smoothing == 0.0
    model = parts.build_model(input_shape=parts.data.input_shape, classes=parts.data.classes)
    return Recipe([Network("model", model, parts.build_optimizer())], [OfHalves(classes=parts.data.classes)])
