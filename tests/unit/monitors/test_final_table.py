from __future__ import annotations

import io
import json
import re
import sys
from types import SimpleNamespace

import pytest

from hooks.monitors.final_table import FinalTable, describe_status, result_lines
from hooks.monitors.progress import Progress
from trainer.errors import UserError
from trainer.order import order_hooks
from trainer.run.control import Report

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_table_holds_metrics_sizes_speed_and_place(make_run, summary, capsys):
    run = make_run()
    FinalTable().on_fit_end(run, summary)
    output = capsys.readouterr().out
    lines = [re.sub(r"\s{2,}", "  ", line).strip() for line in output.splitlines()]
    assert lines[1:] == [
        "bnn: completed after 1,200 steps, 30 epochs",
        "train  validation (best, step 1080)  test (best weights)",
        "accuracy  0.9981  0.9703  0.9722",
        "loss  0.0512  0.1334  0.1111",
        "parameters 93,556 (93,088 trainable)",
        "size  365.45 KiB as float32, 13.19 KiB deployed, 27.7 times smaller",
        "time  1:23 (83.4 s), 12,346 images/s",
        f"run  {run.directory}",
        f"tensorboard --logdir {run.directory}",
    ]


@pytest.mark.parametrize(
    ("share", "advice", "text"),
    [
        (0.434, "Try trainer.placement=host.", "43 % of the training time spent waiting for batches. Try trainer."),
        (0.004, None, "under 1 % of the training time spent waiting for batches"),
        (0.0, None, "0 % of the training time spent waiting for batches"),
    ],
)
def test_the_time_spent_waiting_is_told_with_its_remedy(summary, share, advice, text):
    (line,) = [
        line
        for label, line in result_lines({**summary, "input": {"waiting_share": share, "advice": advice}})
        if label == "input"
    ]
    assert line.startswith(text)
    assert line.endswith(advice or "batches")


def test_what_a_run_cost_is_told_in_seconds_bytes_and_precision(summary):
    cost = {
        "time_to_first_step": {"seconds": 9.25, "import": 6.0, "trace": 2.25, "step": 1.0},
        "peak_memory_bytes": {"host": 3 * 2**30, "device": 2**20},
        "precision": {"compute": "float16", "loss_scale": 16384.0, "overflow_steps": 1},
    }
    lines = dict(result_lines({**summary, **cost}))
    assert lines["first step"] == "after 9.2 s (import 6.0, trace 2.2, step 1.0)"
    assert lines["memory"] == "3.00 GiB on the host, 1.00 MiB on the device at most"
    assert lines["precision"] == "float16, loss scale 16,384, 1 step left out for overflow"


def test_nothing_is_told_of_a_device_that_is_not_there_nor_of_float32(summary):
    cost = {
        "time_to_first_step": None,
        "peak_memory_bytes": {"host": 2**20, "device": None},
        "precision": {"compute": "float32", "loss_scale": None, "overflow_steps": None},
    }
    lines = dict(result_lines({**summary, **cost}))
    assert lines["memory"] == "1.00 MiB on the host at most"
    assert not {"first step", "precision"} & set(lines)
    bfloat16 = {"compute": "bfloat16", "loss_scale": None, "overflow_steps": None}
    assert dict(result_lines({**summary, "precision": bfloat16}))["precision"] == "bfloat16"


def test_a_run_that_took_no_time_says_nothing_of_waiting(summary):
    lines = result_lines({**summary, "input": {"waiting_share": None, "advice": None}})
    assert "input" not in dict(lines)


def test_a_pipe_gets_no_control_characters_and_no_wrapped_line(make_run, summary, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "30")
    run = make_run(directory=tmp_path / ("long_name_" * 20))
    FinalTable().on_fit_end(run, summary)
    output = capsys.readouterr().out
    assert not CONTROL.search(output)
    assert output.isascii()
    assert f"tensorboard --logdir {run.directory}\n" in output


def test_a_path_with_a_space_can_be_pasted(make_run, summary, capsys, tmp_path):
    FinalTable().on_fit_end(make_run(directory=tmp_path / "my runs"), summary)
    assert f"tensorboard --logdir '{tmp_path}/my runs'" in capsys.readouterr().out


def test_a_terminal_gets_a_styled_table(make_run, summary, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    FinalTable().on_fit_end(make_run(), summary)
    assert "\x1b[1m" in stream.getvalue()
    assert "0.9722" in stream.getvalue()
    plain = Terminal()
    monkeypatch.setattr(sys, "stdout", plain)
    FinalTable(mode="plain").on_fit_end(make_run(), summary)
    assert not CONTROL.search(plain.getvalue())


@pytest.mark.parametrize("status", ["stopped", "failed", "interrupted"])
def test_a_run_that_did_not_complete_says_why_and_leaves_out_what_is_missing(make_run, summary, capsys, status):
    parts = {"status": status, "stop_reason": "a good reason", "test": {}}
    best = {"monitor": "metric/accuracy", "value": None, "step": 0, "values": {}}
    FinalTable().on_fit_end(make_run(), summary | parts | {"best": best})
    output = capsys.readouterr().out
    assert f"bnn: {status} (a good reason) after 1,200 steps" in output
    assert re.search(r"accuracy +0\.9981 +- +-", output)
    assert "step 0" not in output
    assert "tensorboard --logdir" in output


def test_a_run_that_failed_before_its_first_report_prints_without_a_table(make_run, summary, capsys):
    nothing = {
        "status": "failed",
        "stop_reason": "boom",
        "steps": 0,
        "epochs": 0.0,
        "final": {},
        "best": {},
        "test": {},
    }
    FinalTable().on_fit_end(make_run(), summary | nothing | {"images_per_second": 0.0})
    output = capsys.readouterr().out
    assert "failed (boom) after 0 steps" in output
    assert "accuracy" not in output
    assert "images/s" not in output


def test_a_bare_summary_still_prints(make_run, capsys):
    FinalTable().on_fit_end(make_run(), {"status": "failed"})
    assert "bnn: failed" in capsys.readouterr().out


def test_a_network_that_ships_as_float_has_one_size(summary):
    lines = dict(result_lines(summary | {"bytes": {"float32": 1024, "deployed": 1024}}))
    assert lines["size"] == "1.00 KiB as float32"


def test_a_reason_of_many_pages_is_cut_to_a_line():
    status = describe_status({"status": "failed", "stop_reason": "x" * 500 + "\nmore\nmore"})
    assert "\n" not in status
    assert status.endswith("xxx...)")
    assert len(status) < 320


def test_the_table_comes_after_the_bar():
    table, progress = FinalTable(), Progress()
    table.name, progress.name = "final_table", "progress"
    table.priority = 0  # the declaration holds whatever the priority
    assert order_hooks([table, progress]) == [progress, table]


def test_a_reader_that_left_does_not_fail_the_run(make_run, summary, monkeypatch):
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sys, "stdout", Gone())
    FinalTable().on_fit_end(make_run(), summary)


def test_bad_arguments_are_named_and_no_state_is_kept():
    with pytest.raises(UserError, match="^Unknown mode 'no'"):
        FinalTable(mode="no")
    assert FinalTable().state_dict() == {"values": []}


def test_a_quiet_table_prints_nothing(make_run, summary, capsys):
    FinalTable(mode="quiet").on_fit_end(make_run(), summary)
    assert capsys.readouterr().out == ""


def held_out(size: int) -> dict:
    return {name: SimpleNamespace(size=size) for name in ("validation", "test")}


def test_an_accuracy_has_no_more_decimals_than_its_split_supports(make_run, summary, capsys):
    summary["best"]["values"] = {"loss/total": 0.1334, "metric/accuracy": 175 / 180, "metric/distance": 0.12345}
    summary["test"] = {"weights": "best", "loss/total": 0.1111, "metric/accuracy": 174 / 180}
    FinalTable(mode="plain").on_fit_end(make_run(held_out=held_out(180)), summary)
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith("accuracy")).split() == [
        "accuracy",
        "0.9981",
        "0.972",
        "0.967",
    ]
    assert next(line for line in lines if line.startswith("distance")).split()[2] == "0.1235"
    assert next(line for line in lines if line.startswith("loss")).split()[2] == "0.1334"


def test_evaluations_that_a_small_split_cannot_tell_apart_are_told_of_also_after_a_resume(make_run, summary, capsys):
    table, run = FinalTable(mode="plain"), make_run(held_out=held_out(180))
    table.on_fit_begin(run)
    for step, count in ((10, 178), (20, 179)):
        report = Report(step, "validation", {"metric/accuracy": count / 180})
        run.best.update(report)
        table.on_evaluation_end(run, report)
    resumed = FinalTable(mode="plain")
    resumed.load_state_dict(json.loads(json.dumps(table.state_dict())))
    run.step = 20
    resumed.on_fit_begin(run)
    resumed.on_evaluation_end(run, Report(30, "validation", {"metric/accuracy": 178 / 180}))
    resumed.on_evaluation_end(run, Report(30, "test", {"metric/accuracy": 178 / 180}))
    resumed.on_fit_end(run, summary)
    assert "2 other evaluations lie as near to the best" in capsys.readouterr().out


def test_a_narrow_terminal_gets_fewer_columns_and_no_cut_names(make_run, summary, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    FinalTable(mode="styled").on_fit_end(make_run(), summary | {"networks": {"model": described()}})
    assert "…" not in sys.stdout.getvalue()
    assert "validation (best" not in sys.stdout.getvalue()


@pytest.mark.parametrize(("steps", "text"), [(0, "0 steps"), (1, "1 step"), (2000, "2,000 steps")])
def test_steps_are_counted_in_words(steps, text):
    assert describe_status({"status": "completed", "steps": steps}) == f"completed after {text}"


def test_layers_that_a_hook_reports_are_printed_as_a_table(make_run, summary, capsys):
    layers = [{"layer": "dense_1", "entries": 235200, "sparsity": 0.92}, {"layer": "logits", "entries": 1000}]
    hooks = {"prune": {"layers": layers}, "bnn_rounding": {"layers": ["dense_1"]}}
    FinalTable(mode="plain").on_fit_end(make_run(), summary | {"hooks": hooks})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    start = lines.index(["prune"])
    assert lines[start + 1 : start + 4] == [
        ["layer", "entries", "sparsity"],
        ["dense_1", "235,200", "0.9200"],
        ["logits", "1,000", "-"],
    ]
    assert ["bnn_rounding"] not in lines


def test_several_networks_have_a_line_for_each_size(summary):
    def network(count, deployed):
        return {"params": {"total": count, "trainable": count}, "bytes": {"float32": 4 * count, "deployed": deployed}}

    one = {**summary, "networks": {"model": network(10, 40)}}
    assert not any("network" in label for label, _ in result_lines(one))
    networks = {"generator_0": network(10, 40), "global": network(1000, 125), "generator_1": network(10, 40)}
    lines = [line for line in result_lines({**summary, "networks": networks}) if "network" in line[0]]
    assert lines == [
        ("networks", "generator_0, generator_1: each 10 parameters, 40 B as float32"),
        ("network", "global: 1,000 parameters, 3.91 KiB as float32, 125 B deployed, 32.0 times smaller"),
    ]


def described(**fields):
    layers = [
        {"layer": "pool", "kind": "MaxPooling2D", "output": [3], "params": 0, "weight_bits": None, "input_bits": None}
        | {"bytes": 0.0, "sparsity": None, "macs": 0},
        {"layer": "dense", "kind": "Dense", "output": [10], "params": 640, "weight_bits": 1.0, "input_bits": 1}
        | {"bytes": 80.0, "sparsity": 0.25, "macs": 640},
    ]
    macs = {"total": 640, "by_precision": {"1-bit x 1-bit": 640}, "uncounted": []}
    parts = {"params": {"total": 640, "trainable": 640}, "bytes": {"float32": 2560, "deployed": 80}}
    return {**parts, "kind": "BNN", "macs": macs, "layers": layers, **fields}


def test_what_a_network_is_made_of_is_printed(make_run, summary, capsys):
    FinalTable(mode="plain").on_fit_end(make_run(), summary | {"networks": {"model": described()}})
    lines = [re.sub(r"\s{2,}", "  ", line).strip() for line in capsys.readouterr().out.splitlines()]
    assert "network  BNN; MACs an example: 640 1-bit x 1-bit" in lines
    start = lines.index("model")
    assert lines[start + 1 : start + 4] == [
        "layer  kind  output  params  weight bits  input bits  zeros  MACs  size",
        "dense  Dense  10  640  1  1  25.0 %  640  80 B",
        "run  " + lines[start + 3].partition("  ")[2],
    ]


def test_sparsity_that_a_hook_tells_is_not_told_twice(make_run, summary, capsys):
    hooks = {"prune": {"layers": [{"layer": "dense", "sparsity": 0.25}]}}
    FinalTable(mode="plain").on_fit_end(make_run(), summary | {"networks": {"model": described()}, "hooks": hooks})
    output = capsys.readouterr().out
    assert "zeros" not in output
    assert "sparsity" in output


def test_networks_that_are_alike_share_a_table_and_a_line(make_run, summary, capsys):
    networks = {"generator_0": described(), "generator_1": described(), "global": described(kind="BWN", layers=[])}
    FinalTable(mode="plain").on_fit_end(make_run(), summary | {"networks": networks})
    lines = capsys.readouterr().out.splitlines()
    assert lines.count("generator_0, generator_1") == 1
    assert sum(line.startswith("network") for line in lines) == 2
    assert any(line.endswith("times smaller; BWN; MACs an example: 640 1-bit x 1-bit") for line in lines)
