import copy
import json
import operator
from typing import Any

import numpy as np

from hookline.deploy.inference.container import PACKED, to_json, write_container
from hookline.deploy.inference.engine import STEPS, Model, load_model
from hookline.deploy.inference.graph import FIELDS, Encoded, Graph, Op, graph_to_json, parse_graph
from tests.support.packed_graphs import GraphBuilder, random_cnn, random_mlp
from tests.support.refusals import assert_refused, refusal


def described() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the JSON and the tensors of a network that has everything that the cases below damage."""
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


def test_graph_round_trips_through_json():
    assert STEPS.keys() == FIELDS.keys()
    for builder in (random_mlp(), random_cnn()):
        graph = builder.graph()
        assert parse_graph(json.loads(to_json(graph_to_json(graph)))) == graph
    made = Graph("n", "x", (3,), "y", (Op("sign", "s", ("x",), "y"),), ("a", "b", "c"), {"run": "r", "step": 3})
    assert parse_graph(json.loads(json.dumps(graph_to_json(made)))) == made


def reached(model: Any, path: str) -> tuple[Any, Any]:
    """Return the container of the last part of a path, and that part."""
    *before, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in before:
        model = model[part]
    return model, last


def put(path: str, value: Any):
    """Return a change that sets a path in the model's JSON to a value."""
    return lambda model, _: operator.setitem(*reached(model, path), value)


def drop(path: str):
    return lambda model, _: operator.delitem(*reached(model, path))


def array(path: str, **found):
    """Return a change of the array that the JSON names: another dtype, another shape, or no array."""

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
    """Return a change that replaces operation 5."""
    return put("ops.5", {"op": op, "name": "r", "inputs": inputs, "output": "value_5", **fields})


REFUSED = [
    (lambda model, tensors: {}, "not a valid packed file: KeyError ('name')"),
    (put("classes", ["a", "b"]), "class names differs from the 3 outputs"),
    *((put("input.shape", shape), "") for shape in ([], [6, 6, 0], [6, 6, -2], ["6", 6, 2], [6, 6])),
    (put("input.shape", [2**20, 2**20, 2]), "Expected 1 to 268,435,456 entries"),
    (put("input.shape", [6, 6, 3]), "takes 2 channels. Received: 3"),
    (put("ops", []), ""),
    (put("ops.1.op", "sing"), "It has the operation 'sing'"),
    (put("ops.1.inputs", ["value_5"]), "value_5"),
    (put("ops.1.inputs", ["value_0", "image"]), ""),
    (put("ops.1.output", "value_0"), "Output 'value_0' of sign 'sign_1' exists already"),
    (put("ops.1.threshold", 1), "It has the operation 'sign' with 'threshold': another version wrote it"),
    (put("output", "none"), "none"),
    (drop("ops.0.kernel"), ""),
    (put("ops.0.kernel.encoding", "zip"), "Expected float32 or float16 (3, 3, 2, 4)"),
    (put("ops.0.kernel.bits", 2), "Expected uint8"),
    (put("ops.0.kernel.shape", [3, 3, 8]), ""),
    (put("ops.0.kernel.tensor", "none"), "none"),
    (array("ops.0.kernel.values", shape=(7,)), "out of bounds"),
    (put("ops.0.bias.shape", [5]), "The bias of conv2d 'conv2d_0' has the wrong shape. Expected (4,)"),
    (put("ops.0.dilation", [3, 3]), "Values of conv2d 'conv2d_0' have shape (0, 0, 4)"),
    (array("ops.2.kernel.tensor", dtype=np.int8), "is int8 (10,). Expected uint8 (10,)"),
    (array("ops.4.thresholds", dtype=np.float32), "is float32 (5,). Expected int8 or int16 or int32 (5,)"),
    (array("ops.4.descending", shape=(2,)), "Expected uint8 (1,)"),
    (put("ops.4.inputs", ["value_0"]), "is of kind float. Expected integer sums; use sign"),
    (array("ops.6.kernel.scale", shape=(2,)), "Expected float32 (1,)"),
    (array("ops.7.scale", shape=(1,)), "Expected float32 (3,)"),
    (put("ops.8.function", "softplux"), "softplux"),
    (instead("add", ["value_4", "value_0"]), "broadcast"),
    *((instead("concatenate", ["value_4"] * 2, axis=axis), "axis") for axis in (0, -4, 4)),
    (instead("concatenate", ["value_4", "value_0"], axis=3), "match exactly"),
    (instead("reshape", ["value_4"], shape=[21]), "Expected the same number of entries"),
    (instead("upsample2d", ["value_4"], size=[9**6, 9**6]), "entries"),
    (instead("global_max_pool2d", ["image"]), "takes 20"),
]  # fmt: skip


def test_invalid_graphs_and_tensors_are_refused(tmp_path):
    whole, arrays = described()
    path = tmp_path / "model"
    Model(parse_graph(whole), arrays)
    for change, said in REFUSED:
        model, tensors = copy.deepcopy(whole), dict(arrays)
        found = change(model, tensors)
        write_container(path, PACKED, model if found is None else {}, tensors)
        line = refusal(load_model, path)
        assert said in line
        assert len(line) < 300 + len(str(path))


def test_sum_too_large_to_be_exact_in_float32_is_refused():
    size = 2**24 + 1
    kernel = Encoded("sign", "t", (size, 1))
    ops = (Op("sign", "s", ("x",), "b"), Op("dense", "d", ("b",), "y", {"kernel": kernel}))
    graph = parse_graph(graph_to_json(Graph("n", "x", (size,), "y", ops)))
    message = r"adds up 16,777,217 signs\. Expected 16,777,216 at most"
    assert_refused(message, Model, graph, {"t": np.zeros(2**21 + 1, np.uint8)})
