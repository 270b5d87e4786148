"""The scan of each layer's sensitivity, and what it suggests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hooks.pruning.sensitivity import Scan, pruned, scan_layers
from hooks.pruning.targets import select_kernels
from scripts.sensitivity import Options, main, parse
from tests.support.command import run_small
from tests.support.toy import toy_network
from trainer.errors import UserError

SCAN = Scan(
    baseline=0.9,
    entries={"first": 100, "last": 20},
    values={"first": {0.5: 0.9, 0.8: 0.89, 0.9: 0.6}, "last": {0.5: 0.85, 0.8: 0.91, 0.9: 0.5}},
    smaller_is_better=False,
)


def test_the_largest_sparsity_within_the_tolerance_is_suggested():
    assert SCAN.suggest(0.01) == {"first": 0.8, "last": 0.0}
    assert SCAN.suggest(0.05) == {"first": 0.8, "last": 0.8}
    assert SCAN.suggest(1.0) == {"first": 0.9, "last": 0.9}
    assert SCAN.total({"first": 0.8, "last": 0.5}) == pytest.approx(90 / 120)


def test_a_larger_sparsity_behind_one_that_fails_is_not_suggested():
    assert SCAN.values["last"][0.8] > SCAN.baseline
    assert SCAN.suggest(0.01)["last"] == 0.0


def test_a_target_is_reached_at_the_smallest_tolerance():
    tolerance, suggested = SCAN.reach(0.6)
    assert (tolerance, suggested) == (pytest.approx(0.01), {"first": 0.8, "last": 0.0})
    assert SCAN.reach(0.8)[1] == {"first": 0.8, "last": 0.8}
    assert SCAN.reach(0.95) is None
    assert SCAN.reach(0.0) == (0.0, {"first": 0.5, "last": 0.0})


def test_of_a_loss_smaller_is_better():
    scan = Scan(0.3, {"first": 10}, {"first": {0.5: 0.35, 0.9: 2.0}}, smaller_is_better=True)
    assert scan.loss("first", 0.9) == pytest.approx(1.7)
    assert scan.suggest(0.1) == {"first": 0.5}
    assert scan.suggest(0.01) == {"first": 0.0}


def test_a_layer_is_pruned_alone_and_put_back_even_when_the_evaluation_fails():
    network = toy_network()
    kernels = select_kernels(network, "*")
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
    for kernel, values in zip(kernels, before, strict=True):
        np.testing.assert_array_equal(kernel.variable.numpy(), values)


def test_the_scan_evaluates_each_layer_at_each_sparsity():
    network = toy_network()
    kernels = select_kernels(network, "*")

    def zeros() -> float:
        return float(sum((kernel.variable.numpy() == 0).sum() for kernel in kernels))

    scan = scan_layers(kernels, [0.25, 0.5], zeros, smaller_is_better=True)
    assert scan.values == {"hidden": {0.25: 12.0, 0.5: 24.0}, "logits": {0.25: 6.0, 0.5: 12.0}}
    assert (scan.baseline, scan.entries) == (0.0, {"hidden": 48, "logits": 24})


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("sensitivity") / "run"
    run_small("baseline", run_dir=directory)
    return directory


def test_the_command_writes_what_it_measured(run: Path, capsys):
    summary = json.loads((run / "summary.json").read_text())
    assert main([f"run={run}", "sparsities=[0.9,0.5]", "tolerance=0.2", "target=0.6"]) == 0
    found = json.loads((run / "sensitivity.json").read_text())
    best = summary["best"]["values"]["metric/accuracy"]
    assert found["baseline"] == pytest.approx(best)
    assert [row["layer"] for row in found["layers"]] == ["dense_1", "dense_2", "logits"]
    assert all(list(row["values"]) == ["0.5", "0.9"] for row in found["layers"])
    assert all(row["values"]["0.9"] < best for row in found["layers"])
    assert set(found["suggested"].values()) <= {0.0, 0.5, 0.9}
    assert found["total_for_target"] >= 0.6
    output = capsys.readouterr().out
    assert f"unpruned {best:.4f}" in output
    assert "tolerance 0.2: final_sparsity={dense_1:" in output


def test_the_run_of_a_hook_with_state_is_restored_with_its_masks(tmp_path):
    directory = tmp_path / "run"
    summary = run_small(
        "baseline", "+hooks=prune", "hooks.prune.schedule=one_shot", "hooks.prune.final_sparsity=0.6",
        run_dir=directory,
    )  # fmt: skip
    assert main([f"run={directory}", "sparsities=[0.3,0.6]", "layers=dense_*"]) == 0
    found = json.loads((directory / "sensitivity.json").read_text())
    best = summary["best"]["values"]["metric/accuracy"]
    assert found["baseline"] == pytest.approx(best)
    # What is pruned to 0.6 already loses nothing up to there.
    assert all(value == pytest.approx(best) for row in found["layers"] for value in row["values"].values())
    assert found["suggested"] == {"dense_1": 0.6, "dense_2": 0.6}


def test_of_a_run_with_averages_the_weights_themselves_are_scanned(run: Path, tmp_path):
    averaged = tmp_path / "run"
    run_small("baseline", "+hooks=ema", run_dir=averaged)
    found = []
    for directory in (run, averaged):
        assert json.loads((directory / "summary.json").read_text())["best"]["step"] == 20
        assert main([f"run={directory}", "sparsities=[0.5,0.9]"]) == 0
        found.append(json.loads((directory / "sensitivity.json").read_text()))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "No run was given."),
        (["rn=a"], "Unknown option 'rn'. Did you mean 'run'?"),
        (["run"], "'run' received. Expected run=<value>, once."),
        (["run=a", "run=b"], "'run=b' received. Expected run=<value>, once."),
        (["run=a", "sparsities=[0.5,1.5]"], "Invalid sparsities: [0.5, 1.5]."),
        (["run=a", "sparsities=[]"], "Invalid sparsities: []."),
        (["run=a", "sparsities=0.5"], "Invalid sparsities: 0.5."),
        (["run=a", "sparsities=[0.5"], "is no value."),
        (["run=a", "tolerance=-1"], "Invalid tolerance: -1."),
        (["run=a", "tolerance=.nan"], "Invalid tolerance: nan."),
        (["run=a", "tolerance=.inf"], "Invalid tolerance: inf."),
        (["run=a", "layers=3"], "Invalid layers: 3. Expected patterns, such as * or [fc1,fc2]."),
        (["run=a", "layers=[fc1,2]"], "Invalid layers: ['fc1', 2]."),
        (["run=a", "target=2"], "Invalid target: 2."),
    ],
)
def test_a_wrong_command_line_is_one_clear_line(arguments, message):
    with pytest.raises(UserError) as error:
        parse(arguments)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run={missing}"], "has no config.yaml that can be read. Expected a run directory."),
        (["run={run}", "layers=dense_9"], "The pattern 'dense_9' matches no kernel layer."),
        (["run={run}", "metric=metric/acuracy"], "Unknown metric 'metric/acuracy'. Did you mean 'metric/accuracy'?"),
        (["run={run}", "network=modle"], "Unknown network 'modle'. Did you mean 'model'?"),
    ],
)
def test_mistakes_end_in_one_line_and_exit_code_2(arguments, message, run: Path, tmp_path, capsys):
    arguments = [argument.format(run=run, missing=tmp_path / "missing") for argument in arguments]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_config_that_is_none_is_refused(tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("[1, 2]\n")
    assert main([f"run={tmp_path}"]) == 2
    assert "is not the config of a run" in capsys.readouterr().err


def test_help_needs_no_run(capsys):
    assert main(["--help"]) == 0
    output = capsys.readouterr().out
    assert all(f"\n  {name} " in output for name in vars(Options()))
