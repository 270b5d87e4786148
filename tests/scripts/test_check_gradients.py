"""The command that compares overridden gradients: its table, and its exit code."""

import pytest

from hookline.scripts.check_gradients import check, main
from hookline.trainer.errors import UserError

SMALL = ["trainer.batch_size=32", "trainer.epochs=1", "model.units=[8,8]"]
ON_LAYERS = ["recipe=baseline", "+hooks=gradient_override", *SMALL]
PLUGIN = """
from hookline.trainer.ops.backward import Backward
import tensorflow as tf

def hard_tanh() -> Backward:
    return Backward("hard_tanh", lambda upstream, inputs: tf.where(abs(inputs[0]) <= 1.0, 0.9 * upstream, 0.0),
                    ("inputs",), surrogate=lambda x: tf.clip_by_value(x, -1.0, 1.0))
"""


def test_gradients_of_custom_ops_and_quantizers_are_judged(capsys):
    assert main(["recipe=custom_gradient"]) == 0
    assert "product   exact" in capsys.readouterr().out
    found = check(["recipe=bnn", *SMALL])
    assert [(each.name, each.verdict) for each in found] == [("ste_sign", "surrogate")] * 2
    assert "/dense_2_input_quantizer" in found[1].op


def test_wrong_gradient_fails_and_one_changed_on_purpose_does_not(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_backwards.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    second = ("_target_=hookline.hooks.gradient_override.GradientOverride", "layers=dense_2", "backward=reverse")
    both = [*ON_LAYERS, "plugins=[my_backwards]", *(f"+hooks.second.{each}" for each in second)]
    backward = "hooks.gradient_override.backward={_target_:my_backwards.hard_tanh}"
    assert main([*both, "hooks.gradient_override.layers=[activation_1,activation_2]", backward]) == 1
    out = capsys.readouterr().out
    assert "second_dense_2" in out
    assert out.count("on purpose") == 1
    assert "2 wrong: gradient_override_activation_1, gradient_override_activation_2" in out


def test_several_runs_and_mistakes_are_refused(capsys):
    for arguments in (["-m", "recipe=bnn,baseline"], ["--cfg", "job"]):
        with pytest.raises(UserError, match="values of one run"):
            check(arguments)
    assert main(["recipe=bnnn"]) == 2
    assert "'bnn'" in capsys.readouterr().err
