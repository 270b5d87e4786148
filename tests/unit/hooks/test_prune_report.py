"""What the pruning hook says at the end: entries, zeros and bytes."""

from __future__ import annotations

import json
import math

import keras
import numpy as np
import pytest

from hooks.prune import Prune
from hooks.pruning.report import column_bits, csr_bytes
from tests.support.command import run_small
from tests.support.toy import toy_loop, toy_network, values_of


@pytest.mark.parametrize(("columns", "bits"), [(1, 0), (2, 1), (3, 2), (10, 4), (256, 8), (257, 9), (300, 9)])
def test_a_column_index_takes_the_bits_that_tell_columns_apart(columns: int, bits: int):
    assert column_bits(columns) == bits == math.ceil(math.log2(columns))


def test_sparse_bytes_are_values_indices_and_row_pointers():
    kept = 18_816
    assert csr_bytes(784, 300, kept) == 4 * kept + kept * 9 // 8 + 4 * 785
    assert csr_bytes(5, 2, 0) == 24
    assert csr_bytes(1, 3, 1) == math.ceil((32 + 2 + 64) / 8)


def test_the_summary_counts_entries_zeros_and_bytes_of_each_layer():
    network = toy_network(optimizer=keras.optimizers.Adam(0.01, use_ema=True))
    hook = Prune(schedule="one_shot", final_sparsity={"hidden": 0.75, "logits": 0.5})
    hook.name = "prune"
    toy_loop([hook], network=network).run(0, 3)
    summary = json.loads(json.dumps(hook.summary()))
    hidden, logits, total = summary["layers"]
    assert hidden == {
        "layer": "hidden",
        "entries": 48,
        "kept": 12,
        "times_fewer": 4.0,
        "sparsity": 0.75,
        "mask": 0.75,
        "moving_average": 0.75,
        "momentums": hidden["momentums"],
        "velocities": hidden["velocities"],
        "dense_bytes": 192,
        "sparse_bytes": math.ceil((12 * (32 + 3) + 32 * 7) / 8),
    }
    assert (logits["layer"], logits["kept"], logits["times_fewer"]) == ("logits", 12, 2.0)
    assert (total["entries"], total["kept"], total["times_fewer"]) == (72, 24, 3.0)
    assert total == summary["total"]
    assert total["sparse_bytes"] == hidden["sparse_bytes"] + logits["sparse_bytes"]
    assert summary["settled_at"] == 1
    assert summary["schedule"] == "one_shot"


def test_zeros_are_counted_in_the_weights_themselves():
    network = toy_network()
    hook = Prune(layers="hidden", schedule="one_shot", final_sparsity=0.5)
    toy_loop([hook], network=network).run(0, 1)
    kernel = network.variables["toy/hidden/kernel"]
    kernel.assign(np.where(kernel.numpy() == 0, 1e-30, kernel.numpy()))  # as an optimizer that leaks would
    row, _ = hook.summary()["layers"]  # and the network's
    assert (row["sparsity"], row["mask"], row["times_fewer"]) == (0.0, 0.5, 1.0)


def test_the_stored_size_is_sparse_or_dense_whichever_is_smaller():
    network = toy_network()
    hook = Prune(schedule="one_shot", final_sparsity={"hidden": 0.9, "logits": 0.0})
    toy_loop([hook], network=network).run(0, 1)
    bits = hook.stored_bits(values_of(network))
    assert bits["toy/hidden/kernel"] == pytest.approx(8 * csr_bytes(6, 8, 5) / 48)
    assert bits["toy/logits/kernel"] == 32.0


def test_a_convolution_is_stored_by_its_input_rows():
    model = keras.Sequential([keras.Input((6, 6, 2)), keras.layers.Conv2D(5, 3, name="conv")])
    network = toy_network()
    network.model = model
    network.optimizer = keras.optimizers.SGD(0.1)
    network.optimizer.build(model.trainable_variables)
    hook = Prune(final_sparsity=0.5)
    from tests.support.toy import build_context

    hook.build(build_context(network))
    (row,) = hook.summary()["layers"]
    assert row["sparse_bytes"] == csr_bytes(18, 5, 90)


def test_a_run_reports_sparsity_counts_best_from_there_and_ships_fewer_bytes(tmp_path):
    summary = run_small(
        "baseline", "+hooks=prune", "hooks.prune.final_sparsity={dense_1:0.9,dense_2:0.8,logits:0.5}",
        "hooks.prune.end_epoch=1.5", "hooks.prune.frequency=4", run_dir=tmp_path / "run",
    )  # fmt: skip
    pruned = summary["hooks"]["prune"]
    assert [row["layer"] for row in pruned["layers"]] == ["dense_1", "dense_2", "logits", "total"]
    assert [row["sparsity"] for row in pruned["layers"][:3]] == pytest.approx([0.9, 0.8, 0.5], abs=0.002)
    assert summary["best"]["step"] >= pruned["settled_at"] > 0
    assert summary["bytes"]["deployed"] < 0.5 * summary["bytes"]["float32"]
    assert summary["test"]["weights"] == "best"
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert any("sparsity/total" in line for line in lines)


@pytest.mark.parametrize("use_ema", [False, True])
def test_the_moving_average_has_a_column_in_summary_and_table_where_the_optimizer_keeps_one(
    use_ema: bool, tmp_path, capsys
):
    run_small(
        "frozen_mask", "model.units=[8]", f"optimizer.use_ema={str(use_ema).lower()}", "hooks.prune.final_sparsity=0.8",
        "hooks.final_table.mode=plain", run_dir=tmp_path / "run",
    )  # fmt: skip
    pruned = json.loads((tmp_path / "run" / "summary.json").read_text())["hooks"]["prune"]
    for row in (*pruned["layers"], pruned["total"]):
        assert ("moving_average" in row) == use_ema
        assert row.get("moving_average", row["sparsity"]) == row["sparsity"] == row["mask"] == row["momentums"]
    lines = capsys.readouterr().out.splitlines()
    header = lines[lines.index("prune") + 1]
    assert {"sparsity", "mask", "momentums", "velocities"} <= set(header.split())
    assert ("moving average" in header) == use_ema
