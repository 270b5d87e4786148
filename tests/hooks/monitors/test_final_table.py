import io
import re
import shlex

from rich.console import Console

from hookline.hooks.monitors.console import TextTable, show
from hookline.hooks.monitors.final_table import COLUMNS, LEFT_OUT_FIRST, FinalTable

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


def printed(run, summary, capsys, mode="plain"):
    FinalTable(mode=mode).on_fit_end(run, summary)
    return capsys.readouterr().out


def test_table_shows_metrics_sizes_speed_and_run_directory(make_run, summary, capsys):
    run = make_run()
    summary["input"] = {"waiting_share": 0.434, "advice": "Try it."}
    summary["time_to_first_step"] = {"seconds": 9.25, "import": 6.0, "trace": 2.25, "step": 1.0}
    summary["peak_memory_bytes"] = {"host": 3 * 2**30, "device": 2**20}
    summary["precision"] = {"compute": "float16", "loss_scale": 16384.0, "overflow_steps": 1}
    lines = {" ".join(line.split()) for line in printed(run, summary, capsys).splitlines()}
    assert lines >= {
        "bnn: completed after 1,200 steps, 30 epochs",
        "train validation test",
        "accuracy 0.9981 0.9703 0.9722",
        "loss 0.0512 0.1334 0.1111",
        "validation best at step 1080",
        "test with the best weights",
        "parameters 93,556 (93,088 trainable)",
        "size 365.45 KiB as float32, 13.19 KiB deployed, 27.7 times smaller",
        "time 1:23 (83.4 s), 12,346 examples/s",
        "input 43 % of the training time spent waiting for batches. Try it.",
        "first step after 9.2 s (import 6.0, trace 2.2, step 1.0)",
        "memory 3.00 GiB on the host, 1.00 MiB on the device at most",
        "precision float16, loss scale 16,384, 1 step left out for overflow",
        f"run {run.directory}",
        f"tensorboard --logdir {shlex.quote(str(run.directory))}",
    }


def test_piped_output_has_no_control_characters_or_wrapped_lines(make_run, summary, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "30")
    run = make_run(directory=tmp_path / ("long name_" * 20))
    output = printed(run, summary, capsys)
    assert output.isascii()
    assert not CONTROL.search(output)
    assert f"tensorboard --logdir '{run.directory}'\n" in output  # can be pasted
    assert printed(run, summary, capsys, "quiet") == ""


def test_narrow_terminal_drops_columns_and_never_truncates_numbers():
    sizes = ["12,345,678", "32", "1", "91.7 %", "9,876,543,210", "47.09 MiB"]
    rows = [[f"block_{number}_conv", "SeparableConv2D", "32x32x128", *sizes] for number in (1, 2)]
    for width, least, terminal in ((40, 3, 1), (60, 4, 1), (80, 6, 1), (100, 8, 1), (200, 9, 1), (40, 9, 0)):
        stream = io.StringIO()
        console = Console(file=stream, width=width, height=99, force_terminal=bool(terminal), color_system=None)
        show(console, TextTable("model", tuple(COLUMNS), rows, LEFT_OUT_FIRST))
        text = stream.getvalue()
        dropped = re.findall(r"Not shown for lack of room: (.*)\.", " ".join(text.split()))
        shown = [name for name in COLUMNS if name not in ", ".join(dropped).split(", ")]
        assert len(shown) >= least
        assert "\u2026" not in text
        assert not terminal or all(len(line) <= width for line in text.splitlines())
        for row in rows:
            assert all(
                text.count(cell) >= len(rows) for name, cell in zip(COLUMNS, row, strict=True) if name in shown[1:]
            )
            assert row[0] in text
        show(console, TextTable("kept", ("name", "value", "x" * 300), [["one", "-", "2"]]))
        assert not terminal or "value" not in stream.getvalue().partition("kept")[2]  # an empty cell gets no line


def test_failed_run_shows_its_stop_reason(make_run, summary, capsys):
    best = {"monitor": "metric/accuracy", "value": None, "step": 0, "values": {}}
    parts = {"status": "failed", "stop_reason": "x" * 500 + "\nmore", "test": {}, "best": best}
    output = printed(make_run(), summary | parts, capsys)
    assert re.search(r"bnn: failed \(x+\.\.\.\) after 1,200 steps", output)
    assert re.search(r"accuracy +0\.9981 +- +-", output)
    assert "step 0" not in output
    assert "accuracy" not in printed(make_run(), summary | parts | {"final": {}}, capsys)
    assert "bnn: failed" in printed(make_run(), {"status": "failed"}, capsys)
