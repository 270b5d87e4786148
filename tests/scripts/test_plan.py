"""The plan command: what a run will do, printed without training; mistakes are reported as by train.py."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hookline import train
from hookline.scripts.plan import main

SMALL = ("model.units=[16,16]", "trainer.compile=off")
HOOKS = """
from tests.support.toy import CountingHook

class Count(CountingHook):
    def __init__(self):
        super().__init__()

class Forgets(Count):
    def update_ops(self, context):
        self.count.assign_add(1.0)
        return []

class Broken(Count):
    def update_ops(self, context):
        raise IndexError("a fault of the hook")
"""


@pytest.fixture(scope="session")
def plugins(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("plugins")
    (directory / "hooks_of_a_user.py").write_text(HOOKS)
    return directory


@pytest.fixture
def plan(plugins: Path, tmp_path, monkeypatch, capfd) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs the command in a directory that must stay empty, and returns code and output."""
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


def test_plan_lists_stages_updates_variables_and_memory(plan):
    code, output, errors = plan("recipe=center_loss", "model.filters=[2,2,2]")
    assert (code, errors) == (0, "")
    lines = [" ".join(line.split()) for line in output.splitlines()]
    for line in (
        "step around_forward fused_batch_norm",
        "add_losses center_loss",
        "ResourceScatterSub center_loss/centers center_loss",
        "features kernel 2x2, bias 2 float32 24 B trainable",
        "centers 10x2 float32 80 B",
        "data on the device 126.35 KiB 1,797 examples",
    ):
        assert line in lines
    assert max(map(len, output.splitlines())) <= 120
    code, output, _ = plan("--full", "recipe=baseline", *SMALL)
    assert output.count("AssignVariableOp") == 6
    assert {"dense_1/kernel", "batch_norm_2/moving_variance"} <= {line.split(" ")[0] for line in output.splitlines()}


def test_mermaid_option_prints_a_flowchart(plan):
    code, output, errors = plan("--mermaid", *with_hook("Count"))
    assert (code, errors) == (0, "")
    assert output.startswith("flowchart TB")
    assert "AssignAddVariableOp<br/>writes<br/>own/count<br/>added by own" in output


def test_write_outside_update_ops_is_refused_and_hook_bug_keeps_traceback(plan):
    code, output, errors = plan(*with_hook("Forgets"))
    assert (code, output, errors.count("\n")) == (2, "", 1)
    assert "The hook 'own' writes 'count' outside UPDATE_OPS" in errors
    with pytest.raises(IndexError, match="a fault of the hook") as raised:
        plan(*with_hook("Broken"))
    assert "in hook own, stage update_ops" in raised.value.__notes__[0]


def test_mistake_is_reported_in_the_same_line_as_by_train_py(plan, capfd):
    for arguments in (("recipe=basline",), ("recipe=baseline", "trainer.batch_size=100000", *SMALL)):
        code, output, errors = plan(*arguments)
        assert (code, output, errors.count("\n")) == (2, "", 1)
        assert train.main(arguments) == 2
        assert capfd.readouterr().err == errors
    assert "one run" in plan("-m", "recipe=baseline,bnn")[2]
    assert "--dot and --mermaid" in plan("--dot", "--mermaid", "recipe=baseline")[2]
