from __future__ import annotations

import inspect
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import hooks
from scripts.catalogue import PAGE, compare_pages
from scripts.documentation.description import Description, describe_hooks
from scripts.documentation.gaps import find_gaps
from scripts.documentation.page import make_page
from trainer.config.command import parse_command
from trainer.config.preflight import preflight_each
from trainer.errors import UserError
from trainer.hook import GraphHook, Hook

DEFAULTS = [
    *("fused_batch_norm", "nan_guard", "randomness_guard", "advisor", "progress", "tensorboard", "pictures"),
    *("projector", "metrics_jsonl", "checkpoint", "early_stopping", "final_table"),
]


def test_every_default_hook_is_in_the_catalogue_with_a_purpose_of_one_line():
    entries = hooks.catalogue()
    assert set(DEFAULTS) <= set(entries)
    assert "default" not in entries
    for name, entry in entries.items():
        assert entry.name == name == entry.config_file.stem
        assert entry.target.startswith("hooks.")
        assert 10 < len(entry.purpose) <= 120
        assert "\n" not in entry.purpose


def test_the_catalogue_is_read_without_tensorflow():
    program = "import sys, hooks; hooks.catalogue(); sys.exit('tensorflow' in sys.modules or 'keras' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize("name", sorted(hooks.catalogue()))
def test_a_hook_loads_and_its_config_names_every_argument_with_its_default(name):
    entry, hook_class = hooks.catalogue()[name], hooks.load(name)
    assert issubclass(hook_class, Hook)
    assert f"{hook_class.__module__}.{hook_class.__name__}" == entry.target
    config = OmegaConf.to_container(OmegaConf.load(entry.config_file))[name]
    config.pop("_target_")
    if issubclass(hook_class, GraphHook):
        assert "objective" in config, f'add objective: "*" to {entry.config_file.name}; no constructor names it'
        assert config.pop("objective") == hook_class.objective == "*"
    parameters = inspect.signature(hook_class).parameters
    assert set(config) == set(parameters)
    for argument, parameter in parameters.items():
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        if parameter.default is not inspect.Parameter.empty:
            default = list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default
            assert config[argument] == default, argument


def test_an_unknown_hook_gets_a_suggestion():
    with pytest.raises(UserError, match="Unknown hook 'progres'. Did you mean 'progress'?"):
        hooks.load("progres")


def write(directory: Path, name: str, text: str) -> Path:
    path = directory / f"{name}.yaml"
    path.write_text(text)
    return path


def test_a_file_without_a_purpose_is_refused(tmp_path):
    write(tmp_path, "mask", "mask:\n  _target_: hooks.mask.Mask\n")
    with pytest.raises(ValueError, match=r"mask\.yaml must start with a comment"):
        hooks.catalogue(tmp_path)


def test_a_file_with_two_hooks_is_refused(tmp_path):
    write(tmp_path, "two", "# Two\none:\n  _target_: a.B\nother:\n  _target_: a.C\n")
    with pytest.raises(ValueError, match="holds the hooks one, other"):
        hooks.catalogue(tmp_path)


def test_lists_of_defaults_and_empty_files_are_left_out(tmp_path):
    path = write(tmp_path, "mask", "# Keep pruned weights at zero\nmask:\n  _target_: hooks.mask.Mask\n")
    write(tmp_path, "bundle", "# A bundle\ndefaults: [mask]\n")
    write(tmp_path, "empty", "")
    entry = hooks.HookEntry("mask", "hooks.mask.Mask", "Keep pruned weights at zero", path)
    assert hooks.catalogue(tmp_path) == {"mask": entry}


def test_a_file_that_has_changed_is_read_again(tmp_path):
    path = write(tmp_path, "mask", "# Keep pruned weights at zero\nmask:\n  _target_: hooks.mask.Mask\n")
    assert hooks.catalogue(tmp_path)["mask"].target == "hooks.mask.Mask"
    path.write_text(path.read_text().replace("mask.Mask", "mask.Frozen"))
    assert hooks.catalogue(tmp_path)["mask"].target == "hooks.mask.Frozen"


@pytest.fixture
def hydra_compose(tmp_path):
    """Compose a root config that has the default hooks, from a copy of `configs/hooks`."""
    target = tmp_path / "hooks"
    target.mkdir()
    for path in hooks.CONFIG_DIRECTORY.glob("*.yaml"):
        (target / path.name).write_text(path.read_text())
    write(tmp_path, "train", "defaults:\n  - _self_\n  - hooks/default\n")

    def run(*overrides: str) -> dict:
        with initialize_config_dir(str(tmp_path), version_base="1.3"):
            return OmegaConf.to_container(compose("train", overrides=list(overrides)))["hooks"]

    return run


def test_hydra_composes_the_default_hooks_by_name(hydra_compose):
    composed = hydra_compose()
    assert list(composed) == DEFAULTS
    assert composed["early_stopping"]["patience"] == 20


def test_hydra_changes_and_removes_default_hooks(hydra_compose):
    composed = hydra_compose("hooks.early_stopping.patience=3", "~hooks.tensorboard", "hooks.progress=null")
    assert composed["early_stopping"]["patience"] == 3
    assert "tensorboard" not in composed
    assert composed["progress"] is None


@pytest.fixture(scope="module")
def described() -> list[Description]:
    """Return all that the project's own hooks say of themselves."""
    return describe_hooks()


def test_every_hook_says_what_the_page_has_to_tell_and_the_page_says_it(described):
    assert [gap for hook in described for gap in find_gaps(hook)] == []
    assert compare_pages(PAGE.read_text(), make_page(described)) is None, "run python scripts/catalogue.py"


def test_the_page_has_every_hook_of_the_project(described):
    assert {hook.name for hook in described} == {path.stem for path in hooks.CONFIG_DIRECTORY.glob("*.yaml")} - {
        "default"
    }
    assert {hook.name for hook in described if hook.is_default} == set(DEFAULTS)


def test_stages_on_the_page_are_those_that_the_plan_of_a_run_knows(described):
    from trainer.plan.stages import PHASES

    known = {stage for stages in PHASES.values() for stage in stages}
    for hook in described:
        assert set(hook.stages) <= known, hook.name


def test_every_example_composes_and_is_about_its_hook(described):
    examples = {
        command: hook.name
        for hook in described
        for command in hook.docstring.sections.get("Example", "").replace("\\\n", "").splitlines()
    }
    assert len(examples) >= len(described)
    words = [shlex.split(command) for command in examples]
    assert {tuple(each[:2]) for each in words} == {("python", "train.py")}
    jobs = preflight_each(parse_command([]), [each[2:] for each in words])
    for (command, name), job in zip(examples.items(), jobs, strict=True):
        removed = f"hooks.{name}=null" in command
        assert (name in job.config["hooks"]) is not removed, command
