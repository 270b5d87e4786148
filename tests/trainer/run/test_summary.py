"""summary.json: stable keys, valid JSON; the layers of a network add up to its size, and count each product once."""

import json
import math

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import layers

from hookline.recipes.models.cnn import larq_tutorial_cnn
from hookline.trainer.graph import graph_calls
from hookline.trainer.hook import Bits
from hookline.trainer.network import Network
from hookline.trainer.run.control import Best, Journal
from hookline.trainer.run.results import metric_rows
from hookline.trainer.run.summary import build_summary, count_macs, measure_size, summarize_network, write_summary
from hookline.trainer.run.times import HOOKS, Times
from tests.support.runs import toy_run
from tests.support.toy import StatelessHook
from tests.trainer.run.test_run import Diary

KEYS = (
    "recipe status stop_reason steps epochs seconds images_per_second final best test hooks params bytes networks "
    "run_dir input digest resumed_at rolled_back started_from warnings time_to_first_step peak_memory_bytes "
    "precision replicas"
)


class Raising(StatelessHook):
    def summary(self):
        raise RuntimeError("no summary")

    def shipped_bits(self, shipped):
        return Bits({next(iter(shipped)): "four"})


def test_summary_has_all_keys_and_omits_failed_hook_results(tmp_path):
    probe = Raising("probe")
    run = toy_run(tmp_path, [Diary(), probe], [probe])
    run.best = Best("metric/accuracy", "max", 0.97, 6, values={"metric/accuracy": 0.97})
    run.step, run.journal = 6, Journal(resumed_at=[2], final={"loss/total": float("nan")})
    run.times = Times(train_seconds=5.0, timed_steps=50, first_step_seconds=1.0, before=60.0)
    run.times.spent[HOOKS + "diary"] = 0.25
    run.times.start["step"] = 3.5
    test = {"weights": "best", "metric/accuracy": 0.96}
    with pytest.warns(UserWarning, match="What the hook 'probe' returns from") as caught:
        summary = build_summary(run, {"status": "completed", "stop_reason": None, "test": test, "digest": "0a"})
    lines = sorted(str(each.message).partition(" is left out (")[0] for each in caught)
    assert lines == [f"What the hook 'probe' returns from {stage}" for stage in ("shipped_bits", "summary")]
    assert set(summary) == set(KEYS.split())
    plain = {"epochs": 1.5, "images_per_second": 160.0, "steps": 6, "digest": "0a", "test": test, "resumed_at": [2]}
    assert {key: summary[key] for key in plain} == plain
    assert summary["seconds"] >= 60.0
    best = {"monitor": "metric/accuracy", "mode": "max", "value": 0.97, "step": 6, "values": run.best.values}
    assert (summary["best"], summary["time_to_first_step"]) == (best, {"seconds": 3.5, "step": 3.5})
    assert (summary["hooks"], summary["replicas"]["count"]) == ({"diary": {"host_seconds": 0.25}, "probe": {}}, 1)
    network = summary["networks"]["model"]
    assert (network["params"], network["bytes"]) == (summary["params"], summary["bytes"])
    assert {"layer", "macs", "output"} <= network["layers"][0].keys()
    write_summary(tmp_path, summary)
    read = json.loads((tmp_path / "summary.json").read_text(), parse_constant=lambda name: 1 / 0)
    assert (read["final"], read["test"]) == ({"loss/total": None}, test)
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def of(model):
    return Network("model", model, keras.optimizers.SGD())


def network(*stack, shape=(6, 6, 2)):
    return of(keras.Sequential([keras.Input(shape), *stack], name="net"))


def kernels(own):
    return [name for name in own.weights if name.endswith("kernel")]


def shipped(own):
    return {name: weight.numpy() for name, weight in own.weights.items()}


def rows(summary):
    return {row["layer"]: row for row in summary["layers"]}


def test_larq_tutorial_network_matches_the_summary_of_larq():
    """13.19 KiB, 2,599,552 binary and 194,688 32-bit multiply-accumulates: the table of Larq's MNIST tutorial."""
    own = of(larq_tutorial_cnn((28, 28, 1), 10))
    binary = dict.fromkeys(kernels(own), 1)
    inputs = dict.fromkeys(("conv_2", "conv_3", "dense_1", "logits"), 1)
    found = summarize_network(own, Bits(binary, binary, inputs), shipped(own))
    macs = {"conv_1": 26 * 26 * 32 * 3 * 3 * 1, "conv_2": 11 * 11 * 64 * 3 * 3 * 32, "conv_3": 3 * 3 * 64 * 3 * 3 * 64}
    by_hand = {**macs, "dense_1": 576 * 64, "logits": 64 * 10}
    assert {name: row["macs"] for name, row in rows(found).items() if row["macs"]} == by_hand
    assert found["macs"]["by_precision"] == {"1-bit x 1-bit": 2_599_552, "32-bit x 1-bit": 194_688}
    assert (found["kind"], f"{found['bytes']['deployed'] / 1024:.2f}") == ("BNN", "13.19")
    assert (rows(found)["batch_norm_2"]["bytes"], rows(found)["conv_2"]["output"]) == (64 * 2 * 4, [11, 11, 64])


@settings(max_examples=15, deadline=None)
@given(
    units=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    bits=st.lists(st.sampled_from([1.0, 1.5, 3.3, 5.0, 32.0]), min_size=4, max_size=4),
)
def test_layer_rows_add_up_to_the_network_size_for_any_bits(units, bits):
    stack = [layers.Flatten()]
    for size in units:
        stack += [layers.Dense(size), layers.BatchNormalization(), layers.Dropout(0.1)]
    own = network(*stack)
    stored = dict(zip(kernels(own), bits, strict=False))
    found = summarize_network(own, Bits(stored), {})
    assert found.items() >= measure_size([own], {"model": Bits(stored)}).items()
    assert sum(row["params"] for row in found["layers"]) == found["params"]["total"]
    assert math.ceil(sum(row["bytes"] * 8 for row in found["layers"]) / 8) == found["bytes"]["deployed"]
    assert sum(row["macs"] for row in found["layers"]) == found["macs"]["total"]


def test_network_kind_follows_its_bits_and_sparsity_counts_zeros():
    own = network(layers.Flatten(), layers.Dense(4, name="a"), layers.Dense(3, name="b"))
    for weights, inputs, kind in ((1, 1, "BNN"), (1, 32, "BWN"), (32, 1, "BAN"), (5, 32, "quantized")):
        bits = {name: weights for name in kernels(own) if name.endswith("b/kernel")}
        found = summarize_network(own, Bits({}, bits, {"b": inputs}), {})
        product = f"{inputs}-bit x {weights}-bit"
        assert found["kind"] == kind
        assert found["macs"]["by_precision"] == {"float32": 72 * 4, product: 12}
    values = shipped(own)
    values[kernels(own)[0]][:36] = 0.0
    found = summarize_network(own, Bits(), values)
    assert (found["kind"], rows(found)["a"]["sparsity"]) == ("full precision", 0.5)


def test_layer_called_twice_counts_macs_twice_and_params_once():
    inputs, dense = keras.Input((4,)), layers.Dense(4, name="dense")
    row = rows(summarize_network(of(keras.Model(inputs, dense(dense(inputs)))), Bits(), {}))["dense"]
    assert (row["macs"], row["params"]) == (2 * 16, 20)
    body = keras.Sequential([keras.Input((4,)), layers.Dense(4, name="inner")], name="body")
    found = rows(summarize_network(of(keras.Model(inputs, body(body(inputs)))), Bits(), {}))
    assert {name: row["macs"] for name, row in found.items()} == {"body/inner": 32}


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.body = keras.Sequential([layers.Dense(5, name="inner")], name="body")
        self.head = layers.Dense(3, name="head")
        self.factor = self.add_weight(shape=(), name="factor")

    def call(self, inputs):
        return self.head(keras.ops.relu(self.body(inputs))) * self.factor


def test_subclassed_model_reports_weights_and_leaves_macs_uncounted():
    model = Subclassed()
    model(np.zeros((1, 4), np.float32))
    own = of(model)
    found = summarize_network(own, Bits(), shipped(own))
    assert found.items() >= measure_size([own], {"model": Bits()}).items()
    assert {name: row["params"] for name, row in rows(found).items()} == {model.name: 1, "body/inner": 25, "head": 18}
    assert {row["output"] is None for row in rows(found).values()} == {True}
    assert found["macs"] == {"total": 0, "by_precision": {}, "uncounted": ["body/inner", "head"]}
    own = network(layers.GRU(4, name="gru"), shape=(5, 3))  # whose bias, [2, 12], contains zeros
    bits = Bits(dict.fromkeys(kernels(own), 5.0))
    found = summarize_network(own, bits, shipped(own))
    assert "gru" in found["macs"]["uncounted"]
    assert (rows(found)["gru/gru_cell"]["weight_bits"], rows(found)["gru/gru_cell"]["sparsity"]) == (5.0, 0.0)
    assert found.items() >= measure_size([own], {"model": bits}).items()


def counts(layer, *shape):
    inputs = keras.Input(shape)
    (call,) = graph_calls(keras.Model(inputs, layer(inputs)))
    return count_macs(call)


def total(layer, *shape):
    return sum(counts(layer, *shape).values())


def sum_over_ones(layer, *shape):
    """Return the summed outputs for inputs and kernels of ones: without padding, each product adds one."""
    for weight in layer.weights:
        weight.assign(np.ones(weight.shape) if len(weight.shape) > 1 else np.zeros(weight.shape))
    return round(float(np.sum(layer(np.ones((1, *shape), np.float32)))))


def test_macs_count_every_product_once():
    for layer, shape in (
        (layers.Dense(7), (4, 3, 5)),
        (layers.Conv1D(4, 3, strides=2), (9, 2)),
        (layers.Conv2D(6, 3, strides=2, groups=2), (7, 8, 4)),
        (layers.Conv2D(2, 2, dilation_rate=2), (6, 7, 3)),
        (layers.Conv3D(2, 2), (4, 3, 5, 2)),
        (layers.DepthwiseConv2D(3, strides=2, depth_multiplier=2), (7, 6, 3)),
        (layers.Conv1DTranspose(3, 3, strides=2), (5, 2)),
        (layers.EinsumDense("abc,cde->abde", output_shape=(4, 2, 6)), (4, 3)),
        (layers.EinsumDense("ab,bc->ac", output_shape=6, bias_axes="c"), (4,)),
    ):
        assert total(layer, *shape) == sum_over_ones(layer, *shape)


def test_macs_count_padding_but_not_outputs_skipped_by_strides():
    assert total(layers.Conv2D(8, 3, padding="same"), 10, 10, 4) == 10 * 10 * 8 * 9 * 4
    assert total(layers.Conv2D(8, 3, padding="same", strides=2), 9, 10, 4) == 5 * 5 * 8 * 9 * 4
    assert total(layers.Conv2D(8, 3), 10, 10, 4) == 8 * 8 * 8 * 9 * 4
    layer = layers.SeparableConv2D(6, 3, depth_multiplier=2)
    found, both = counts(layer, 8, 8, 3), (6 * 6 * (3 * 2) * 9, 6 * 6 * 6 * (3 * 2))
    assert found == dict(zip((id(layer.depthwise_kernel), id(layer.pointwise_kernel)), both, strict=True))


def test_macs_of_unknown_layers_are_not_counted():
    assert counts(layers.BatchNormalization(), 8, 8, 3) == counts(layers.Embedding(10, 4), 6) == {}
    for layer in (layers.LSTM(4), layers.Bidirectional(layers.GRU(4)), layers.TimeDistributed(layers.Dense(2))):
        assert counts(layer, 5, 3) is None
    assert counts(layers.Conv2D(2, 3), None, None, 3) is None


def test_metric_rows_list_metrics_and_total_loss_per_split_and_objective():
    summary = {
        "final": {"loss/total": 0.0512, "loss/center": 0.01, "metric/accuracy": 0.9981, "opt/learning_rate": 0.001},
        "best": {"step": 1080, "values": {"loss/total": 0.1334, "metric/accuracy": 0.9703}},
        "test": {"weights": "best", "loss/total": 0.1111, "metric/accuracy": 0.9722},
    }
    assert metric_rows(summary) == [("accuracy", 0.9981, 0.9703, 0.9722), ("loss", 0.0512, 0.1334, 0.1111)]
    failed = summary | {"best": {"value": None, "values": {}}, "test": {}}
    assert metric_rows(failed) == [("accuracy", 0.9981, None, None), ("loss", 0.0512, None, None)]
    assert metric_rows({"status": "failed"}) == []
    final = {"g/loss/total": 1.0, "g/loss/gan": 1.0, "d/loss/total": 2.0, "g/opt/rate": 3.0}
    rows = metric_rows({"final": final, "test": {"d/loss/total": 4.0, "g/metric/modes": 8.0}})
    assert rows == [("g/modes", None, None, 8.0), ("g/loss", 1.0, None, None), ("d/loss", 2.0, None, 4.0)]
