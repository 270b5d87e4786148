"""The catalogue of hooks: what is demanded of a hook, what stands on the page, and that a stale page is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tensorflow as tf

import scripts.documentation.description as description_module
from hooks.monitors.early_stopping import EarlyStopping
from hooks.monitors.nan_guard import NanGuard
from scripts.catalogue import compare_pages, main
from scripts.documentation.description import Description
from scripts.documentation.docstring import parse_docstring
from scripts.documentation.gaps import find_gaps
from scripts.documentation.options import Option
from scripts.documentation.page import make_page, parts_of
from scripts.documentation.specimen import Declared, declared_by
from scripts.documentation.stages import overridden_declarations, overridden_stages
from trainer.hook import GraphHook, HostHook, Tensors
from trainer.step.context import BuildContext, StepContext

TEXT = """Halve every kernel, where |w| < 1 or w * w > 2.

Group:
    technique

Equation:
    w <- w / 2

State:
    half/<variable>: what was taken.

Scalars:
    halve/share: of what.

Cost:
    A pass.

Pitfalls:
    tests/a.py: it is not doubled.

Reference:
    Zeno.

Example:
    python train.py recipe=baseline +hooks=halve
"""


class Halve(GraphHook):
    """Stand for a hook."""

    before = ("bnn_rounding",)
    conflicts = ("double",)

    def __init__(self, *, network: str = "model"):
        self.network = network
        self.kept: dict[str, tf.Variable] = {}

    def build(self, context: BuildContext) -> None:
        kernels = {k: v for k, v in context.network.trainable_variables.items() if k.endswith("kernel")}
        self.kept = {k: tf.Variable(tf.zeros(v.shape), trainable=False) for k, v in kernels.items()}
        self.kept["scale"] = tf.Variable([1.0, 2.0], trainable=False)

    def state(self) -> dict[str, tf.Variable]:
        return {f"half/{name}" if name != "scale" else name: value for name, value in self.kept.items()}

    def writes(self) -> dict[str, tf.Variable]:
        return self.state()

    def projected(self) -> set[str]:
        return {"logits/kernel", "conv_1/kernel"}

    def project(self, context: StepContext) -> None: ...

    def measure(self, context: StepContext) -> Tensors:
        return {}


def describe(text: str = TEXT, **changes) -> Description:
    given = Description(
        name="halve",
        purpose="Halve kernels by <half> | twice",
        hook_class=Halve,
        docstring=parse_docstring(text),
        arguments={"network": "name."},
        options=[Option("network", "model", "name | pattern"), Option("objective", '"*"', "which")],
        stages=overridden_stages(Halve),
        declarations=overridden_declarations(Halve),
        declared=Declared({"half/<variable>": "float32"}, writes=("half/<variable>",), projected=("conv_1/kernel",)),
        source=Path("hooks/halve.py"),
        config=Path("configs/hooks/halve.yaml"),
        is_default=True,
    )
    return replace(given, **changes)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.py").touch()
    return tmp_path


def without(heading: str) -> str:
    before, _, after = TEXT.partition(f"{heading}:\n")
    return before + after.partition("\n\n")[2]


def test_stages_stand_in_the_order_of_the_interface() -> None:
    assert overridden_stages(Halve) == ["build", "project", "measure"]
    assert overridden_declarations(Halve) == ["state", "writes", "projected"]
    assert overridden_stages(NanGuard) == ["veto", "on_veto"]
    assert overridden_stages(GraphHook) == overridden_stages(HostHook) == []


def test_a_base_class_of_ones_own_counts_and_what_is_inherited_from_the_interface_does_not() -> None:
    class Quarter(Halve):
        def veto(self, context):
            return {}

    assert overridden_stages(Quarter) == ["build", "veto", "project", "measure"]


def test_what_a_built_hook_declares_has_the_variable_in_general() -> None:
    found = declared_by(Halve())
    assert found.state == {"half/<variable>": "float32, of the variable's shape", "scale": "float32 [2]"}
    assert found.writes == ("half/<variable>", "scale")
    assert found.projected == ("conv_1/kernel", "logits/kernel")
    assert found.frozen == found.reads == ()


def test_the_state_of_a_host_hook_is_named_too() -> None:
    assert set(declared_by(EarlyStopping()).state) == {"best", "best_step", "seen_step", "waited"}


def test_a_hook_that_says_all_has_no_gap(root: Path) -> None:
    assert find_gaps(describe(), root) == []


@pytest.mark.parametrize(
    "heading", ["Group", "Equation", "State", "Scalars", "Cost", "Pitfalls", "Reference", "Example"]
)
def test_a_missing_section_is_named_with_what_to_add(heading: str, root: Path) -> None:
    gaps = find_gaps(describe(without(heading)), root)
    if heading == "Group":  # without it nobody knows whether there is an equation to give
        assert len(gaps) == 1
    (line,) = [gap for gap in gaps if f"add a section '{heading}:' with " in gap]
    assert line.startswith("hooks/halve.py, docstring of Halve: ")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("technique", "trick", "'trick' received in 'Group:'. Expected one of: technique, optimization, guard"),
        ("half/<variable>", "whole", "'State:' names whole. Expected what the hook keeps: half/<variable>."),
        ("tests/a.py", "tests/b.py", "'Pitfalls:' names tests/b.py, which is no file"),
        ("Cost:", "Costs:", "the section 'Costs:' is not known. Expected one of: Group, "),
        ("Cost:", "Pictures:\n    a: b\n\nCost:", "take out the section 'Pictures:'"),
        ("halve/share: of what", "halve/share", "in the section 'Scalars:' received. Expected 'name: text'"),
    ],
)
def test_what_is_said_wrongly_is_named(old: str, new: str, message: str, root: Path) -> None:
    assert any(message in gap for gap in find_gaps(describe(TEXT.replace(old, new)), root))


def test_keys_need_comments_and_arguments_are_those_of_the_config(root: Path) -> None:
    bare = describe(options=[Option("network", "model", ""), Option("power", "3", "of it")])
    assert find_gaps(bare, root) == [
        "hooks/halve.py, docstring of Halve: power stand either in the Args of __init__ or in "
        "configs/hooks/halve.yaml. Expected in both.",
        "configs/hooks/halve.yaml: add a comment behind 'network:' that says what it is.",
    ]


def test_the_page_tells_all_of_a_hook() -> None:
    page = make_page([describe()])
    for text in (
        "**Techniques**\n\n| hook | what it does |\n| --- | --- |\n",
        "| [halve](#halve) * | Halve kernels by \\<half> \\| twice |\n",
        "\n## halve\n\nHalve every kernel, where |w| \\< 1 or w \\* w > 2.\n\n```\npython train.py recipe=baseline",
        "**Equation**\n\n```text\nw <- w / 2\n```\n",
        "| class | [Halve](../hooks/halve.py), changes training inside the step (GraphHook) |\n",
        "| stages | `build`, `project`, `measure` |\n",
        "| order | before `bnn_rounding`; by priority 50, from 0 (first) to 100 (last) |\n",
        "| conflicts with | `double` |\n",
        "| writes | `half/<variable>` |\n| projects | `conv_1/kernel` |\n",
        "**State saved**\n\n- `half/<variable>` (float32): what was taken.\n",
        "**Scalars**\n\n- `halve/share`: of what.\n",
        "| key | default | |\n| --- | --- | --- |\n| `network` | `model` | name \\| pattern |\n",
        "**Cost.** A pass.\n",
        "- It is not doubled. ([a](../tests/a.py))\n",
        "**Reference.** Zeno.\n",
    ):
        assert text in page
    assert "| freezes |" not in page


def test_hooks_are_grouped_in_the_order_of_the_groups() -> None:
    guard = describe(TEXT.replace("technique", "guard"), name="alarm", is_default=False)
    page = make_page([guard, describe()])
    assert list(parts_of(page)) == ["", "halve", "alarm"]
    assert "| [alarm](#alarm) | " in parts_of(page)[""]


def test_the_hooks_of_which_a_page_is_out_of_date_are_named() -> None:
    halve, alarm = describe(), describe(name="alarm")
    page = make_page([halve, alarm])
    assert compare_pages(page, page) is None
    stale = make_page([describe(TEXT.replace("A pass", "Two passes")), alarm])
    assert compare_pages(stale, page) == "halve"
    assert compare_pages(make_page([halve]), page) == "the overview, alarm"
    assert compare_pages(page, make_page([halve])) == "the overview, alarm"
    assert compare_pages(page + "\n", page) == "its blank lines or the order of its parts"


def refuse() -> list[Description]:
    raise ValueError("hooks/halve.py, docstring of Halve: 'Coast:' is no section")


def test_the_command_writes_compares_and_refuses(tmp_path: Path, root: Path, monkeypatch, capsys) -> None:
    file = tmp_path / "page.md"
    known = [describe(TEXT.replace("tests/a.py", "train.py"))]
    monkeypatch.setattr(description_module, "describe_hooks", lambda: known)
    assert main([f"page={file}", "check=true"]) == 1
    assert not file.exists()
    assert main([f"page={file}"]) == 0
    assert main([f"page={file}", "check=true"]) == 0
    capsys.readouterr()
    file.write_text(file.read_text().replace("A pass.", "No pass."))
    assert main([f"page={file}", "check=true"]) == 1
    assert capsys.readouterr().out == f"{file} is out of date: halve. Write it anew: python scripts/catalogue.py\n"
    monkeypatch.setattr(description_module, "describe_hooks", refuse)
    assert main([f"page={file}"]) == 1
    assert capsys.readouterr().out == "hooks/halve.py, docstring of Halve: 'Coast:' is no section\n"
    monkeypatch.setattr(description_module, "describe_hooks", lambda: known)
    known[0] = describe(without("Cost"))
    assert main([f"page={file}"]) == 1
    out = capsys.readouterr().out
    assert "hooks/halve.py, docstring of Halve: add a section 'Cost:' with what it does per step" in out
    assert "No pass." in file.read_text()


@pytest.mark.parametrize(
    ("argument", "message"),
    [("chek=true", "Unknown option 'chek'. Did you mean 'check'?"), ("check=maybe", "Expected true or false")],
)
def test_a_wrong_command_line_is_one_line(argument: str, message: str, capsys) -> None:
    assert main([argument]) == 2
    assert message in capsys.readouterr().err
