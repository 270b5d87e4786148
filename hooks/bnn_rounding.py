"""Binary networks: kernels and layer inputs are binarized in the forward pass, latent weights are trained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hookline.hooks.graphs import call_anew, write_out
from hookline.hooks.incremental_quantization import IncrementalQuantization
from hookline.hooks.kernels import Kernel, entry_shares, find_kernels, is_kernel_layer, left_out_advice, own_kernels
from hookline.hooks.options import project_with_average
from hookline.hooks.prune import Prune
from hookline.hooks.quantization.latent_advice import decay_advice, missing_norm_advice, rate_advice
from hookline.hooks.quantization.quantizers import Quantizer, most_values, parse_quantizer
from hookline.hooks.quantization.selection import Selection, choose_kernel_layers
from hookline.trainer.errors import UserError, check_number
from hookline.trainer.graph import layer_paths
from hookline.trainer.hook import Bits, Declaration, GraphHook, Run, Tensors
from hookline.trainer.network import Network
from hookline.trainer.ops.estimators import stochastic_sign
from hookline.trainer.step.context import BuildContext, StepContext

STOCHASTIC = ("ste_sign", "binary_tanh")
ONE_SIGN = 0.99  # share of inputs with the same sign above which signs carry no information


class BnnRounding(GraphHook):
    """Train a network whose kernels and layer inputs are -1 or +1.

    The forward pass uses quantized kernels instead of the latent ones, which stay float and are trained; after each
    update a projection clips them. In every binary quantizer the sign of 0 is +1, and `dorefa` has no level at 0 for
    kernels, so zeros from `prune` are lost (with a warning), unless the kernel quantizer is `ste_tern`. A layer with
    padding="same" pads its quantized input with zeros.

    A network with both quantizers is a BNN (binary neural network), one without an input quantizer a BWN (binary weight
    network), and one with input quantizers only a BAN (binary activation network). If the hook has another name, its
    reports have that name instead of "bnn".

    Group: technique

    Equation:
        forward:   w_b = c Q(w / c)   instead of each latent kernel w, with c = clip
                   x_b = Q_in(x)      instead of the input of each of these layers
        backward:  dL/dw = dL/dw_b * Q'(w / c), Q' the gradient of the surrogate (b: the argument beta, by default 5)
                   ste_sign      Q(x) = +1 where x >= 0, else -1;   Q'(x) = 1 where |x| <= 1, else 0
                   approx_sign   the same Q;                        Q'(x) = 2 - 2 |x| where |x| <= 1, else 0
                   swish_sign    the same Q;                        Q'(x) = b (2 - b x tanh(b x / 2)) / (1 + cosh(b x))
                   binary_tanh   another name of ste_sign
                   ste_tern      Q(x) = sign(x) where |x| > threshold (0.05), else 0;   Q' as for ste_sign
                   dorefa        2^k_bit levels (k_bit: 2 by default): of inputs in [0, 1], of kernels in [-1, 1]
                   magnitude_aware_sign   s * ste_sign, with s the mean of |x| over each output channel
        stochastic, in training:  w_b = +c with probability min(max((w / c + 1) / 2, 0), 1), else -c
        after the optimizer:      w <- min(max(w, -c), c), and the same for its moving average

    Scalars:
        bnn/flip_ratio: share of entries whose quantized value this update changed.
        bnn/flip_ratio/<layer>: the same for one layer.
        bnn/saturation_ratio: share of latent entries that are saturated at the clip.
        bnn/saturation_ratio/<layer>: the same for one layer.

    Cost: Larq's tutorial CNN, batch 64, trains 134 steps per second on 2 cores of an AMD EPYC; with Larq, 117.

    Pitfalls:
        tests/trainer/ops/test_estimators.py: sign(0) is 0 in TensorFlow, which makes a ternary network; here it is +1.
        tests/hooks/test_bnn_rounding.py: if weights were clipped only in the forward pass, a latent weight outside the
            clip would get no gradient and stay there.
        tests/hooks/test_input_quantizers.py: a ReLU before a sign makes every input +1, so it is refused.

    Reference: Courbariaux et al. 2016, "Binarized Neural Networks", arXiv 1602.02830, equation 4; Rastegari et al.
        2016, arXiv 1603.05279, section 3.1 (magnitude_aware_sign); Liu et al. 2018, arXiv 1808.00278 (approx_sign);
        Darabi et al. 2018, arXiv 1812.11800 (swish_sign); Courbariaux et al. 2015, arXiv 1511.00363, equation 2
        (stochastic).

    Example:
        python train.py recipe=bnn hooks.bnn_rounding.all_binary=true
        python train.py recipe=baseline +hooks=bnn_rounding hooks.bnn_rounding.input_quantizer=null
    """

    priority = 80  # masks and other transformations of latent weights come before quantization

    def __init__(
        self,
        *,
        layers: str | Sequence[str] = "*",
        kernel_quantizer: str | Mapping[str, Any] | None = "ste_sign",
        input_quantizer: str | Mapping[str, Any] | None = "ste_sign",
        stochastic: bool = False,
        clip: float = 1.0,
        all_binary: bool = False,
        quantize_first_input: bool = False,
        network: str = "model",
    ) -> None:
        """Check the options.

        Args:
            layers: patterns on paths or names of dense layers and convolutions.
            kernel_quantizer: a name such as "ste_sign", a dict such as {"name": "dorefa", "k_bit": 2}, or None.
            input_quantizer: the same for the inputs of layers.
            stochastic: whether to draw kernels in training, with P(+1) = hard_sigmoid(w / c); evaluation uses the sign.
            clip: above 0; latent weights stay in [-clip, clip], and quantized ones are multiples of clip.
            all_binary: whether the network's first and last layers are quantized too.
            quantize_first_input: whether the network's own input is quantized too; needs `all_binary`.
            network: name of the network.
        """
        self.layers = layers
        self.kernel_quantizer = parse_quantizer(kernel_quantizer, role="kernel", option="kernel_quantizer")
        self.input_quantizer = parse_quantizer(input_quantizer, role="input", option="input_quantizer")
        self.stochastic = stochastic
        self.clip = check_number("clip", clip, minimum=0.0, above_minimum=True)
        self.all_binary = all_binary
        self.quantize_first_input = quantize_first_input
        self.network = network
        self._selection: Selection  # once built
        self._kernels: list[Kernel] = []
        self._notes: list[str] = []
        self._check_combination()

    def _check_combination(self) -> None:
        if self.kernel_quantizer is None and self.input_quantizer is None:
            raise UserError("kernel_quantizer and input_quantizer are both null. Expected at least one of them.")
        if self.stochastic and (self.kernel_quantizer is None or self.kernel_quantizer.name not in STOCHASTIC):
            name = self.kernel_quantizer and self.kernel_quantizer.name
            raise UserError(f"stochastic=true draws -1 or +1. Expected kernel_quantizer=ste_sign. Received: {name}.")
        if self.quantize_first_input and not (self.all_binary and self.input_quantizer):
            raise UserError("quantize_first_input=true has no effect. Expected all_binary=true and an input_quantizer.")

    def rebuild_model(self, model: keras.Model) -> keras.Model:
        selection = choose_kernel_layers(model, self.layers, all_binary=self.all_binary)
        if self.input_quantizer is None:
            return model
        missing = layers_to_precede(selection, self.input_quantizer, first_too=self.quantize_first_input)
        self._notes = dropout_advice(selection, missing, self.input_quantizer)
        return insert_input_quantizers(model, missing, self.input_quantizer) if missing else model

    def strip_model(self, model: keras.Model) -> keras.Model:
        from hookline.hooks.quantization.layers import InputQuantizer  # imported late: a Keras layer

        return write_out(model, InputQuantizer)

    def build(self, context: BuildContext) -> None:
        self._selection = choose_kernel_layers(context.network.model, self.layers, all_binary=self.all_binary)
        if self.kernel_quantizer is not None:
            self._kernels = find_kernels(context.network, self._selection.layers)

    def declare(self) -> Declaration:
        names = {kernel.name for kernel in self._kernels}
        return Declaration(projected=names, rounded=names)

    def shipped_bits(self, shipped: Mapping[str, np.ndarray]) -> Bits:
        """Return the bits of each kernel that the quantizer encodes exactly; the stored ones include float scales."""
        exact = []
        for kernel in self._kernels:
            axes = kernel.channel_axes if self._quantizer.scales_channels else ()
            if most_values(shipped[kernel.name], axes) <= 2**self._quantizer.bits:
                exact.append(kernel)
        bits = self._quantizer.bits if exact else 32
        stored = {each.name: bits + 32.0 * self._scales(each) / each.size for each in exact}
        return Bits(stored, {each.name: bits for each in exact}, self._input_bits())

    def _input_bits(self) -> dict[str, int]:
        if self._selection.inputs is None or self.input_quantizer is None:
            return {}
        quantizer, seen = self.input_quantizer, self._selection.inputs.calls
        return {
            path: quantizer.bits
            for path in self._selection.layers
            if path in seen and all(each.quantizer == quantizer.config for each in seen[path])
        }

    @property
    def _quantizer(self) -> Quantizer:
        """Return the kernel quantizer; without one there are no kernels."""
        assert self.kernel_quantizer is not None
        return self.kernel_quantizer

    def _scales(self, kernel: Kernel) -> int:
        own = self._quantizer.scales(kernel.variable.shape, kernel.channel_axes)
        return own or int(self.clip != 1.0)

    def transform_weights(self, weights: Tensors, context: StepContext) -> Tensors:
        changed = dict(weights)
        for kernel in self._kernels:
            draws = self.stochastic and context.training
            seed = context.stateless_seed(f"{self.name}/{kernel.name}") if draws else None
            changed[kernel.name] = self._quantize(weights[kernel.name], kernel, seed)
        return changed

    def _quantize(self, latent: tf.Tensor, kernel: Kernel, seed: tf.Tensor | None) -> tf.Tensor:
        """Return c Q(w / c) or, with a seed, a draw."""
        scaled = latent if self.clip == 1.0 else latent / self.clip
        if seed is None:
            quantized = self._quantizer(scaled, kernel.channel_axes)
        else:
            quantized = stochastic_sign(scaled, seed=seed)
        return quantized if self.clip == 1.0 else self.clip * quantized

    def project(self, context: StepContext) -> None:
        for kernel in self._kernels:
            clip = partial(tf.clip_by_value, clip_value_min=-self.clip, clip_value_max=self.clip)
            project_with_average(context.network, kernel.name, clip)

    def measure(self, context: StepContext) -> Tensors:
        flipped, saturated = [], []
        for kernel in self._kernels:
            latent = tf.convert_to_tensor(kernel.variable.value)
            flipped.append(self._code(context.latent[kernel.name], kernel) != self._code(latent, kernel))
            saturated.append(tf.abs(latent) >= self.clip)
        prefix = "bnn" if self.key == "bnn_rounding" else self.key
        return {
            **entry_shares(f"{prefix}/flip_ratio", self._kernels, flipped),
            **entry_shares(f"{prefix}/saturation_ratio", self._kernels, saturated),
        }

    def _code(self, latent: tf.Tensor, kernel: Kernel) -> tf.Tensor:
        """Return the quantized value of each entry or, for signs, whether it is +1, without the scale."""
        return latent >= 0 if self._quantizer.is_sign else self._quantize(latent, kernel, None)

    def summary(self) -> dict[str, Any]:
        layers = self._selection.layers
        entries = dict.fromkeys(layers, 0)
        for kernel in self._kernels:
            entries[kernel.layer] += kernel.size
        kind = "BAN" if self.kernel_quantizer is None else "BWN" if self.input_quantizer is None else "BNN"
        return {
            "kind": kind,
            "kernel_quantizer": self.kernel_quantizer and self.kernel_quantizer.config,
            "input_quantizer": self.input_quantizer and self.input_quantizer.config,
            "stochastic": self.stochastic,
            "latent_dtype": sorted({str(each.variable.dtype) for each in self._kernels}),
            "kernel_bits": self.kernel_quantizer.bits if self.kernel_quantizer else 32,
            "kernel_entries": entries,
            "float_scales": sum(self._scales(kernel) for kernel in self._kernels),
            "full_precision": self._selection.full_precision,
        }

    def advise(self, run: Run) -> Sequence[str]:
        network, quantizer, key = run.networks[self.network], self.kernel_quantizer, self.key
        override = " Set model.dropout=0." if "dropout" in run.config.get("model", {}) else ""  # not for a user's model
        notes = [f"{note}{override}" for note in self._notes]
        lines: list[str | None] = [*notes, self._advise_on_inputs(run), *self._advise_on_kinds(network)]
        if quantizer is not None and quantizer.name != "ste_tern":
            lines += self._advise_on_zeros(run)
        if quantizer is not None and quantizer.is_sign:
            lines += decay_advice(self._kernels, network.optimizer, clip=self.clip)
            lines.append(rate_advice(network.optimizer, steps=run.total_steps, clip=self.clip))
            plain = [each for each in self._kernels if not quantizer.scales(each.variable.shape, each.channel_axes)]
            lines.append(missing_norm_advice(network.model, plain, self._selection.layers, clip=self.clip, hook=key))
        return [line for line in lines if line]

    def _advise_on_inputs(self, run: Run) -> str | None:
        """Return a warning if the network's own inputs are quantized to signs that are nearly all the same."""
        if not self.quantize_first_input or self.input_quantizer is None or not self.input_quantizer.is_sign:
            return None
        inputs = run.training.read(run.training.indices(tf.constant(0, tf.int64)))["inputs"]
        shares = [float(tf.reduce_mean(tf.cast(each >= 0, tf.float32))) for each in tf.nest.flatten(inputs)]
        positive = next((each for each in shares if not 1.0 - ONE_SIGN < each < ONE_SIGN), None)
        if positive is None:
            return None
        return (
            f"{100 * positive:.0f} % of an input's values are 0 or more, so their signs tell the first layer nothing. "
            f"Center the inputs around 0, or set hooks.{self.key}.quantize_first_input=false."
        )

    def _advise_on_zeros(self, run: Run) -> list[str]:
        """Return a warning for each hook that makes zeros which are rounded away."""
        own = {kernel.name for kernel in self._kernels}
        makers = [each for each in run.hooks if isinstance(each, Prune | IncrementalQuantization)]
        shared = {maker.key: sorted(own & set(maker.declare().projected)) for maker in makers}
        return [
            f"'{names[0]}' is rounded after '{key}', so its zeros become nonzero. Set "
            f"hooks.{self.key}.kernel_quantizer=ste_tern, or leave such layers out of hooks.{key}.layers."
            for key, names in shared.items()
            if names
        ]

    def _advise_on_kinds(self, network: Network) -> list[str]:
        """Return a warning about kernels left out because of their layer type, not as first or last ones."""
        layers = [layer for layer in layer_paths(network.model).values() if is_kernel_layer(layer)]
        offered = {id(variable) for layer in layers for variable in own_kernels(layer)}
        names = [name for name, variable in network.trainable_variables.items() if id(variable) in offered]
        reason = "Only dense layers and convolutions are rounded."
        state = f"in full precision{'' if self.all_binary else ', besides first and last layers'}"
        return left_out_advice(network, self.layers, names, state=state, reason=reason)


def layers_to_precede(selection: Selection, quantizer: Quantizer, *, first_too: bool) -> dict[str, keras.Layer]:
    """Return the selected layers that lack this input quantizer; raise a UserError where it cannot work."""
    inputs = selection.inputs
    if inputs is None:
        raise UserError("A subclassed model has no graph. Expected a functional one, or input_quantizer=null.")
    wanted = {path: layer for path, layer in selection.layers.items() if first_too or path not in selection.first}
    missing = {}
    for path, layer in wanted.items():
        calls = inputs.calls.get(path, [])
        if path in inputs.hidden or not calls:
            raise UserError(
                f"No input quantizer can be put before '{path}', inside a layer that is not a functional model. Set "
                "input_quantizer=null, or leave it out of `layers`."
            )
        present = [each.quantizer for each in calls if each.quantizer is not None]
        if any(config != quantizer.config for config in present):
            raise UserError(f"The input of '{path}' is quantized by {present[0]} and {quantizer.config}. Expected one.")
        if len(present) == len(calls):
            continue
        cause = next((each.non_negative for each in calls if each.non_negative), "")
        if cause and quantizer.is_sign:
            raise UserError(
                f"The input of layer '{path}' is never negative, because of '{cause}': its sign is always +1. Replace "
                "that activation, for example by hard_tanh (in a recipe: model.activation=hard_tanh), or set "
                "input_quantizer to null or {name: dorefa, k_bit: 2}."
            )
        missing[path] = layer
    return missing


def dropout_advice(selection: Selection, paths: Iterable[str], quantizer: Quantizer) -> list[str]:
    """Return a warning for each dropout layer followed by a sign, which turns its zeros into +1."""
    if not quantizer.is_sign or selection.inputs is None:
        return []
    fed = {facts.dropout: path for path in paths for facts in selection.inputs.calls[path] if facts.dropout}
    return [
        f"the dropout layer '{dropout}' feeds {quantizer.name} before layer '{path}': what it drops becomes sign(0) = "
        "+1, not 0. Put it before the batch norm, or leave it out."
        for dropout, path in fed.items()
    ]


def insert_input_quantizers(model: keras.Model, layers: Mapping[str, keras.Layer], quantizer: Quantizer) -> keras.Model:
    """Return the model with an `InputQuantizer` before each of the layers; layers and variables are shared."""
    from hookline.hooks.quantization.layers import InputQuantizer  # imported late: a Keras layer

    before = {
        id(layer): InputQuantizer(quantizer.config, name=f"{layer.name}_input_quantizer", dtype=layer.dtype_policy)
        for layer in layers.values()
    }

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        inputs, *others = args or (kwargs.pop("inputs"),)
        return layer(before[id(layer)](inputs), *others, **kwargs)

    return call_anew(model, lambda layer: id(layer) in before, call)
