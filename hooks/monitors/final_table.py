"""The table at the end of a run."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hookline.hooks.monitors.advice import loss_monitor
from hookline.hooks.monitors.console import AUTO, PLAIN, QUIET, open_console
from hookline.hooks.monitors.tables import layer_tables, metric_table, network_tables, show
from hookline.hooks.options import check_choice
from hookline.trainer.hook import HostHook
from hookline.trainer.run.results import format_bytes, format_seconds, format_share, is_share_of, short_name

if TYPE_CHECKING:
    from hookline.trainer.run.control import Report
    from hookline.trainer.run.run import Run

MODES = (AUTO, "styled", PLAIN, QUIET)
MOST_ROWS = 16
"""Layers that the terminal shows of a network; those with most bytes."""
REASON_LENGTH = 300


class FinalTable(HostHook):
    """Print metrics of train, validation and test, parameters, sizes, layers, speed, status and where the run lies.

    It prints the table for stopped and failed runs too, with dashes for missing values. No number is truncated: on a
    narrow terminal the table has fewer columns, or a line for each value.

    Group:
        monitor

    State:
        values: the monitor's value at each evaluation that counted.

    Cost:
        Once, at the end.

    Pitfalls:
        tests/hooks/monitors/test_final_table.py: a pipe gets no control characters, no path is split over two lines,
            and no number is truncated at any width.

    Example:
        python train.py recipe=bnn hooks.final_table.mode=plain
    """

    after = ("progress",)  # its bar releases the terminal first
    priority = 100

    def __init__(self, *, mode: str = AUTO) -> None:
        """Set up the table.

        Args:
            mode: "styled" for a terminal's text, "plain" for text without control characters, "quiet" for none; "auto"
                decides by the output.
        """
        self._mode = check_choice("mode", mode, MODES)
        self._values: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        """Return the monitor's value at each evaluation that counted; all else comes from the summary."""
        return {"values": list(self._values)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._values = list(state.get("values", ()))  # older runs have none

    def on_fit_begin(self, run: Run) -> None:
        if not run.step:
            self._values = []  # of an earlier fit

    def on_evaluation_end(self, run: Run, report: Report) -> None:
        if report.split == "validation" and report.step >= run.best.since:
            self._values.append(report.values[run.best.monitor])

    def on_fit_end(self, run: Run, summary: dict[str, Any]) -> None:
        console = open_console(self._mode)
        console.print()
        title = f"{run.recipe}: {describe_status(summary)}"
        show(console, metric_table(title, summary, {name: each.split.size for name, each in run.held_out.items()}))
        for label, text in [*self._held_out_lines(run, summary), *result_lines(summary)]:
            console.print(f"{label:<11}{text}", soft_wrap=True)
        for table in [*network_tables(summary, MOST_ROWS), *layer_tables(summary)]:
            console.print()
            show(console, table)
        console.print(f"{'run':<11}{run.directory}", soft_wrap=True)
        console.print(f"tensorboard --logdir {shlex.quote(str(run.directory))}", soft_wrap=True)

    def _held_out_lines(self, run: Run, summary: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return which step was the best, and whether that was chance, and which weights were tested."""
        best, lines = summary.get("best") or {}, []
        if best.get("values"):
            texts = [f"best at step {best['step']}"]
            if run.best.value is not None and "validation" in run.held_out:
                size = run.held_out["validation"].split.size
                texts.append(describe_close(run.best.monitor, self._values, run.best.value, size) or "")
            lines.append(("validation", ". ".join(filter(None, texts))))
        if weights := (summary.get("test") or {}).get("weights"):
            lines.append(("test", f"with the {weights} weights"))
        return lines


FEW = 2
"""With this many other evaluations as good as the best one, choosing it is chance."""
SMALL = 0.005
"""Differences below it do not matter."""


def describe_close(monitor: str, values: Sequence[float], best: float, examples: int) -> str | None:
    """Return a line on evaluations that lie within a standard error, or two examples, of the best.

    None if the metric is not a share of the examples, the split is large enough, or the best stands out.
    """
    if not all(is_share_of(value, examples) for value in (*values, best)):
        return None
    share = (best * examples + 1) / (examples + 2)  # that of all right has an error, too
    error = math.sqrt(share * (1.0 - share) / examples)
    margin = max(error, 2.0 / examples)
    close = sum(abs(value - best) <= margin + 1e-9 for value in values) - 1
    if close < FEW or margin < SMALL:
        return None
    return (
        f"{examples} examples: one is {1 / examples:.2g} of {short_name(monitor)}, its standard error {error:.2g}, and "
        f"{close} other evaluations lie as near to the best. Which step is the best is chance: let a loss decide, "
        f"{loss_monitor(monitor)}, or hold out more."
    )


def describe_status(summary: Mapping[str, Any]) -> str:
    """Return the status with its reason, such as "stopped (early stopping: ...) after 400 steps"."""
    text = str(summary.get("status", "unknown"))
    if summary.get("stop_reason"):
        reason = str(summary["stop_reason"]).strip().partition("\n")[0]  # a framework's error may fill pages
        text += f" ({reason if len(reason) <= REASON_LENGTH else f'{reason[: REASON_LENGTH - 3]}...'})"
    if "steps" in summary:
        text += f" after {_steps(summary['steps'])}"
    return f"{text}, {summary['epochs']:.4g} epochs" if "epochs" in summary else text


def _steps(count: int) -> str:
    return f"{count:,} step{'' if count == 1 else 's'}"


def result_lines(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines below the table, as label and text; what is missing is left out."""
    lines = []
    if parameters := summary.get("params"):
        lines.append(("parameters", f"{parameters['total']:,} ({parameters['trainable']:,} trainable)"))
    if sizes := summary.get("bytes"):
        lines.append(("size", _describe_size(sizes)))
    lines += _network_lines(summary.get("networks") or {})
    if "seconds" in summary:
        speed = f", {summary['images_per_second']:,.0f} examples/s" if summary.get("images_per_second") else ""
        lines.append(("time", f"{format_seconds(summary['seconds'])} ({summary['seconds']:,.1f} s){speed}"))
    lines += _cost_lines(summary)
    verdict = summary.get("input") or {}
    if verdict.get("waiting_share") is not None:
        waited = f"{format_share(verdict['waiting_share'])} of the training time spent waiting for batches"
        lines.append(("input", f"{waited}. {verdict['advice']}" if verdict.get("advice") else waited))
    return lines


def _cost_lines(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the run's time to its first step, its memory, its precision, and where it computed."""
    lines = []
    if start := summary.get("time_to_first_step"):
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in start.items() if name != "seconds")
        lines.append(("first step", f"after {start['seconds']:.1f} s ({parts})"))
    peak = (summary.get("peak_memory_bytes") or {}).items()
    if places := [f"{format_bytes(count)} on the {place}" for place, count in peak if count]:
        lines.append(("memory", f"{', '.join(places)} at most"))
    precision = summary.get("precision") or {}
    if precision.get("compute", "float32") != "float32":
        text = str(precision["compute"])
        if precision.get("loss_scale") is not None:
            left_out = f"{_steps(precision['overflow_steps'])} left out for overflow"
            text += f", loss scale {precision['loss_scale']:,.0f}, {left_out}"
        lines.append(("precision", text))
    replicas = summary.get("replicas") or {}
    if replicas.get("count", 1) > 1:
        text = f"{replicas['count']} ({replicas['strategy']}), {replicas['examples']:,} examples each"
        lines.append(("replicas", text))
    return lines


def _network_lines(networks: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a line on the kind and the cost of a network; for several networks, one line for each size."""
    if len(networks) < 2:
        return [("network", text) for own in networks.values() if (text := describe_network(own))]
    alike: dict[str, list[str]] = {}
    for name, own in networks.items():
        size = f"{own['params']['total']:,} parameters, {_describe_size(own['bytes'])}"
        alike.setdefault("; ".join(filter(None, (size, describe_network(own)))), []).append(name)
    return [
        ("network" if len(names) == 1 else "networks", f"{', '.join(names)}: {'each ' if len(names) > 1 else ''}{text}")
        for text, names in alike.items()
    ]


def describe_network(network: Mapping[str, Any]) -> str:
    """Return the kind of a network and the cost of an example, such as "BNN; MACs an example: 640 1-bit x 1-bit"."""
    if "macs" not in network:
        return ""
    macs = network["macs"]
    counts = ", ".join(f"{count:,} {name}" for name, count in macs["by_precision"].items() if count) or "none known"
    text = f"{network['kind']}; MACs an example: {counts}"
    return f"{text}; not counted: {', '.join(macs['uncounted'])}" if macs["uncounted"] else text


def _describe_size(sizes: Mapping[str, int]) -> str:
    text, deployed = f"{format_bytes(sizes['float32'])} as float32", sizes["deployed"]
    if deployed and deployed != sizes["float32"]:
        text += f", {format_bytes(deployed)} deployed, {sizes['float32'] / deployed:.1f} times smaller"
    return text
