"""What people read of a comparison."""

from __future__ import annotations

import io

from rich.console import Console

from hookline.scripts.comparison.comparison import compare
from hookline.scripts.comparison.report import comparison_table, paired_table, print_comparison
from tests.support.stored_runs import failed, job

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
    comparison = compare([job("a", 0), job("b", 1)])  # no seed in common
    assert paired_table(comparison, comparison.groups[0]) is None


def test_the_best_is_named_and_what_else_differs():
    said = text(compare([job("a", 0, 0.9, 0.1, rate=1.0), job("b", 0, 0.8, 0.2, rate=2.0)]))
    assert "Best by validation: recipe=a (test accuracy 0.9000)" in said
    assert "differ in: optimizer.learning_rate" in said
    assert "Best" not in text(compare([job()]))
    other = job("b", 0, monitor="metric/accuracy", monitor_mode="max")
    assert "Best by validation" not in text(compare([job("a", 0), other]))  # by different metrics, none is


def test_a_value_in_brackets_is_no_markup():
    runs = [job("a", 0, 0.9, loss, "hooks.x.layers=[a]", hooks={"x": {"layers": [name]}}) for name, loss in LAYERS]
    console = Console(width=120, file=io.StringIO(), record=True)
    print_comparison(console, compare(runs))
    said = console.export_text()
    assert said.count("[bold]") == 3  # the table, the line of the best, the title of the differences
    assert said.count("[red]") == 2  # both tables
