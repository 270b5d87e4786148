"""What every hook of the catalogue must do. A new hook is covered automatically."""

import inspect
import json

import pytest
from omegaconf import OmegaConf

from hookline.hooks import catalogue, load
from hookline.scripts.planning.trace import own_stages
from hookline.trainer.config.build import bind, build, resolve
from hookline.trainer.hook import GraphHook, Hook, HostHook
from hookline.trainer.run.blueprint import split_binding
from tests.support.command import run_small
from tests.support.refusals import assert_refused

HOOKS = sorted(catalogue())


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
    assert_refused("Unknown argument of .* 'no_such_argument'", bind, {**node, "no_such_argument": 1}, group="hooks")
    if issubclass(hook_class, GraphHook):
        assert "declare" in {key for each in hook_class.__mro__ for key in vars(each) if each is not GraphHook}
    if issubclass(hook_class, HostHook):
        state = hook.state_dict()
        assert json.loads(json.dumps(state)) == state
    assert set(own_stages(hook)) - {"build"}  # which changes nothing by itself
    assert {*hook_class.before, *hook_class.after, *hook_class.conflicts} <= {*HOOKS}
    assert 0 <= hook_class.priority <= 100


@pytest.mark.full
def test_run_trains_without_default_hooks(tmp_path):
    defaults = OmegaConf.load(catalogue()["nan_guard"].config_file.parent / "default.yaml").defaults
    summary = run_small("baseline", *(f"hooks.{name}=null" for name in defaults), run_dir=tmp_path / "run")
    assert (summary["status"], summary["hooks"]) == ("completed", {})
