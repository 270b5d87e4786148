"""TensorBoard: every report, and the data behind it, for each of its tabs. Written from the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hookline.hooks.monitors.dashboard.event_files import EventFiles, StepProfile
from hookline.hooks.monitors.dashboard.layout import layout_summary
from hookline.hooks.monitors.dashboard.records import (
    config_as_markdown,
    end_summary,
    environment_as_markdown,
    graph_event,
    histogram_summary,
    hyperparameters,
    picture_summary,
    reached_values,
    scalar_summary,
    start_summary,
    summary_as_markdown,
    text_summary,
)
from hookline.hooks.monitors.final_table import as_markdown, network_tables
from hookline.hooks.monitors.pictures import is_due
from hookline.hooks.options import check_flag, check_integer
from hookline.trainer.config.stored import read_overrides
from hookline.trainer.hook import HostHook
from hookline.trainer.run.control import Report
from hookline.trainer.run.results import COMPLETE

if TYPE_CHECKING:
    from hookline.trainer.run.run import Run

DIRECTORY_NAME = "tensorboard"
TRAIN = "train"
SESSION = "hparams"  # where hyperparameters and results go: apart from the curves, so that no curve is in their table


class TensorBoard(HostHook):
    """Write event files to `tensorboard/train`, `tensorboard/validation` and `tensorboard/test`.

    The curves of a scalar for all splits share a chart over optimizer steps, and the CUSTOM SCALARS tab groups related
    curves. There are also histograms of the weights, pictures, the graph of the traced step, and the environment,
    config, plan and result as text. A separate thread writes the files; its errors appear at the next report.

    `tensorboard/hparams` contains the hyperparameters, the best validation values and the test values: a row of
    TensorBoard's HPARAMS tab.

    Group:
        monitor

    State:
        evaluations: number of evaluations so far. TensorBoard itself drops the records of steps that a resumed run
            repeats.

    Cost:
        Files are written on a separate thread. Measured: 0.5 s of the loop for `recipe=baseline` (100 epochs, 11 sets
        of pictures).

    Pitfalls:
        tests/hooks/monitors/test_tensorboard.py: event files are read back; a resumed run has no duplicate points; no
            thread or open file remains, even after a rollback; a full disk does not end a run; histograms show the
            weights of their step.
        tests/hooks/monitors/dashboard/test_records.py: hyperparameters, best values and test values are in one
            row.

    Example:
        python train.py recipe=attention hooks.tensorboard.pictures_every=1
    """

    def __init__(
        self, *, pictures_every: int = 10, histograms_every: int = 10, graph: bool = True, profile_steps: int = 0
    ) -> None:
        """Set what to write.

        Args:
            pictures_every: evaluations between two sets of pictures, the first and the test included; 0 for none.
            histograms_every: evaluations on the validation split between two sets of histograms, the first and the last
                included; 0 for none, not even of the weights at the start.
            graph: whether the graph of the traced step is written, once per run.
            profile_steps: steps, after the first 20, whose profile TensorFlow's profiler takes; 0 for none.
        """
        self._pictures_every = check_integer("pictures_every", pictures_every, minimum=0)
        self._histograms_every = check_integer("histograms_every", histograms_every, minimum=0)
        self._graph = check_flag("graph", graph)
        self._profile = StepProfile(check_integer("profile_steps", profile_steps, minimum=0))
        self._evaluations = 0
        self._files: EventFiles | None = None
        self._names: set[str] = set()
        self._laid_out: set[str] = set()
        self._fitting = False

    def state_dict(self) -> dict[str, Any]:
        if self._files is not None:
            self._files.flush()
        return {"evaluations": self._evaluations}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._evaluations = int(state["evaluations"])

    def next_step(self, step: int) -> int | None:
        return self._profile.next_step(step)

    def on_fit_begin(self, run: Run) -> None:
        self._names, self._laid_out = set(), set()
        self._evaluations = self._evaluations if run.step else 0
        if self._fitting:  # a rollback: files stay open, and their first records stay true
            self._profile.stop()
            self._opened.begin(run.step)
            return
        self._fitting, self._files = True, EventFiles(run.directory / DIRECTORY_NAME, run.step)
        self._profile.plan(run.step, run.total_steps, run.steps_per_epoch)
        begun = self._files.exist(TRAIN)
        texts = {
            "run/config": config_as_markdown(run.config),
            "run/plan": run.plan,
            "run/environment": environment_as_markdown(run.directory),
        }
        self._write_texts(run.step, texts)
        self._open_session(run)
        if self._graph and not begun and (event := graph_event(run.graph())) is not None:
            self._opened.add(TRAIN, event)
        if self._pictures_every and (pictures := run.views.first_pictures):
            self._opened.write(TRAIN, run.step, picture_summary(pictures))
        if self._histograms_every and not begun:
            self._opened.write(TRAIN, run.step, histogram_summary(run.views.distributions(run.step)))
        self._opened.flush()

    def on_chunk_end(self, run: Run, report: Report | None) -> None:
        self._profile.at_edge(run.step, run.directory / DIRECTORY_NAME / TRAIN)
        if report is not None:
            self._write_report(report)

    def on_evaluation_end(self, run: Run, report: Report) -> None:
        number, self._evaluations = self._evaluations, self._evaluations + 1
        self._write_report(report)
        if is_due(self._pictures_every, number, last=report.split == "test"):
            self._opened.write(TRAIN, report.step, picture_summary(run.views.pictures(report.step, report.split)))
        last = run.step >= run.total_steps or run.control.stop_reason is not None
        if report.split == "validation" and is_due(self._histograms_every, number, last=last):
            # At the test, the weights may be those of the best step.
            self._opened.write(TRAIN, report.step, histogram_summary(run.views.distributions(report.step)))
        if self._names != self._laid_out:
            self._laid_out = set(self._names)
            layout = layout_summary(self._names, hooks=run.config.get("hooks") or {}, networks=run.networks)
            self._opened.write(TRAIN, report.step, layout)

    def on_fit_end(self, run: Run, summary: dict[str, Any]) -> None:
        try:
            if self._files is not None:
                networks = as_markdown(network_tables(summary))
                self._write_texts(run.step, {"run/summary": summary_as_markdown(summary), "run/networks": networks})
                self._close_session(run, summary)
        finally:
            self._close()

    @property
    def _opened(self) -> EventFiles:
        assert self._files is not None
        return self._files

    def _write_report(self, report: Report) -> None:
        self._opened.write(report.split, report.step, scalar_summary(report.values))
        self._names |= report.values.keys()

    def _write_texts(self, step: int, texts: dict[str, str]) -> None:
        self._opened.write(TRAIN, step, text_summary({tag: text for tag, text in texts.items() if text}))

    def _open_session(self, run: Run) -> None:
        """Write the hyperparameters. In a resumed run, this replaces what the earlier end has left."""
        self._opened.remove(SESSION)  # TensorBoard believes the first status of a session, not the last
        values = hyperparameters(run.recipe, run.config, read_overrides(run.directory))
        self._opened.write(SESSION, run.step, start_summary(values))
        self._opened.close(SESSION)  # nothing more comes before the end

    def _close_session(self, run: Run, summary: dict[str, Any]) -> None:
        """Write the results of the run; its end is recorded only if it is final, not if the run will be resumed."""
        self._opened.write(SESSION, run.step, scalar_summary(reached_values(summary)))
        if (status := summary.get("status")) in (*COMPLETE, "failed"):
            self._opened.write(SESSION, run.step, end_summary(status))

    def _close(self) -> None:
        self._fitting = False
        self._profile.stop()
        if self._files is not None:
            self._files.close()
