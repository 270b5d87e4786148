"""The plan command: what a run will do, printed without training; the door's own lines for what is wrong."""

from __future__ import annotations

import io
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import train
from scripts.plan import FORMS, column_widths, main, parse, print_plan
from tests.support.drawings import read_dot, read_mermaid
from trainer.errors import UserError
from trainer.plan.plan import Plan
from trainer.plan.sections import Section

ROOT = Path(__file__).parents[3]
SMALL = ("model.units=[16,16]", "trainer.compile=off")
HOOKS = '''
import tensorflow as tf
from trainer.hook import GraphHook


class Count(GraphHook):
    """Count steps."""

    def build(self, context):
        self.count = tf.Variable(0.0, trainable=False)

    def state(self):
        return {"count": self.count}

    writes = state

    def update_ops(self, context):
        return [self.count.assign_add(1.0)]


class Reads(Count):
    def update_ops(self, context):
        return [self.count + 1.0]


class Forgets(Count):
    def update_ops(self, context):
        self.count.assign_add(1.0)
        return []


class Declares(Count):
    def update_ops(self, context):
        return []


class Outside(Count):
    def update_ops(self, context):
        with tf.init_scope():
            return [self.count.assign_add(1.0)]


class Cuts(Count):
    def transform_weights(self, weights, context):
        return {n: tf.stop_gradient(w) if n == "dense_1/kernel" else w for n, w in weights.items()}


class Broken(Count):
    def update_ops(self, context):
        raise IndexError("a fault of the hook")
'''


@pytest.fixture(scope="session")
def plugins(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("plugins")
    (directory / "hooks_of_a_user.py").write_text(HOOKS)
    return directory


@pytest.fixture
def plan(plugins: Path, tmp_path, monkeypatch, capfd) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs the command in an empty directory, sees that it stays empty, and gives what came."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(plugins)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        captured = capfd.readouterr()
        assert list(tmp_path.iterdir()) == []
        return code, captured.out, captured.err

    return run


def with_hook(name: str) -> tuple[str, ...]:
    return ("recipe=baseline", *SMALL, "plugins=[hooks_of_a_user]", f"+hooks.own._target_=hooks_of_a_user.{name}")


def test_the_plan_names_stages_updates_variables_metrics_and_memory(plan: Callable):
    code, output, errors = plan("recipe=center_loss", "model.filters=[2,2,2]")
    assert (code, errors) == (0, "")
    lines = [" ".join(line.split()) for line in output.splitlines()]
    for line in (
        "recipe center_loss",
        "step around_forward fused_batch_norm",
        "add_losses center_loss",
        "veto nan_guard, center_loss",
        "ResourceScatterSub center_loss/centers center_loss",
        "features kernel 2x2, bias 2 float32 24 B trainable",
        "centers 10x2 float32 80 B",
        "evaluation loss/cross_entropy, loss/center, loss/total, metric/accuracy, metric/center_within, "
        "metric/center_between,",
        "data on the device 126.35 KiB 1,797 examples",
    ):
        assert line in lines
    assert max(map(len, output.splitlines())) <= 120
    assert "\x1b" not in output


CELL = "conv_1_of_a_block/with_a_long_name_of_many_parts"
SECTION = Section(
    "Variables of a network",
    ("", "variables", "dtype", "bytes", "role"),
    (
        (CELL, "kernel 3x3x960x1280, bias 1280, seed_generator_state_of_it 2", "float32, int64", "100.25 KiB", "state"),
        ("dense", "kernel 2x2", "float32", "16 B", "trainable, projected by frozen_mask, bnn_rounding"),
    ),
)


@pytest.mark.parametrize("width", [*range(24, 80, 8), 80, 100, 120, 200])
def test_at_no_width_a_character_is_lost(width: int, monkeypatch):
    from rich.console import Console

    monkeypatch.setattr("trainer.plan.sections.sections", lambda plan, full: [SECTION])
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    print_plan(console, Plan((), (), {}, ()), full=False)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    texts = (SECTION.title, *SECTION.columns, *(cell for row in SECTION.rows for cell in row))
    assert Counter("".join("".join(lines).split())) == Counter("".join("".join(texts).split()))


def test_columns_are_whole_where_there_is_room_and_share_what_there_is():
    columns = [("", "a" * 30), ("variables", "word " * 20), ("bytes", "100.25 KiB"), ("role", "state")]
    assert column_widths(columns, 200) == [30, 100, 10, 5]
    assert column_widths(columns, 80) == [30, 29, 10, 5]
    assert column_widths(columns, 61) == [28, 12, 10, 5]
    assert column_widths(columns, 56) == [26, 9, 10, 5]
    assert column_widths(columns, 55) is None


def test_in_full_every_variable_has_a_row_of_its_own(plan: Callable):
    code, output, _ = plan("--full", "recipe=baseline", *SMALL)
    assert code == 0
    rows = [line.split()[:2] for line in output.splitlines()]
    assert output.count("AssignVariableOp") == 6
    for name in ("dense_1/kernel", "batch_norm_2/moving_variance", "dense_2_kernel_momentum"):
        assert name in [row[0] for row in rows if row]


@pytest.mark.parametrize(("form", "read"), [("--dot", read_dot), ("--mermaid", read_mermaid)])
def test_only_the_drawing_is_printed(plan: Callable, form: str, read: Callable):
    code, output, errors = plan(form, *with_hook("Count"))
    assert (code, errors) == (0, "")
    labels = [tuple(lines) for lines in read(output).boxes.values()]
    assert ("AssignAddVariableOp", "writes", "own/count", "added by own") in labels


AUDITED = {
    "Reads": "The hook 'own' ",
    "Declares": "The hook 'own' declares that it writes 'count', but no op of the step writes it. Assign the variable",
    "Forgets": "The hook 'own' writes 'count' outside UPDATE_OPS",
    "Outside": "The hook 'own' returned something that is no op",
    "Cuts": "No gradient reaches dense_1/kernel in objective 'classification'. Expected every trainable variable",
}


@pytest.mark.parametrize("name", AUDITED)
def test_a_step_that_is_not_wired_is_refused_by_name_in_one_line(plan: Callable, name: str):
    code, output, errors = plan(*with_hook(name))
    assert (code, output) == (2, "")
    assert errors.startswith(f"Error: {AUDITED[name]}")
    assert ("reading it and adding gives a new tensor" in errors) == (name in ("Reads", "Declares"))
    assert errors.count("\n") == 1


def test_a_fault_of_a_hook_keeps_its_traceback(plan: Callable):
    code, output, errors = plan(*with_hook("Broken"))
    assert (code, output) == (1, "")
    assert "IndexError: a fault of the hook" in errors
    assert "in hook own, stage update_ops" in errors


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("recipe=basline",),
        ("recipe=baseline", "trainer.epoch=3"),
        ("recipe=baseline", "model.units=many"),
        ("recipe=baseline", "hooks.center_loss.weight=1"),
        ("recipe=baseline", "seed=1,2"),
        ("recipe=baseline", "--unknown"),
        ("recipe=baseline", "trainer.monitor=metric/acuracy", *SMALL),
        ("recipe=baseline", "trainer.batch_size=100000", *SMALL),
    ],
)
def test_a_mistake_gets_the_very_line_of_the_door(plan: Callable, arguments: tuple[str, ...], capfd):
    code, output, errors = plan(*arguments)
    assert (code, output) == (2, "")
    assert errors.count("\n") == 1
    assert train.main(arguments) == 2
    assert capfd.readouterr().err == errors


def test_a_traceback_is_shown_where_it_is_asked_for(plan: Callable):
    code, _, errors = plan("recipe=baseline", "trainer.epoch=3", "debug=true")
    assert code == 2
    assert "Traceback" in errors
    code, _, errors = plan("recipe=baseline", "trainer.monitor=x", "debug=true", *SMALL)
    assert code == 2
    assert "Traceback" in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-m", "recipe=baseline,bnn"], "A sweep (-m) received. Expected one run, without -m and with one value"),
        (["--multirun", "recipe=baseline"], "A sweep (-m) received."),
        (["--dot", "--mermaid", "recipe=baseline"], "--dot and --mermaid received. Expected one of them, or none."),
    ],
)
def test_one_run_and_one_form_are_expected(plan: Callable, arguments: list[str], message: str):
    code, output, errors = plan(*arguments)
    assert (code, output) == (2, "")
    assert errors.startswith(f"Error: {message}")
    assert errors.count("\n") == 1


def test_the_forms_may_stand_anywhere():
    for form in FORMS:
        assert parse(["recipe=baseline", form, "seed=3"]).form == parse([form, "recipe=baseline"]).form == form
    assert parse(["recipe=baseline"]).form == ""
    with pytest.raises(UserError, match="unrecognized arguments: --Dot"):
        parse(["recipe=baseline", "--Dot"])


def test_a_run_directory_that_exists_does_not_matter(plugins: Path, capfd):
    before = sorted(plugins.iterdir())
    assert main(["--dot", "recipe=baseline", *SMALL, f"run_dir={plugins}"]) == 0
    assert sorted(plugins.iterdir()) == before


def test_a_config_is_shown_as_the_door_shows_it(plan: Callable, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["plan.py"])
    code, output, _ = plan("recipe=baseline", "seed=7", "--cfg", "job")
    assert code == 0
    assert "seed: 7" in output
    assert "Stages" not in output


def test_help_names_every_form_and_builds_nothing(plan: Callable):
    code, output, _ = plan("--help", "recipe=absent")
    assert code == 0
    assert all(f"\n  {form} " in output for form in FORMS)


def test_it_runs_as_a_file_and_can_be_piped(tmp_path):
    with (tmp_path / "step.dot").open("w") as file:
        done = subprocess.run(
            [sys.executable, str(ROOT / "scripts" / "plan.py"), "--dot", "recipe=bnn", *SMALL],
            cwd=tmp_path, stdout=file, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    drawing = read_dot((tmp_path / "step.dot").read_text())
    assert ["project", "hook bnn_rounding", "dense_2/kernel"] in drawing.boxes.values()
    assert [path.name for path in tmp_path.iterdir()] == ["step.dot"]
