"""What people read of a comparison."""

from __future__ import annotations

import io

from rich.console import Console

from tests.support.stored_runs import failed, job
from trainer.comparison.comparison import compare
from trainer.comparison.report import comparison_table, paired_table, print_comparison, print_table

LAYERS = (("bold", 0.1), ("red", 0.2))


def columns(table):
    return {str(column.header): [str(cell) for cell in column.cells] for column in table.columns}


def text(comparison, reference=None, width=200):
    console = Console(width=width, file=io.StringIO(), record=True, markup=False)
    print_comparison(console, comparison, reference)
    return console.export_text()


def two_recipes(seeds=(0, 1)):
    runs = [job("bnn", seed, 0.8 + seed / 10, 0.4) for seed in seeds]
    return [*runs, *(job("baseline", seed, 0.9, 0.2) for seed in seeds)]


def test_a_row_holds_what_the_summaries_say():
    assert columns(comparison_table(compare([*two_recipes(), failed(seed=2)]))) == {
        "recipe": ["baseline", "bnn"],
        "n": ["2", "2 of 3"],
        "validation loss/cross_entropy (min)": ["0.2000 ± 0.0000", "0.4000 ± 0.0000"],
        "test accuracy": ["0.9000 ± 0.0000", "0.8500 ± 0.0707"],
        "size": ["2.00 KiB", "2.00 KiB"],
        "parameters": ["1,000", "1,000"],
        "seconds": ["2.0", "2.0"],
    }


def test_differences_are_a_table_or_columns_of_the_same_one():
    comparison = compare(two_recipes())
    expected = "-0.0500 ± 0.0707, better in 0 of 2, equal in 1"
    assert columns(paired_table(comparison, comparison.groups[0])) == {"recipe": ["bnn"], "test accuracy": [expected]}
    cells = columns(comparison_table(comparison, comparison.groups[0]))["test accuracy: difference"]
    assert cells == ["", expected]


def test_groups_without_a_seed_in_common_are_not_paired():
    comparison = compare([job("a", 0), job("b", 1)])
    assert paired_table(comparison, comparison.groups[0]) is None
    assert "Difference" not in text(comparison)


def test_the_best_is_named_and_what_else_differs():
    said = text(compare([job("a", 0, 0.9, 0.1, rate=1.0), job("b", 0, 0.8, 0.2, rate=2.0)]))
    assert "Best by validation: recipe=a (test accuracy 0.9000)" in said
    assert "The groups also differ in: optimizer.learning_rate" in said
    assert "Difference to recipe=a, at the seeds that both have" in said


def test_different_monitors_are_said_and_no_group_is_called_the_best():
    runs = [job("a", 0), job("b", 0, monitor="metric/accuracy", monitor_mode="max")]
    said = text(compare(runs))
    assert "different metrics: accuracy (max), loss/cross_entropy (min). None is called the best" in said
    assert "Best by validation" not in said
    assert columns(comparison_table(compare(runs)))["best validation"] == [
        "loss/cross_entropy (min) 0.3000",
        "accuracy (max) 0.9500",
    ]


def test_what_is_in_no_average_is_listed_with_its_count():
    comparison = compare([job(), job(), failed(seed=1, number=2), failed(seed=2, number=3)])
    comparison.unreadable = ["x/summary.json cannot be read"]
    said = text(comparison)
    assert "In no average, not at their end: 2 runs\n  job 2: failed (exit code 1), recipe=bnn seed=1" in said
    assert "In no average, repeated: 1 run\n  job 1: a later run has the same settings and seed 0" in said
    assert "In no average, not readable: 1 run\n  x/summary.json cannot be read" in said


def test_nothing_but_failures_is_told_without_a_table():
    said = text(compare([failed()]))
    assert "Comparison" not in said
    assert "job 1: failed (exit code 1)" in said


def test_a_file_gets_whole_lines_and_a_narrow_terminal_whole_numbers():
    comparison = compare(two_recipes())
    assert any("baseline" in line and "1,000" in line for line in text(comparison, width=20).splitlines())
    for run in (run for group in comparison.groups for run in group.runs):
        run.summary["bytes"]["deployed"] = 342096  # type: ignore[index]
    for width, widest in ((80, 80), (20, 70)):
        console = Console(width=width, file=io.StringIO(), record=True, force_terminal=True)
        print_table(console, comparison_table(comparison), "title")
        said = console.export_text()
        assert all(each in said for each in ("334.08 KiB", "1,000", "0.2000", "0.8500", "seconds"))
        assert max(map(len, said.splitlines())) <= widest
        assert console.width == width


def test_a_lone_group_is_not_called_the_best():
    assert "Best" not in text(compare([job()]))


def test_a_value_in_brackets_is_no_markup():
    runs = [job("a", 0, 0.9, loss, "hooks.x.layers=[a]", hooks={"x": {"layers": [name]}}) for name, loss in LAYERS]
    console = Console(width=120, file=io.StringIO(), record=True)
    print_comparison(console, compare(runs))
    said = console.export_text()
    assert said.count("[bold]") == 3  # the table, the line of the best, the title of the differences
    assert said.count("[red]") == 2  # both tables
