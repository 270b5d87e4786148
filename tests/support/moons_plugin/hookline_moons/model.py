"""A hidden layer of bumps."""

import keras


def bumps(input_shape, classes, *, units=16):
    inputs = keras.Input(tuple(input_shape))
    x = keras.layers.Dense(units, name="places")(inputs)
    x = keras.layers.Activation("gelu")(x)
    return keras.Model(inputs, keras.layers.Dense(classes, name="logits")(x))
