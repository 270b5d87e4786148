"""Which kernel layers are quantized, and which stay in full precision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import keras

from hooks.quantization.graph_facts import Facts, KernelInputs, trace_kernel_inputs
from hooks.quantization.kernel_layers import is_kernel_layer
from hooks.quantization.quantizers import Quantizer
from trainer.errors import UserError
from trainer.graph import is_graph
from trainer.select import layer_paths, select_layers


@dataclass(frozen=True)
class Selection:
    """Hold what a pattern chose in one model.

    Attributes:
        layers: to quantize, by path, in the order of the model.
        first: paths of the layers that see the model's own input.
        full_precision: paths of all other kernel layers.
        inputs: what reaches the kernel layers; None when the model has no known graph.
    """

    layers: dict[str, keras.Layer]
    first: set[str]
    full_precision: list[str]
    inputs: KernelInputs | None


def choose_kernel_layers(model: keras.Model, patterns: str | Sequence[str], *, all_binary: bool) -> Selection:
    """Return the kernel layers that match, without the model's first and last ones unless `all_binary`.

    In a model with a known graph, first are the layers that the model's input reaches without crossing another kernel
    layer, and last those that reach no other. In a subclassed model they are the first and the last that it lists.

    Args:
        model: any built Keras model.
        patterns: on paths or names of kernel layers.
        all_binary: whether first and last layers may be chosen too.

    Raises:
        UserError: a pattern matches no kernel layer, or none is left.
    """
    matched = select_layers(model, patterns, accept=is_kernel_layer, kind="kernel layer")
    every = {path: layer for path, layer in layer_paths(model).items() if is_kernel_layer(layer)}
    inputs = trace_kernel_inputs(model, every) if is_graph(model) else None
    paths = list(every)
    first, last = (inputs.first(), inputs.last()) if inputs else ({paths[0]}, {paths[-1]})
    kept = set() if all_binary else first | last
    chosen = {path: layer for path, layer in matched.items() if path not in kept}
    if not chosen:
        raise UserError(
            f"Nothing to quantize: the pattern {patterns!r} matches only first and last layers ({', '.join(matched)}), "
            "which stay in full precision. Set all_binary=true, or choose other layers."
        )
    return Selection(chosen, first, [path for path in paths if path not in chosen], inputs)


def layers_to_precede(selection: Selection, quantizer: Quantizer, *, first_too: bool) -> dict[str, keras.Layer]:
    """Return the selected layers before which an input quantizer belongs, once it is certain that it makes sense there.

    Layers whose input comes from an equal quantizer already are left out.

    Args:
        selection: what to quantize.
        quantizer: for inputs.
        first_too: whether layers that see the model's own input are among them.

    Raises:
        UserError: there is no graph to insert into, the input was quantized otherwise already, or it is never negative
            and the quantizer is a sign, so that it would be +1 always.
    """
    inputs = selection.inputs
    if inputs is None:
        raise UserError(
            "A subclassed model has no graph into which input quantizers could be inserted. "
            "Set input_quantizer=null to quantize its weights only, or build it as a functional model."
        )
    wanted = {path: layer for path, layer in selection.layers.items() if first_too or path not in selection.first}
    missing = {}
    for path, layer in wanted.items():
        if path in inputs.hidden or path not in inputs.calls:
            raise UserError(
                f"No input quantizer can be put before layer '{path}': it is inside a layer that is not a functional "
                "model. Set input_quantizer=null, or leave it out of the `layers` pattern."
            )
        if not _is_done(path, inputs.calls[path], quantizer):
            _check_sign(path, inputs.calls[path], quantizer)
            missing[path] = layer
    return missing


def _is_done(path: str, calls: list[Facts], quantizer: Quantizer) -> bool:
    """Return whether every input of a layer comes from an equal quantizer; one from another is an error."""
    present = [each.quantizer for each in calls if each.quantizer is not None]
    if any(config != quantizer.config for config in present):
        raise UserError(
            f"The input of layer '{path}' is quantized by {present[0]} already, and now by {quantizer.config} again. "
            "Let one hook only choose this layer."
        )
    return len(present) == len(calls)


def _check_sign(path: str, calls: list[Facts], quantizer: Quantizer) -> None:
    if not quantizer.is_sign:
        return
    for facts in calls:
        if facts.non_negative:
            raise UserError(
                f"The input of layer '{path}' is never negative, because of '{facts.non_negative}': its sign would be "
                f"+1 always, and {quantizer.name} would tell the layer nothing. Replace that activation, for example "
                "by hard_tanh, or set input_quantizer={name: dorefa, k_bit: 2} or input_quantizer=null."
            )


def dropout_advice(selection: Selection, paths: Iterable[str], quantizer: Quantizer) -> list[str]:
    """Return a line for each dropout whose zeros a sign turns into +1.

    Args:
        selection: of the model before input quantizers were put in.
        paths: of the layers before which they come.
        quantizer: for inputs.
    """
    if not quantizer.is_sign or selection.inputs is None:
        return []
    fed = {facts.dropout: path for path in paths for facts in selection.inputs.calls[path] if facts.dropout}
    return [
        f"the dropout layer '{dropout}' feeds {quantizer.name} before layer '{path}': what it drops becomes sign(0) = "
        "+1, not 0. Put it before the batch norm, or leave it out."
        for dropout, path in fed.items()
    ]
