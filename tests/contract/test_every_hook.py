"""What every hook of the catalogue must do. A new hook is covered by being there."""

import inspect
import json

import pytest
from omegaconf import OmegaConf

from hookline.hooks import catalogue, load
from hookline.scripts.planning.trace import own_stages
from hookline.trainer.config.build import bind, build, resolve
from hookline.trainer.errors import UserError
from hookline.trainer.hook import GraphHook, Hook, HostHook
from hookline.trainer.run.blueprint import split_binding
from tests.support.command import overrides_for, run_small

HOOKS = sorted(catalogue())
DEFAULTS = {
    *("advisor", "checkpoint", "early_stopping", "final_table", "fused_batch_norm", "metrics_jsonl", "nan_guard"),
    *("pictures", "progress", "projector", "randomness_guard", "tensorboard"),
}


def file_of(name):
    return OmegaConf.to_container(OmegaConf.load(catalogue()[name].config_file))[name]


@pytest.mark.parametrize("name", HOOKS)
def test_hook_constructs_from_its_config_and_declares_what_it_is(name):
    node, hook_class = split_binding(file_of(name))[0], load(name)
    assert resolve(catalogue()[name].target, group="hooks") is hook_class
    bind(node, group="hooks")
    hook = build(node, group="hooks")
    assert isinstance(hook, Hook)
    arguments = set(inspect.signature(type(hook).__init__).parameters) - {"self"}
    assert set(node) - {"_target_"} == arguments
    _, binding = split_binding(file_of(name))
    assert binding == ({"objective": "*"} if isinstance(hook, GraphHook) else {})
    with pytest.raises(UserError, match="Unknown argument 'no_such_argument'"):
        bind({**node, "no_such_argument": 1}, group="hooks")
    if issubclass(hook_class, GraphHook):
        assert "declare" in {key for each in hook_class.__mro__ for key in vars(each) if each is not GraphHook}
    if issubclass(hook_class, HostHook):
        state = hook.state_dict()
        assert json.loads(json.dumps(state)) == state
    assert set(own_stages(hook)) - {"build"}  # which changes nothing by itself
    assert {*hook_class.before, *hook_class.after, *hook_class.conflicts} <= {*HOOKS}
    assert 0 <= hook_class.priority <= 100


EXTRAS = {"mlflow", "wandb"}  # need packages that the tests do not; see tests/e2e/test_loggers.py
WITHOUT_TECHNIQUES = [
    name for name in HOOKS if name in DEFAULTS or (issubclass(load(name), HostHook) and name not in EXTRAS)
]


def test_hooks_survive_two_fits_in_one_process_and_their_time_is_measured(tmp_path):
    """Techniques do so in tests/resume/test_every_hook_goes_on.py, which compares three fits of each."""
    more = [name for name in WITHOUT_TECHNIQUES if name not in DEFAULTS]
    given = (f"+hooks=[{','.join(more)}]", *overrides_for(*more))
    first, second = (run_small("baseline", *given, run_dir=tmp_path / attempt) for attempt in ("first", "second"))
    for summary in (first, second):
        assert summary["status"] == "completed"
        assert summary["images_per_second"] > 0
        for name in WITHOUT_TECHNIQUES:
            assert not issubclass(load(name), HostHook) or summary["hooks"][name]["host_seconds"] >= 0.0
        assert summary["hooks"].keys() >= {*WITHOUT_TECHNIQUES}
    assert first["test"] == second["test"]
    assert first["final"]["loss/total"] == second["final"]["loss/total"]


@pytest.mark.full
def test_a_run_trains_without_its_default_hooks(tmp_path):
    summary = run_small("baseline", *(f"hooks.{name}=null" for name in DEFAULTS), run_dir=tmp_path / "run")
    assert (summary["status"], summary["hooks"]) == ("completed", {})
