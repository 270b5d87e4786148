"""The fingerprint of the data: equal for equal contents, different wherever something differs."""

from __future__ import annotations

import numpy as np

from hookline.trainer.input.data import Split
from hookline.trainer.input.source import ArraySource
from hookline.trainer.run.checkpoint_files import tensors_digest
from hookline.trainer.run.results import metric_rows
from hookline.trainer.run.resume import SAMPLES, data_fingerprint


def fingerprint(name="train", size=10, rows=None, change=None):
    inputs = np.arange(size * 3, dtype=np.float32).reshape(size, 3)
    if change is not None:
        inputs[change] += 1.0
    source = ArraySource({"inputs": inputs, "targets": np.arange(size) % 4}, lambda batch: batch)
    return data_fingerprint([Split(name, source, np.array(range(size) if rows is None else rows, np.int64))])


def test_other_data_has_another_fingerprint_also_where_it_is_sampled():
    others = [{"change": (4, 2)}, {"rows": [1, 0, *range(2, 10)]}, {"rows": range(9)}, {"size": 11, "rows": range(10)}]
    found = {fingerprint(**other) for other in [*others, {"name": "validation"}, {}]}
    assert len(found) == 6
    assert fingerprint() in found
    size = 100 * SAMPLES
    ends = [None, (0, 0), (size - 1, 2)]
    assert len({fingerprint(size=size, change=change) for change in ends}) == 3


def test_a_digest_distinguishes_names_dtypes_shapes_and_bits():
    base = {"a": np.array([1.0, 2.0], np.float32), "b": np.array(3)}
    assert tensors_digest(base) == tensors_digest(dict(reversed(base.items())))
    changed = [base["a"].astype(np.float64), base["a"][None], np.nextafter(base["a"], np.float32(9)), base["a"] * -1]
    others = [{"a": base["a"], "c": base["b"]}, *({**base, "a": each} for each in changed)]
    zeros = [{"a": np.array([zero], np.float32)} for zero in (0.0, -0.0)]
    assert len({tensors_digest(each) for each in [base, *others, *zeros]}) == 8


def test_rows_hold_metrics_and_the_total_loss_of_each_split_and_objective():
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
