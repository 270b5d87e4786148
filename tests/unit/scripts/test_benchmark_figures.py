"""From measured speeds to figures, a table and a chart."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from scripts.benchmarks.chart import LIMIT, OURS, write_chart
from scripts.benchmarks.contender import Contender
from scripts.benchmarks.figures import PUBLISHED, Result, as_rows, find_peak, print_rows


def result(name: str, speeds: list[float], *, case: str = "a", batch_size: int = 10, facts=None, **more) -> Result:
    contender = Contender("training", case, name, lambda settings: lambda count: None, **more)
    return Result(contender, speeds, facts or {}, batch_size)


ROWS = [
    result("ours", [200.0, 330.0, 100.0], unit="steps", loss_steps=8, facts={"loss": 0.25}),
    result("slow", [1.0, 1.0, 1.0], baseline=True, unit="steps"),
    result("theirs", [100.0, 110.0, 200.0], baseline=True, unit="steps", facts={"loss": 0.5}),
    result("limit", [400.0, 400.0, 400.0], limit=True, unit="steps", facts={"note": "XLA on", "products": 1000}),
    result("only", [5.0, 7.0, 9.0], case="b"),
]


def test_figures_are_medians_and_ratios_are_of_the_same_repeat() -> None:
    ours, slow, theirs, limit, only = as_rows(ROWS)
    assert (ours["median"], ours["lowest"], ours["highest"], ours["ratio"]) == (200.0, 100.0, 330.0, 2.0)
    assert (theirs["median"], theirs["ratio"]) == (110.0, 1.0)
    assert (only["case"], only["unit"], only["ratio"]) == ("b", "batches/s", 1.0)
    assert [row["baseline"] for row in (ours, slow, theirs, limit, only)] == [False, False, True, False, True]
    assert (ours["of_limit"], limit["of_limit"], only["of_limit"]) == (0.5, 1.0, None)
    assert (ours["loss"], ours["loss_steps"], limit["loss"]) == (0.25, 8, None)
    assert limit["contender"] == "limit (XLA on)"
    assert (ours["images"], only["images"]) == (2000.0, None)


def test_the_share_of_the_peak_counts_a_product_as_two_operations() -> None:
    ours, *_, only = as_rows(ROWS, peak=8e6)
    assert ours["use"] == pytest.approx(2 * 1000 * 2000.0 / 8e6)
    assert only["use"] is None
    assert as_rows(ROWS)[0]["use"] is None


def test_more_arithmetic_of_one_contender_is_counted_and_shown(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    plain = result("plain", [2.0], unit="steps", baseline=True, facts={"products": 1000})
    more = result("more", [2.0], unit="steps", facts={"products": 1500})
    rows = as_rows([plain, more, result("other", [2.0], unit="steps")], peak=1e5)
    assert [row["use"] for row in rows] == pytest.approx([0.4, 0.6, 0.4])
    print_rows(rows)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[1:3] == [
        "a steps/s lowest to highest images/s products times * peak",
        "plain * 2.0 2.0 to 2.0 20 1,000 1.00 40.0%",
    ]


@pytest.mark.parametrize(
    ("accelerator", "expected"),
    [
        ("NVIDIA H200", (PUBLISHED["H200"], "published for H200")),
        ("NVIDIA A100-SXM4-40GB", (PUBLISHED["A100"], "published for A100")),
        ("NVIDIA H100 PCIe", (PUBLISHED["H100 PCIe"], "published for H100 PCIe")),
        ("NVIDIA H100 80GB HBM3", (PUBLISHED["H100"], "published for H100")),
        ("NVIDIA L40S", (3.0, "measured on products of matrices")),
        ("none", (3.0, "measured on products of matrices")),
    ],
)
def test_the_peak_is_the_published_one_or_the_highest_that_was_measured(accelerator: str, expected) -> None:
    measured = [result("limit", [1.0], facts={"peak": peak}) for peak in (2.0, 3.0)]
    assert find_peak(measured, accelerator) == expected
    assert find_peak([result("ours", [1.0])], "none") == (None, "")
    assert find_peak(measured, accelerator, 5.0) == (5.0, "as given")


def test_the_table_shows_what_is_known_and_marks_what_the_others_are_compared_with(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    print_rows(as_rows(ROWS, peak=8e6))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[1:6] == [
        "a steps/s lowest to highest images/s loss, step 8 times * limit peak",
        "ours 200.0 100.0 to 330.0 2,000 0.250 2.00 50% 50.0%",
        "slow 1.0 1.0 to 1.0 10 0.01 0% 0.2%",
        "theirs * 110.0 100.0 to 200.0 1,100 0.500 1.00 28% 27.5%",
        "limit (XLA on) 400.0 400.0 to 400.0 4,000 3.64 100% 100.0%",
    ]
    assert lines[7:9] == ["b batches/s lowest to highest times *", "only * 7.0 5.0 to 9.0 1.00"]


def test_the_chart_has_a_bar_for_each_contender_in_its_colour(tmp_path: Path) -> None:
    rows = as_rows([result("hookline", [200.0]), *(result(*each) for each in (("b", [50.0]), ("c", [25.0])))])
    rows[2]["limit"] = True
    write_chart(rows, tmp_path / "few.png")
    write_chart(as_rows(ROWS), tmp_path / "several.png")
    few, several = (Image.open(tmp_path / f"{name}.png").convert("RGB") for name in ("few", "several"))
    assert several.height > few.height
    colours = {colour: count for count, colour in few.getcolors(1 << 20)}
    ours, limit = (colours.get(tuple(bytes.fromhex(each[1:])), 0) for each in (OURS, LIMIT))
    assert ours == 0  # the only one of ours is the baseline
    assert limit > 1000
    rows[0]["baseline"], rows[1]["baseline"] = False, True
    write_chart(rows, tmp_path / "few.png")
    colours = {colour: count for count, colour in Image.open(tmp_path / "few.png").convert("RGB").getcolors(1 << 20)}
    assert colours[tuple(bytes.fromhex(OURS[1:]))] == pytest.approx(8 * limit, rel=0.1)
