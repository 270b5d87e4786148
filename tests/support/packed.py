"""What tests of packed files share: networks with quantizers, statistics that make ties, the file of a model."""

from dataclasses import replace

import keras
import numpy as np
import tensorflow as tf

from hookline.deploy.arrays import encode_nodes
from hookline.deploy.inference.engine import Model
from hookline.deploy.inference.graph import Graph, graph_to_json, parse_graph
from hookline.deploy.packed import packed_nodes
from hookline.hooks.quantization.layers import InputQuantizer

layers = keras.layers


def sign(name):
    return InputQuantizer("ste_sign", name=name)


def evaluate(calls, shape):
    def compute(values):
        tensor = tf.constant(values.reshape(-1, *(1 for _ in shape[:-1]), shape[-1]), tf.float32)
        for call in calls:
            tensor = call(tensor)
        return np.asarray(tensor).reshape(len(values), -1)

    return compute


def pack_arrays(model):
    name, nodes, output = packed_nodes(model, evaluate)
    ops, tensors, _ = encode_nodes(nodes, half=False)
    graph = Graph(model.name, name, tuple(model.inputs[0].shape[1:]), output, ops)
    return parse_graph(graph_to_json(graph)), tensors


def pack(model):
    return Model(*pack_arrays(model))


def inner_value(name, inputs, graph, tensors, *backend):
    """Return an inner value of a packed network: float32 [batch, ...]."""
    return Model(replace(graph, output=name, classes=None), tensors, *backend)(inputs)


def kinds(packed):
    return [op.op for op in packed.graph.ops]


def randomize(model, seed=0, scales=None):
    rng = np.random.default_rng(seed)
    for layer in model._flatten_layers():
        if isinstance(layer, layers.BatchNormalization):
            count = layer.moving_mean.shape[0]
            if layer.scale:
                layer.gamma.assign(rng.choice([1.0, -1.0, 0.0, 0.3, -2.0], count))
            if layer.center:
                layer.beta.assign(rng.choice([0.0, 0.0, 0.25, -0.5], count))
            layer.moving_mean.assign(
                np.where(rng.uniform(size=count) < 0.5, rng.integers(-6, 6, count), rng.normal(size=count))
            )
            layer.moving_variance.assign(rng.choice([1e-12, 1e-3, 1.0, 50.0], count))
        if hasattr(layer, "kernel"):
            scale = (scales or {}).get(layer.name, 1.0)
            signs = rng.choice([-1.0, 1.0], layer.kernel.shape)
            layer.kernel.assign(rng.normal(size=signs.shape) if scale is None else signs * np.asarray(scale))
            if layer.use_bias:
                layer.bias.assign(rng.choice([0.0, 1.0, -2.5, 0.7], layer.bias.shape))


def exact_inputs(model, count=24, seed=1):
    """Return inputs whose sums with signs are exact in float32, in any order."""
    shape = (count, *model.inputs[0].shape[1:])
    return (np.random.default_rng(seed).integers(-16, 17, shape) / 8).astype(np.float32)


def inner_values(model, inputs):
    outputs = {layer.name: layer.output for layer in model.layers[1:]}
    return {name: np.asarray(value) for name, value in keras.Model(model.inputs[0], outputs)(inputs).items()}
