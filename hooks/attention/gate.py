"""The gate: a branch that computes A, and draws by it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hookline.hooks.attention.options import EVAL_MODES, MODES, BranchOptions
from hookline.hooks.attention.resampling import AreaResize, DilatedConv2D, area_weights
from hookline.hooks.rebuild import call_anew
from hookline.trainer.errors import UserError
from hookline.trainer.ops.estimators import bernoulli_gate, uniform_numbers
from hookline.trainer.replicas.replica import Replica, common_seed


@keras.saving.register_keras_serializable(package="hookline")
class AttentionMap(keras.layers.Layer):
    """Return A = sigmoid(logits / temperature), in float32 unless another dtype is given.

    bfloat16 would round all of A above 0.998 to exactly 1.
    """

    def __init__(self, *, temperature: float = 1.0, **options: Any) -> None:
        """Set the temperature."""
        super().__init__(**{"dtype": "float32", **options})
        self.temperature = temperature

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return tf.sigmoid(inputs / self.temperature)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "temperature": self.temperature}


def make_branch(options: BranchOptions, *, temperature: float, name: str) -> keras.Sequential:
    """Return convolutions of the same size as their input, the last one of 1 x 1 with one channel.

    The kernel of the last one is zero at first, so that A is `initial_keep_rate` at every position: no position is
    dropped for good before anything is learned.
    """
    shared: dict[str, Any] = {"kernel_size": options.kernel_size, "activation": options.activation}
    layers = [
        DilatedConv2D(filters, dilation_rate=dilation, name=f"{name}_conv_{number}", **shared)
        for number, (filters, dilation) in enumerate(zip(options.filters, options.dilations, strict=True), start=1)
    ]
    initial = keras.initializers.Constant(
        temperature * math.log(options.initial_keep_rate / (1.0 - options.initial_keep_rate))
    )
    last = keras.layers.Conv2D(1, 1, kernel_initializer="zeros", bias_initializer=initial, name=f"{name}_logits")
    return keras.Sequential([*layers, last], name=f"{name}_branch")


def branch_logits(branch: keras.layers.Layer, seen: Any, wanted: tuple[int | None, ...]) -> Any:
    """Return the logits that a branch makes of a map."""
    try:
        logits = branch(seen)
    except (ValueError, TypeError) as error:
        reason = next(iter(str(error).strip().splitlines()), "no reason given")
        raise UserError(
            f"The branch '{branch.name}' does not take a map of shape {_shown(tuple(seen.shape))}: {reason}"
        ) from error
    found = tuple(logits.shape) if isinstance(logits, keras.KerasTensor) else None
    if found != wanted:
        raise UserError(
            f"The branch '{branch.name}' returns {_shown(found) if found else type(logits).__name__}. Expected logits "
            f"{_shown(wanted)}: one for each position of the gated map. End it with a convolution of one unit and no "
            "sigmoid."
        )
    return logits


def _shown(shape: tuple[int | None, ...]) -> str:
    return "[" + ", ".join(["batch", *("any" if each is None else str(each) for each in shape[1:])]) + "]"


@keras.saving.register_keras_serializable(package="hookline")
class BernoulliGate(keras.layers.Layer):
    """Multiply features x [batch, height, width, channels] by a mask r made from attention A [batch, height, width, 1].

    One mask per example and position, for all channels; nothing is divided by A. In training, "bernoulli" draws
    r ~ Bernoulli(A), with the gradient passed straight through to A, and "product" takes r = A. In evaluation r is A
    ("expectation"), a draw ("sample") or A >= 1/2 ("threshold"); of "product" it is always A.

    The seed of the draws is a variable of the layer, counted up by each draw: runs repeat and resume exactly. An
    evaluation does not count it up for good: all its batches are drawn with the same noise.

    Returns y = r * x and r itself.
    """

    def __init__(
        self, *, mode: str = "bernoulli", eval_mode: str = "expectation", seed: int | None = None, **options: Any
    ) -> None:
        """Set how the mask is made."""
        super().__init__(**{**options, "autocast": False})  # A stays in float32 beside features of lower precision
        if mode not in MODES or eval_mode not in EVAL_MODES:
            raise ValueError(f"Expected a mode of {MODES} and an eval_mode of {EVAL_MODES}: {mode}, {eval_mode}.")
        self.mode = mode
        self.eval_mode = eval_mode
        self.seed = seed
        self._replica = Replica()
        if mode == "bernoulli":
            self.seed_generator = keras.random.SeedGenerator(seed)

    def call(self, inputs: list[tf.Tensor], training: bool = False) -> list[tf.Tensor]:
        features, attention = inputs
        if self.mode == "bernoulli" and (training or self.eval_mode == "sample"):
            seed = common_seed(self.seed_generator.next(), self._replica)
            return list(bernoulli_gate(features, attention, seed=seed, uniform=self._uniform))
        mask = attention
        if self.mode == "bernoulli" and self.eval_mode == "threshold":
            mask = tf.cast(attention >= 0.5, attention.dtype)
        return [tf.cast(mask, features.dtype) * features, mask]

    @contextmanager
    def drawing_for(self, replica: Replica) -> Iterator[None]:
        """Draw for a replica's part of the batch inside the block, as that part of a draw for the whole batch."""
        before, self._replica = self._replica, replica
        try:
            yield
        finally:
            self._replica = before

    def _uniform(self, like: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        if self._replica.count == 1:
            return uniform_numbers(like, seed)
        return self._replica.part(lambda shape: tf.random.stateless_uniform(shape, seed), like.shape)

    def compute_output_spec(self, inputs: list[Any], training: bool = False) -> list[Any]:
        """Return what `call` returns, without running it: the shapes and dtypes of the two inputs."""
        return [keras.KerasTensor(tensor.shape, dtype=tensor.dtype) for tensor in inputs]

    def get_config(self) -> dict[str, Any]:
        config = {**super().get_config(), "mode": self.mode, "eval_mode": self.eval_mode, "seed": self.seed}
        config.pop("autocast", None)
        return config


OWN = (AreaResize, AttentionMap, BernoulliGate, DilatedConv2D)


def write_out_attention(model: keras.Model) -> keras.Model:
    """Return the model with Keras layers in place of attention's own: the same variables.

    Its outputs are those of evaluation, to within rounding. Nothing is drawn, so it serves inference alone.
    """
    convolutions: dict[int, keras.layers.Conv2D] = {}

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(layer, DilatedConv2D):
            layer = convolutions.setdefault(id(layer), plain_convolution(layer))
        write_out = next((made for kind, made in WRITTEN_OUT.items() if isinstance(layer, kind)), None)
        if write_out is None:
            return layer(*args, **kwargs)
        inputs = args[0] if args else kwargs["inputs"]
        return write_out(layer, inputs)

    return call_anew(model, lambda layer: isinstance(layer, OWN), call)


def plain_convolution(layer: DilatedConv2D) -> keras.layers.Conv2D:
    """Return the layer of Keras that convolves alike, with the very variables."""
    plain = keras.layers.Conv2D.from_config(layer.get_config())
    plain._kernel, plain.bias = layer._kernel, layer.bias
    plain.input_spec, plain.built = layer.input_spec, True
    return plain


def resize(layer: AreaResize, maps: Any) -> Any:
    """Return maps [batch, height, width, channels] resized by area: two products with constant matrices."""
    ops = keras.ops
    _, height, width, channels = maps.shape
    rows, columns = (
        area_weights(given, wanted).astype(np.float32)
        for given, wanted in ((height, layer.height), (width, layer.width))
    )
    lines = ops.matmul(rows, ops.reshape(maps, (-1, height, width * channels)))
    cells = ops.matmul(columns, ops.reshape(lines, (-1, width, channels)))
    return ops.reshape(cells, (-1, layer.height, layer.width, channels))


def attention(layer: AttentionMap, logits: Any) -> Any:
    """Return A = sigmoid(logits / temperature) in float32."""
    return keras.ops.sigmoid(keras.ops.cast(logits, "float32") / layer.temperature)


def gate(layer: BernoulliGate, inputs: list[Any]) -> list[Any]:
    """Return what the gate returns in evaluation: features times mask, and the mask."""
    features, mask = inputs
    if layer.mode == "bernoulli" and layer.eval_mode == "threshold":
        mask = keras.ops.cast(mask >= 0.5, "float32")
    # A layer, not an operation: in a copy in float32 it computes in that, whatever it computes in here.
    half = features.dtype if features.dtype in ("float16", "bfloat16") else None
    multiply = keras.layers.Multiply(name=layer.name, dtype=f"mixed_{half}" if half else features.dtype)
    return [multiply([features, mask]), mask]


WRITTEN_OUT: Mapping[type[keras.Layer], Callable[[Any, Any], Any]] = {
    AreaResize: resize,
    AttentionMap: attention,
    BernoulliGate: gate,
}
