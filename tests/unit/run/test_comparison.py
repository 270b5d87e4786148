"""The table that stands at the end of a sweep."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from trainer.run.comparison import Result, comparison_table, own_overrides

SUMMARY: dict[str, Any] = {
    "final": {"loss/total": 0.3, "metric/accuracy": 0.99},
    "best": {"values": {"metric/accuracy": 0.98765, "loss/total": 0.25}},
    "test": {"weights": "best", "metric/accuracy": 0.97, "loss/total": 0.26},
    "bytes": {"float32": 374224, "deployed": 13508},
    "seconds": 12.34,
}


def columns(*results: Result) -> dict[str, list[str]]:
    table = comparison_table(results)
    return {str(column.header): [str(cell) for cell in column.cells] for column in table.columns}


def test_row_holds_what_the_summary_says() -> None:
    assert columns(Result("a", ["recipe=a"], SUMMARY)) == {
        "recipe": ["a"],
        "validation accuracy": ["0.9877"],
        "test accuracy": ["0.9700"],
        "size": ["13.19 KiB"],
        "seconds": ["12.3"],
    }


def test_what_a_job_did_not_measure_is_a_dash() -> None:
    cells = columns(Result("a", [], SUMMARY), Result("b", [], {**SUMMARY, "test": {}}))
    assert cells["test accuracy"] == ["0.9700", "-"]


def test_loss_is_shown_where_nothing_else_was_measured() -> None:
    summary = {**SUMMARY, "final": {}, "best": {"values": {"loss/total": 0.25}}, "test": {"loss/total": 0.26}}
    cells = columns(Result("a", [], summary))
    assert (cells["validation loss"], cells["test loss"]) == (["0.2500"], ["0.2600"])


def test_failed_job_says_so() -> None:
    cells = columns(Result("a", [], SUMMARY), Result("b", []))
    assert cells["seconds"] == ["12.3", "failed"]
    assert cells["test accuracy"] == ["0.9700", "-"]
    assert columns(Result("b", [], status="interrupted"))["seconds"] == ["interrupted"]


def test_only_what_tells_jobs_apart_is_shown() -> None:
    first = Result("a", ["recipe=a", "seed=1", "trainer.epochs=3"], SUMMARY)
    second = Result("b", ["recipe=b", "seed=1", "trainer.epochs=5"], SUMMARY)
    assert own_overrides(first, [first, second]) == ["trainer.epochs=3"]
    assert columns(first, second)["overrides"] == ["trainer.epochs=3", "trainer.epochs=5"]
    assert "overrides" not in columns(Result("a", ["recipe=a", "seed=1"], SUMMARY), Result("b", ["recipe=b", "seed=1"]))


def test_numbers_stay_whole_on_a_narrow_terminal() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    result = Result("bnn", ["recipe=bnn", "optimizer.learning_rate=0.001"], SUMMARY)
    console.print(comparison_table([result, Result("baseline", ["recipe=baseline"], SUMMARY)]))
    text = console.export_text()
    assert all(number in text for number in ("0.9877", "0.9700", "13.19 KiB", "12.3"))
