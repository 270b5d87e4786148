import copy
import json
import operator
from typing import Any

import numpy as np
import pytest

from hookline.deploy.inference.container import from_json, to_json
from hookline.deploy.inference.engine import STEPS, Model
from hookline.deploy.inference.graph import FIELDS, Encoded, Graph, Op, graph_to_json, parse_graph
from hookline.deploy.inference.shapes import infer
from hookline.trainer.errors import UserError
from tests.support.packed_graphs import GraphBuilder, random_cnn, random_mlp


def described() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the JSON values of a network with one of everything that can be wrong."""
    builder = GraphBuilder((6, 6, 2))
    builder.add("conv2d", kernel=builder.codebook((3, 3, 2, 4), 3), bias=builder.floats((4,)), strides=(1, 1))
    builder.add("sign")
    builder.add("conv2d", kernel=builder.signs((2, 2, 4, 5)))
    builder.add("max_pool2d", pool_size=(2, 2), strides=(1, 1))
    builder.thresholds(5)
    builder.add("flatten")
    builder.add("dense", kernel=builder.signs((20, 3), scaled=True))
    builder.batch_norm(3)
    builder.add("activation", function="softmax")
    return graph_to_json(builder.graph()), builder.tensors


def test_a_graph_is_what_it_was_after_json():
    assert STEPS.keys() == FIELDS.keys()
    for builder in (random_mlp(), random_cnn()):
        graph = builder.graph()
        assert parse_graph(from_json(to_json(graph_to_json(graph)))) == graph
    made = Graph("n", "x", (3,), "y", (Op("sign", "s", ("x",), "y"),), ("a", "b", "c"), {"run": "r", "step": 3})
    assert parse_graph(json.loads(json.dumps(graph_to_json(made)))) == made


def reached(model: Any, path: str) -> tuple[Any, Any]:
    """Return the place before the last part of a path, and this part."""
    *before, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in before:
        model = model[part]
    return model, last


def put(path: str, value: Any):
    """Return a change of the model's JSON: the last part of the path gets a value."""
    return lambda model, _: operator.setitem(*reached(model, path), value)


def drop(path: str):
    return lambda model, _: operator.delitem(*reached(model, path))


def array(path: str, **found):
    """Return a change of the array that the JSON names: of its type or its shape, or all of it."""

    def change(model: dict, tensors: dict) -> None:
        place, last = reached(model, path)
        name = place[last]
        if "dtype" in found:
            tensors[name] = tensors[name].astype(found["dtype"])
        elif "shape" in found:
            tensors[name] = np.zeros(found["shape"], tensors[name].dtype)
        else:
            del tensors[name]

    return change


def instead(op: str, inputs: list[str], **fields: Any):
    """Return a change that puts another operation in the place of number 5."""
    return put("ops.5", {"op": op, "name": "r", "inputs": inputs, "output": "value_5", **fields})


REFUSED = [
    (lambda model, tensors: [], "The model has other fields than about, classes, input, name, ops, output."),
    (drop("name"), "The model has other fields"),
    (put("name", "x" * 401), "Invalid name of the model"),
    (put("output", 3), "Invalid output: 3"),
    (put("about", []), "Invalid about"),
    (put("classes", [1, 2, 3]), "Invalid classes"),
    (put("classes", ["a", "b"]), "2 classes are named. Expected 3"),
    (put("input", {}), "The input has other fields"),
    *((put("input.shape", shape), "Invalid shape of the input")
      for shape in ([], [6, 6, 0], [6, 6, -2], [6, True, 2], [6.0, 6, 2], [1] * 9)),
    (put("input.shape", [2**20, 2**20, 2]), "Expected 268,435,456 entries at most"),
    (put("input.shape", [6, 6]), "Expected 3 axes"),
    (put("input.shape", [6, 6, 3]), "takes 2 channels. Received: 3"),
    (put("ops", []), "Invalid ops"),
    (put("ops.1", []), "Operation 1 has no op, name, inputs or output"),
    (put("ops.1.op", "sing"), "Unknown operation 'sing'. Did you mean 'sign'?"),
    (put("ops.1.op", ["sign"]), "Invalid op of operation 1"),
    (put("ops.1.inputs", "value_0"), "Invalid inputs of sign"),
    (put("ops.1.inputs", [0]), "Invalid input of sign"),
    (put("ops.1.inputs", ["value_5"]), "Input 'value_5' of sign 'sign_1' is not a value before it"),
    (put("ops.1.inputs", ["value_0", "image"]), "sign 'sign_1' has 2 inputs. Expected one"),
    (put("ops.1.output", "value_0"), "Output 'value_0' of sign 'sign_1' exists already"),
    (put("ops.1.threshold", 1), "Unknown field 'threshold' of sign 'sign_1'"),
    (put("output", "image"), "The output 'image' is not a value that an operation gives"),
    (drop("ops.0.kernel"), "kernel of conv2d 'conv2d_0' is missing"),
    (put("ops.0.kernel.encoding", "zip"), "Invalid encoding of kernel of conv2d 'conv2d_0': zip"),
    (drop("ops.0.kernel.values"), "has other fields than"),
    (put("ops.0.kernel.bits", 9), "Invalid bits"),
    (put("ops.0.kernel.bits", 2), "Expected uint8"),
    (put("ops.0.kernel.shape", [3, 3, 8]), "Expected 4 axes"),
    (put("ops.0.kernel.tensor", None), "Invalid tensor of kernel"),
    (put("ops.0.kernel.tensor", "none"), "Array 'none' of kernel of conv2d 'conv2d_0' is not in the file"),
    (array("ops.0.kernel.values", shape=(7,)), "refers to a value that it does not have"),
    (array("ops.0.kernel.values", shape=(9,)), "Expected 1 to 8"),
    (array("ops.0.kernel.values", dtype=np.float64), "is float64 (8,). Expected float32"),
    (put("ops.0.bias.shape", [5]), "Expected float32 (5,)"),
    *((put("ops.0.strides", strides), "Invalid strides of conv2d") for strides in ([1], [0, 1], [2**21, 1], "11")),
    (put("ops.0.padding", "some"), "Unknown padding of conv2d 'conv2d_0' 'some'. Did you mean 'same'?"),
    (lambda model, _: model["ops"][0].update(strides=[2, 2], dilation=[2, 2]), "Expected one of them to be 1"),
    (put("ops.0.dilation", [3, 3]), "The window of conv2d 'conv2d_0' is larger than its input, 6 x 6"),
    (array("ops.2.kernel.tensor", dtype=np.int8), "is int8 (10,). Expected uint8 (10,)"),
    (array("ops.4.thresholds", dtype=np.float32), "are float32 (5,). Expected an int per channel"),
    (array("ops.4.descending", shape=(2,)), "Expected uint8 (1,)"),
    (put("ops.4.inputs", ["value_0"]), "is of kind float. Expected integer sums; use sign"),
    (array("ops.6.kernel.scale", shape=(2,)), "Expected one per channel"),
    (array("ops.7.scale", shape=(1,)), "Expected float32 (3,)"),
    (array("ops.7.shift"), "is not in the file"),
    (put("ops.8.slope", "1"), "Invalid slope"),
    (lambda _, tensors: tensors.update(more=np.zeros(1)), "Array 'more' is used by no operation"),
    (instead("add", ["value_4"]), "has 1 inputs"),
    (instead("add", ["value_4", "value_0"]), "Expected one shape"),
    *((instead("concatenate", ["value_4"] * 2, axis=axis), "not the batch") for axis in (0, -4, 4)),
    (instead("concatenate", ["value_4", "value_0"], axis=3), "to differ along axis 3 only"),
    (instead("reshape", ["value_4"], shape=[21]), "as many"),
    (instead("zero_pad2d", ["value_4"], padding=1), "[[top"),
    (instead("upsample2d", ["value_4"], size=[9**6, 9**6]), "entries at most"),
    (instead("global_max_pool2d", ["image"]), "takes 20"),
]  # fmt: skip


def test_what_does_not_fit_is_refused_in_one_line():
    whole, arrays = described()
    Model(parse_graph(whole), arrays)
    for change, said in REFUSED:
        model, tensors = copy.deepcopy(whole), dict(arrays)
        found = change(model, tensors)
        with pytest.raises(UserError) as caught:
            infer(parse_graph(model if found is None else found), tensors)
        line = str(caught.value)
        assert said in line
        assert "\n" not in line
        assert len(line) < 300


def test_a_sum_that_float32_could_not_hold_is_refused():
    size = 2**24 + 1
    kernel = Encoded("sign", "t", (size, 1))
    ops = (Op("sign", "s", ("x",), "b"), Op("dense", "d", ("b",), "y", {"kernel": kernel}))
    graph = parse_graph(graph_to_json(Graph("n", "x", (size,), "y", ops)))
    with pytest.raises(UserError, match=r"adds up 16,777,217 signs\. Expected 16,777,216 at most"):
        infer(graph, {"t": np.zeros(2**21 + 1, np.uint8)})


def test_json_is_strict_short_and_finite():
    for text in ("[NaN]", "[Infinity]", "[1e999]", "[" * 10**5, "1" * 30, "", b"\xff", "[1,]"):
        with pytest.raises(ValueError):  # noqa: PT011 - whatever it says
            from_json(text)
    assert to_json({"a": [1, 2.5, None], "é": True}) == '{"a":[1,2.5,null],"\\u00e9":true}'
    assert from_json('{"a":[1,2.5,null],"\\u00e9":true}') == {"a": [1, 2.5, None], "é": True}
    assert from_json("[-9223372036854775808, 9223372036854775807]") == [-(2**63), 2**63 - 1]
    with pytest.raises(ValueError, match="Out of range|not JSON compliant"):
        to_json([float("nan")])
