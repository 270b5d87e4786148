"""The sensitivity scan of each layer, and the sparsities that it suggests."""

import json

import numpy as np
import pytest

from hookline.hooks.kernels import select_kernels
from hookline.hooks.pruning.sensitivity import Scan, kept_from_zero, pruned
from hookline.scripts.sensitivity import main, measure, parse
from tests.support.command import run_small
from tests.support.refusals import assert_refused
from tests.support.toy import toy_network

SCAN = Scan(
    baseline=0.9,
    entries={"first": 100, "last": 20},
    values={"first": {0.5: 0.9, 0.8: 0.89, 0.9: 0.6}, "last": {0.5: 0.85, 0.8: 0.91, 0.9: 0.5}},
    smaller_is_better=False,
)


def test_scan_suggests_the_largest_sparsity_within_the_tolerance():
    assert SCAN.suggest(0.01) == {"first": 0.8, "last": 0.0}
    assert SCAN.suggest(0.05) == {"first": 0.8, "last": 0.8}
    assert SCAN.suggest(1.0) == {"first": 0.9, "last": 0.9}
    assert SCAN.total({"first": 0.8, "last": 0.5}) == pytest.approx(90 / 120)
    assert SCAN.reach(0.6) == (pytest.approx(0.01), {"first": 0.8, "last": 0.0})
    assert SCAN.reach(0.8)[1] == {"first": 0.8, "last": 0.8}
    assert SCAN.reach(0.95) is None
    loss = Scan(0.3, {"first": 10}, {"first": {0.5: 0.35, 0.9: 2.0}}, smaller_is_better=True)
    assert loss.loss("first", 0.9) == pytest.approx(1.7)
    assert [loss.suggest(tolerance)["first"] for tolerance in (0.1, 0.01)] == [0.5, 0.0]


def test_one_layer_is_pruned_at_a_time_and_restored_after_a_failure():
    network = toy_network()
    kernels = select_kernels(network, "*", doing="pruned")
    before = [kernel.variable.numpy() for kernel in kernels]

    def failing() -> None:
        with pruned(kernels[:1], 0.75):
            values = kernels[0].variable.numpy()
            assert (values != 0).sum() == 12
            assert np.abs(values[values != 0]).min() >= np.sort(np.abs(before[0]).ravel())[35]
            assert (kernels[1].variable.numpy() == before[1]).all()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        failing()
    shipped = {each.name: each.variable for each in kernels}
    assert kept_from_zero(kernels, lambda: {name: np.asarray(each) for name, each in shipped.items()}) == []
    signs = {kernels[0].name: np.ones_like(before[0])}
    assert kept_from_zero(kernels[:1], lambda: signs) == [kernels[0].layer]
    for kernel, values in zip(kernels, before, strict=True):
        np.testing.assert_array_equal(kernel.variable.numpy(), values)


def test_command_scans_the_raw_weights_of_a_run_with_averages(tmp_path, capsys):
    run = tmp_path / "run"
    best = run_small("baseline", "+hooks=ema", "hooks.ema.evaluate=false", run_dir=run)["best"]
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("evaluate: false", "evaluate: true"))  # use averages
    assert config.count("evaluate: false") == 1
    assert main([f"run={run}", "sparsities=[0.9,0.5]", "tolerance=0.2", "target=0.6"]) == 0
    found = json.loads((run / "sensitivity.json").read_text())
    assert found["baseline"] == pytest.approx(best["values"]["metric/accuracy"])
    assert [row["layer"] for row in found["layers"]] == ["dense_1", "dense_2", "logits"]
    assert all(row["values"]["0.9"] < found["baseline"] for row in found["layers"])
    assert found["total_for_target"] >= 0.6
    assert main([f"run={tmp_path / 'missing'}"]) == main([f"run={run}", "layers=dense_9"]) == 2
    assert "dense_9" in capsys.readouterr().err
    (run / "config.yaml").write_text(config.replace("test_fraction: 0.2", "test_fraction: 0.3"))
    assert_refused("has changed since", measure, parse([f"run={run}"]))


def test_direction_follows_the_error_metric_or_monitor_mode(tmp_path):
    run, own = tmp_path / "run", "trainer.monitor=metric/R2Score trainer.monitor_mode=min task.metrics=[mae,R2Score]"
    run_small("regression", *own.split(), run_dir=run)
    for name in ("mae", "R2Score"):
        assert measure(parse([f"run={run}", f"metric=metric/{name}"])).smaller_is_better


def test_invalid_arguments_are_named_in_the_error():
    for name, value in (("sparsities", "[0.5,1.5]"), ("target", "2")):
        assert_refused(name, parse, ["run=a", f"{name}={value}"])
