"""The command that compares overridden gradients: its table, and its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.check_gradients import USAGE, check, main, print_table
from trainer.errors import UserError
from trainer.step.gradient_probe import Compared

SMALL = ["trainer.batch_size=32", "trainer.epochs=1", "model.units=[8,8]"]
ON_LAYERS = ["recipe=baseline", "+hooks=gradient_override", *SMALL]
PLUGIN = """
from trainer.ops.backward import Backward
import tensorflow as tf

def hard_tanh(factor: float = 1.0) -> Backward:
    return Backward("hard_tanh", lambda upstream, inputs: tf.where(abs(inputs[0]) <= 1.0, factor * upstream, 0.0),
                    ("inputs",), surrogate=lambda x: tf.clip_by_value(x, -1.0, 1.0))
"""


def test_the_toy_network_is_exact_and_a_network_without_overrides_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe=custom_gradient"]) == 0
    assert "product   exact" in capsys.readouterr().out
    assert main(["recipe=custom_gradient", "model.route=tensorflow"]) == 0
    assert capsys.readouterr().out == "No gradient of the training step is overridden.\n"


def test_quantizers_of_a_binary_network_have_the_gradients_of_their_surrogates() -> None:
    found = check(["recipe=bnn", *SMALL])
    assert [(each.name, each.verdict) for each in found] == [("ste_sign", "surrogate")] * 2
    assert found[1].op.startswith("forward/model/")
    assert "/dense_2_input_quantizer" in found[1].op


def test_what_a_hook_overrides_on_purpose_is_no_failure() -> None:
    found = check([*ON_LAYERS, "hooks.gradient_override.layers=dense_2", "hooks.gradient_override.backward=reverse"])
    assert [(each.name, each.verdict) for each in found] == [("gradient_override_dense_2", "on purpose")]


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_backwards.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "my_backwards"


def test_a_wrong_gradient_fails_with_its_name(plugin: str, capsys: pytest.CaptureFixture[str]) -> None:
    def run(factor: float) -> int:
        backward = f"hooks.gradient_override.backward={{_target_:{plugin}.hard_tanh,factor:{factor}}}"
        layers = "hooks.gradient_override.layers=[activation_1,activation_2]"
        return main([*ON_LAYERS, f"plugins=[{plugin}]", layers, backward])

    assert run(1.0) == 0
    assert "wrong" not in capsys.readouterr().out
    assert run(0.9) == 1
    out = capsys.readouterr().out
    assert "2 wrong: gradient_override_activation_1, gradient_override_activation_2" in out


def test_the_table_shows_distances_where_there_are_some(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(
        [
            Compared("sign", "IdentityN", "declared", 1.0, 2e-7),
            Compared("half", "IdentityN_1", "forward", None, None),
            Compared("mine", "IdentityN_2", "undeclared", 0.25, None),
        ]
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["sign", "surrogate", "1.0e+00", "2.0e-07", "IdentityN"]
    assert lines[2].split() == ["half", "not", "measured", "IdentityN_1"]
    assert lines[3].split() == ["mine", "undeclared", "2.5e-01", "IdentityN_2"]


@pytest.mark.parametrize(
    "arguments", [["-m", "recipe=bnn,baseline"], ["--cfg", "job"], ["recipe=bnn", "--explain", "seed"]]
)
def test_several_runs_or_none_are_refused(arguments: list[str]) -> None:
    with pytest.raises(UserError, match="Expected the values of one run"):
        check(arguments)


def test_mistakes_are_one_line_and_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe=bnnn"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("Error: Unknown recipe 'bnnn'. Did you mean 'bnn'?")
    assert error.count("\n") == 1


def test_help_needs_no_tensorflow() -> None:
    program = (
        "import sys; from scripts.check_gradients import main; main(['--help']); sys.exit('tensorflow' in sys.modules)"
    )
    root = Path(__file__).resolve().parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (0, USAGE + "\n")
