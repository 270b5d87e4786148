"""metrics.csv: the reports as a table."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from hookline.trainer.files import read_lines, write_whole
from hookline.trainer.hook import HostHook, Report, Run

FILE_NAME = "metrics.csv"


class CSV(HostHook):
    """Write every report as a row of `metrics.csv` in the run directory.

    The columns are step, split and the names of all values so far. The whole file is rewritten at each evaluation and
    checkpoint, and at the end. A resumed run first removes the rows of the steps that it repeats, and the row of the
    test split.

    Group: monitor

    Cost: One file written per evaluation and per checkpoint.

    Pitfalls:
        tests/hooks/monitors/test_csv.py: a resumed run must not have two rows for one step.

    Example:
        python train.py recipe=bnn +hooks=csv
    """

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._path: Path | None = None

    def state_dict(self) -> dict[str, Any]:
        self._write()
        return {}

    def on_fit_begin(self, run: Run) -> None:
        self._path, self._rows = (path := run.directory.resolve() / FILE_NAME), []
        if run.from_checkpoint and path.exists():
            whole = csv.DictReader(read_lines(path))
            rows = (row for row in whole if (row.get("step") or "").isdecimal() and row.get("split") != "test")
            self._rows = [row for row in rows if int(row["step"]) <= run.step]

    def on_chunk_end(self, run: Run, report: Report | None) -> None:
        if report is not None:
            self._rows.append({"step": report.step, "split": report.split, **report.values})

    def on_evaluation_end(self, run: Run, report: Report) -> None:
        self.on_chunk_end(run, report)
        self._write()

    def on_fit_end(self, run: Run, summary: dict[str, Any]) -> None:
        self._write()

    def _write(self) -> None:
        if (path := self._path) is None:
            return
        text = io.StringIO()
        names = list(dict.fromkeys(["step", "split", *(name for row in self._rows for name in row)]))
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows)
        write_whole(path, text.getvalue())
