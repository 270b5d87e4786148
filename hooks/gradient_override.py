"""Override the backward pass of layers, or of all ops of a type; the forward pass is unchanged."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from hookline.hooks.graphs import calls_replaced
from hookline.hooks.options import parse_named
from hookline.trainer.errors import UserError, check_number, did_you_mean
from hookline.trainer.graph import graph_calls, is_graph, select_layers
from hookline.trainer.hook import Declaration, GraphHook, Tensors
from hookline.trainer.ops import override_gradient as overrides
from hookline.trainer.ops.backward import BACKWARDS, Backward, modify_gradients
from hookline.trainer.step.context import BuildContext, StepContext

EVERY_LAYER = "*"


class GradientOverride(GraphHook):
    r"""Override the backward pass of layers, or of all ops of a type, in an unmodified Keras model.

    With `layers`, the gradient of a layer's inputs is overridden: earlier layers get different gradients; the layer's
    own weights and later layers keep theirs. With `op_type`, the gradients of all inputs of every op of this type in
    the forward pass are overridden; the inputs of a MatMul include the kernel. The forward pass does not change.

    "identity", "round_through", "hard_tanh_through" and "guided_relu" replace the gradient; "clip", "reverse" and
    "scale" modify it. For your own backward pass, set `'plugins=[my_package]'
    'hooks.gradient_override.backward={_target_: my_package.my_backward}'`. `my_backward` returns a
    `hookline.trainer.ops.backward.Backward`; see its docstring for the arguments of its field `function`, which returns
    one gradient for each input, in the shape of the input. With trainer.precision=float16 the backward pass receives
    gradients times the loss scale, and "clip" compares these with its limit; `clip_gradients` compares the unscaled
    ones.

    Group: technique

    Equation:
        y = f(x), with g the gradient of x by f's own backward pass:
        identity, round_through:  dL/dx = dL/dy
        hard_tanh_through:        dL/dx = dL/dy where |x| <= limit, else 0
        guided_relu:              dL/dx = dL/dy where x > 0 and dL/dy > 0, else 0
        clip:                     dL/dx = min(max(g, -limit), limit), entry by entry
        scale, reverse:           dL/dx = factor * g, and -factor * g
        limit, factor:            arguments of `backward`, such as {name: clip, limit: 0.5}; by default 1
        rise > 0:                 times (2 / (1 + exp(-rise p)) - 1), with p the completed share of the run's steps

    Scalars:
        gradient_override/rise: current factor of the rise, if `rise` is set.

    Cost: Not noticeable (LeNet-5, batch 100). A scale of 0 saves nothing: the gradient of earlier layers is still
        computed.

    Pitfalls:
        tests/hooks/test_gradient_override.py: the layer's own weights keep their gradients. A layer that is called
            twice is overridden twice.
        tests/trainer/ops/test_backward.py: every gradient is compared with its closed form.

    Reference: Ganin et al. 2016, arXiv 1505.07818, equations 17 and 18 and section 5.2.2 (reverse, rise); Bengio et al.
        2013, arXiv 1308.3432 (identity, round_through); Courbariaux et al. 2016, arXiv 1602.02830, equation 4
        (hard_tanh_through); Springenberg et al. 2014, arXiv 1412.6806, section 3.4 (guided_relu).

    Example:
        python train.py recipe=gradient_reversal
        python train.py recipe=baseline +hooks=gradient_override hooks.gradient_override.layers=dense_2
        python train.py recipe=baseline +hooks=gradient_override hooks.gradient_override.layers=null \
            hooks.gradient_override.op_type=Relu model.activation=relu
    """

    priority = 90  # late, so that it wraps calls that other hooks have replaced

    def __init__(
        self,
        *,
        layers: str | Sequence[str] | None,
        backward: str | Mapping[str, Any] | Backward = "clip",
        op_type: str | None = None,
        rise: float = 0.0,
        network: str = "model",
    ) -> None:
        """Check the options.

        Args:
            layers: patterns on paths or names of layers; None or "*" with an op_type.
            backward: name of a backward pass such as "clip", a dict with its arguments such as {"name": "reverse",
                "factor": 0.5}, or a `Backward`.
            op_type: type of TensorFlow ops such as "Relu"; None to override layers.
            rise: 0 or more; above 0, the gradient from a modifying backward pass is scaled up from 0 over the run (10
                in Ganin et al. 2016); 0: the full gradient from the first step on.
            network: name of the network.
        """
        if not isinstance(backward, Backward):
            name, arguments = parse_named("backward", backward, BACKWARDS)
            backward = BACKWARDS[name](**arguments)
        self.backward = backward
        if op_type is not None and not str(op_type).isidentifier():
            raise UserError(f"Invalid op_type: {op_type!r}. Expected a type of TensorFlow ops such as Relu, or null.")
        if op_type is None and layers is None:
            raise UserError("Neither layers nor op_type was given. Expected one of them.")
        if op_type is not None and layers not in (None, EVERY_LAYER, [EVERY_LAYER]):
            raise UserError(f"layers={layers} and op_type={op_type} given. Expected one: op_type applies everywhere.")
        self.layers = None if op_type is not None or layers is None else layers
        self.op_type = op_type
        self.rise = check_number("rise", rise, minimum=0.0)
        if self.rise and (self.op_type is not None or not self.backward.modifies):
            raise UserError(f"rise={rise} with {self.backward.name}. Expected layers and a backward such as reverse.")
        self.network = network
        self._chosen: dict[str, keras.Layer] = {}

    def declare(self) -> Declaration:
        return Declaration()

    def build(self, context: BuildContext) -> None:
        self._total_steps = context.total_steps
        model = context.network.model
        if self.layers is None:
            return
        if not is_graph(model):
            raise UserError(f"'{model.name}' has no known graph. Expected a functional or Sequential one, or op_type.")
        is_float = keras.backend.is_float_dtype
        calls = [call for call in graph_calls(model) if any(is_float(each.dtype) for each in call.input_tensors)]
        offered = {id(call.operation) for call in calls}
        self._chosen = select_layers(model, self.layers, accept=lambda layer: id(layer) in offered)

    def around_forward(self, context: StepContext) -> AbstractContextManager[None]:
        if self.op_type is not None:
            return override_ops(self.op_type, self.backward, self.key) if context.training else nullcontext()
        backward = self._rising(context.step)
        names = {path: f"{self.key}_{path.replace('/', '_')}" for path in self._chosen}
        calls = [(each, partial(_call, each.call, backward, names[path])) for path, each in self._chosen.items()]
        return calls_replaced(calls)

    def measure(self, context: StepContext) -> Tensors:
        return {f"{self.key}/rise": self._risen(context.step)} if self.rise else {}

    def _rising(self, step: tf.Tensor) -> Backward:
        """Return the backward pass of layers in a step, scaled by the rise."""
        if not self.rise:
            return self.backward

        def function(gradients: Sequence[tf.Tensor], **needs: Any) -> list[tf.Tensor]:
            risen = self._risen(step)
            return [tf.cast(risen, each.dtype) * each for each in self.backward.function(gradients, **needs)]

        return replace(self.backward, function=function)

    def _risen(self, step: tf.Tensor) -> tf.Tensor:
        progress = tf.cast(step, tf.float32) / float(self._total_steps)
        return 2.0 / (1.0 + tf.exp(-self.rise * progress)) - 1.0

    def summary(self) -> dict[str, Any]:
        return {"backward": self.backward.name, "layers_overridden": list(self._chosen), "op_type": self.op_type}


def _call(call: Callable[..., Any], backward: Backward, name: str, *args: Any, **kwargs: Any) -> Any:
    """Return the outputs of a layer's call, with its backward pass overridden."""
    given = [each for each in keras.tree.flatten((args, kwargs)) if tf.is_tensor(each) and each.dtype.is_floating]
    before = modify_gradients(backward, given, name=name) if backward.modifies else map(tf.stop_gradient, given)
    passed = {id(old): new for old, new in zip(given, before, strict=True)}
    args, kwargs = keras.tree.map_structure(lambda each: passed.get(id(each), each), (args, kwargs))
    outputs = call(*args, **kwargs)
    if backward.modifies:
        return outputs
    return keras.tree.pack_sequence_as(outputs, _replaced(backward, keras.tree.flatten(outputs), given, name))


def _replaced(backward: Backward, outputs: list[tf.Tensor], inputs: list[tf.Tensor], name: str) -> list[tf.Tensor]:
    """Return a layer's outputs, with the gradients of its inputs computed by a backward pass."""
    count = len(outputs)

    def forward(*given: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return tuple(tf.identity(each) for each in given[:count])

    def gradients(upstream: Any, given: tuple[tf.Tensor, ...], returned: Any) -> list[Any]:
        seen = (upstream[0], returned[0]) if count == 1 else (upstream, returned)
        found = backward(seen[0], given[count:], seen[1])
        return [*upstream, *overrides.check_gradients(f"The backward pass of '{name}'", found, inputs)]

    second = backward.second_backward if backward.second_backward == overrides.DIFFERENTIATE else None
    tensors = (*outputs, *inputs)
    override = overrides.Override(name, forward, gradients, tensors, backward.constants, second_backward=second)
    made = overrides.apply_override(override)
    overrides.declare_override(name, inputs, made, backward.surrogate)
    return list(made)


MARK = "_gradient_op_type"
MOST_LISTED = 40


def _gradients(
    backward: Backward, name: str, operation: tf.Operation, upstream: tuple[Any, ...]
) -> list[tf.Tensor | None]:
    inputs, outputs = tuple(operation.inputs), tuple(operation.outputs)
    given = tuple(
        tf.zeros_like(o) if u is None else tf.convert_to_tensor(u) for u, o in zip(upstream, outputs, strict=True)
    )
    declared: dict[str, Any] = {"constants": backward.constants, "second_backward": backward.second_backward}
    if not backward.modifies:
        override = overrides.Override(name, tf.identity, backward, inputs, **declared)
        return overrides.compute_gradients(override, given, inputs, outputs[0] if len(outputs) == 1 else outputs)
    own = ordinary_gradients(operation, given)
    floats = [(tensor, gradient) for tensor, gradient in zip(inputs, own, strict=True) if gradient is not None]
    tensors = tuple(tensor for tensor, _ in floats)
    override = overrides.Override(name, tf.identity, backward, tensors, **declared)
    found = iter(overrides.compute_gradients(override, tuple(gradient for _, gradient in floats), tensors, tensors))
    return [None if gradient is None else next(found) for gradient in own]


def ordinary_gradients(operation: tf.Operation, upstream: tuple[tf.Tensor, ...]) -> list[tf.Tensor | None]:
    """Return TensorFlow's own gradients of an op, one for each input, as if there were no override."""
    inputs = [tf.identity(each) for each in operation.inputs]
    floats = [each for each in inputs if overrides.is_differentiable(each)]
    gradients = tf.gradients(repeat(operation, inputs), floats, grad_ys=list(upstream))
    found = {id(each): gradient for each, gradient in zip(floats, gradients, strict=True) if gradient is not None}
    return [tf.convert_to_tensor(found[id(each)]) if id(each) in found else None for each in inputs]


def repeat(operation: tf.Operation, inputs: Iterable[tf.Tensor]) -> list[tf.Tensor]:
    """Return the outputs of an op of the same type and attributes on other inputs, without the override mark."""
    attributes = {key: value for key, value in operation.node_def.attr.items() if key != MARK}
    dtypes = [each.dtype for each in operation.outputs]
    graph = tf.compat.v1.get_default_graph()
    return list(graph.create_op(operation.type, list(inputs), dtypes, attrs=attributes).outputs)


@contextmanager
def override_ops(op_type: str, backward: Backward, name: str) -> Iterator[None]:
    """Override the gradients of the ops of a type that the block creates."""
    graph = tf.compat.v1.get_default_graph()
    before, known = len(graph.get_operations()), _functions(graph)
    key = f"hookline_{uuid.uuid4().hex}"  # the registry is global and keeps every entry

    @tf.RegisterGradient(key)
    def gradient(operation: tf.Operation, *upstream: tf.Tensor) -> list[tf.Tensor | None]:
        return _gradients(backward, f"{name}, {operation.name}", operation, upstream)

    with graph.gradient_override_map({op_type: key}):
        yield
    created = graph.get_operations()[before:]
    functions = [node for key, function in _functions(graph).items() if key not in known for node in function.node_def]
    if any(node.op == op_type for node in functions):
        raise UserError(
            f"hooks.{name}.op_type={op_type} received, but such ops are inside a branch, a loop or another function, "
            "where no override reaches them. Expected layers=<pattern> instead."
        )
    marked = [each for each in created if each.type == op_type]
    if not marked:
        types = sorted({each.type for each in created if any(map(overrides.is_differentiable, each.inputs))})
        raise UserError(
            f"hooks.{name}.op_type={op_type} received, but no such op occurs in the forward pass."
            f"{did_you_mean(op_type, types)} Expected one of: {', '.join(types[:MOST_LISTED])}."
        )
    for operation in marked:
        overrides.declare_override(f"{name}, {operation.name}", operation.inputs, operation.outputs, backward.surrogate)


def _functions(graph: tf.Graph) -> dict[str, Any]:
    """Return the functions that ops of a graph call, such as the bodies of loops, by name."""
    return {function.signature.name: function for function in graph.as_graph_def().library.function}
