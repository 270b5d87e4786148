"""ONNX files of integers, of networks that were trained with fake quantization: QDQ nodes with the trained ranges."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np

from hookline.deploy.integer import write_integer
from hookline.deploy.options import first_line, import_optional
from hookline.trainer.errors import UserError
from hookline.trainer.ops.averages import STRETCH
from hookline.trainer.quiet import silent


def write_qdq(model: keras.Model, path: Path, opset: int) -> str:
    """Write an .onnx file with QuantizeLinear and DequantizeLinear nodes; return a note.

    It is made from the integer file for LiteRT: kernels are int8, one step for each output channel of a convolution,
    biases int32, activations int8 with the trained ranges. Inputs and outputs of the file are float32.

    Args:
        model: functional, of one input and one output, with the weights that are shipped.
        path: to write to.
        opset: version of ONNX's operations, 13 or later.

    Raises:
        UserError: a network that no file of integers holds.
    """
    tf2onnx = import_optional("tf2onnx", extra="onnx", needed_by="format=onnx")
    with tempfile.TemporaryDirectory() as folder:
        integers = Path(folder) / "model.tflite"
        write_integer(model, integers)
        ends = _ends(integers)
        try:
            with silent(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # tf2onnx reads the file by an interpreter that TensorFlow gives up
                proto, _ = tf2onnx.convert.from_tflite(str(integers), opset=opset)
        except (ValueError, RuntimeError, NotImplementedError, KeyError) as error:
            raise UserError(
                f"ONNX cannot hold this network in integers: {first_line(error)}. Expected format=litert, or "
                "hooks.quantization_aware_training.activation_bits=null."
            ) from error
    if left := next((node for node in proto.graph.node if node.op_type.startswith("TFL_")), None):
        raise UserError(
            f"ONNX cannot hold this network in integers: tf2onnx does not know {left.op_type} of "
            f"'{left.name.partition('/')[0]}', perhaps for the activation that is part of it, such as hard_tanh. "
            "Expected ReLUs, or format=litert."
        )
    graph = _Graph(proto.graph)
    graph.round_averages_as_litert()
    graph.take_floats(model.inputs[0].name, *ends[0])
    graph.return_floats(*ends[1])
    path.write_bytes(proto.SerializeToString())
    return (
        "int8: QuantizeLinear and DequantizeLinear, trained ranges; ONNX Runtime's own int8 sums saturate on x86 "
        "without VNNI: session.disable_quant_qdq=1 is exact"
    )


def _ends(path: Path) -> list[tuple[float, int]]:
    """Return the step and the zero point of the input of an integer file, and those of its output."""
    runtime = import_optional("ai_edge_litert.interpreter", extra="litert", needed_by="format=onnx")
    interpreter = runtime.Interpreter(model_path=str(path))
    (given,), (made,) = interpreter.get_input_details(), interpreter.get_output_details()
    return [each["quantization"] for each in (given, made)]


class _Graph:
    """Change a graph of ONNX."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._onnx = import_optional("onnx", extra="onnx", needed_by="format=onnx")
        self._new: list[Any] = []

    def take_floats(self, name: str, step: float, zero: int) -> None:
        """Let the graph take float32 under a name, and round as TensorFlow's fake quantization does."""
        (given,) = self._graph.input
        one = np.float32(step)
        lowest, highest = one * np.float32(-128 - zero), one * np.float32(127 - zero)
        steps = self._node("Mul", self._node("Sub", self._node("Clip", name, lowest, highest), lowest), 1.0 / one)
        whole = self._node("Floor", self._node("Add", steps, np.float32(0.5 - (zero + 128))))
        self._node("QuantizeLinear", self._node("Mul", whole, one), one, np.int8(zero), output=given.name)
        self._insert(0)
        given.name = name
        given.type.tensor_type.elem_type = self._onnx.TensorProto.FLOAT

    def return_floats(self, step: float, zero: int) -> None:
        """Let the graph return float32."""
        (made,) = self._graph.output
        made.name = self._node("DequantizeLinear", made.name, np.float32(step), np.int8(zero))
        made.type.tensor_type.elem_type = self._onnx.TensorProto.FLOAT
        self._insert(len(self._graph.node))

    def round_averages_as_litert(self) -> None:
        """Stretch averages a little around the value of integer 0: halves then round away from it, as in LiteRT."""
        values = {each.name: self._onnx.numpy_helper.to_array(each) for each in self._graph.initializer}
        pooled = {node.output[0] for node in self._graph.node if node.op_type == "AveragePool"}
        for place in reversed(range(len(self._graph.node))):
            taker = self._graph.node[place]
            if taker.op_type == "QuantizeLinear" and taker.input[0] in pooled:
                step, zero = (values[each] for each in taker.input[1:3])
                stretched = self._node("Mul", taker.input[0], np.float32(1.0 + STRETCH))
                taker.input[0] = self._node("Add", stretched, np.float32(STRETCH * float(step) * float(zero)))
                self._insert(place)

    def _node(self, kind: str, *given: str | np.generic, output: str = "") -> str:
        """Return the output of a new node; numbers that it takes become initializers."""
        made = output or f"ends/{len(self._graph.initializer)}_{kind}"
        names = [each if isinstance(each, str) else f"{made}/{place}" for place, each in enumerate(given)]
        for name, value in zip(names, given, strict=True):
            if not isinstance(value, str):
                self._graph.initializer.append(self._onnx.numpy_helper.from_array(np.asarray(value), name))
        self._new.append(self._onnx.helper.make_node(kind, names, [made], name=made))
        return made

    def _insert(self, place: int) -> None:
        """Put the new nodes before another."""
        nodes = list(self._graph.node)
        del self._graph.node[:]
        self._graph.node.extend([*nodes[:place], *self._new, *nodes[place:]])
        self._new = []
