"""What a config from a stranger may name: the parts that configs/ lists, and classes of Keras that only build."""

from __future__ import annotations

import ast
import contextlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
import yaml
from omegaconf import OmegaConf

from hookline.trainer.config import parts
from hookline.trainer.config.build import resolve
from hookline.trainer.config.command import parse_command
from hookline.trainer.config.parts import KERAS_CLOSED, KERAS_FAMILIES, KINDS, check_path, is_part
from hookline.trainer.config.preflight import preflight
from hookline.trainer.errors import UserError
from hookline.trainer.hook import Hook
from hookline.trainer.input.augment import Augment
from hookline.trainer.run.early import part_checks
from hookline.trainer.run.finished import read_config

ROOT = Path(__file__).resolve().parents[2]
GROUPS = (*KINDS, None)
STRICT = {"hooks": Hook, "augment": Augment, "optimizer": keras.optimizers.Optimizer}


def public_names() -> Iterator[str]:
    """The import path of every public function and class of the tree, nested ones left out."""
    for room in ("trainer", "deploy", "hooks", "recipes", "scripts"):
        for file in sorted((ROOT / room).rglob("*.py")):
            module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    yield f"hookline.{module}.{node.name}"


def listed(node: Any) -> set[str]:
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    own = {node["_target_"]} if isinstance(node, dict) and isinstance(node.get("_target_"), str) else set()
    return own.union(*(listed(child) for child in children))


def allowed(path: str, group: str | None) -> bool:
    try:
        check_path(path, group=group)
    except UserError:
        return False
    return True


def test_only_what_configs_lists_can_be_named_each_in_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_refusal", lambda *rest: UserError("refused"))  # ten thousand suggestions take a minute
    paths = set(public_names())
    assert {"hookline.scripts.sweep.run.describe_best", "hookline.hooks.monitors.metrics_jsonl.append_whole"} <= paths
    for group in GROUPS:
        files = sorted((ROOT / "configs" / group).rglob("*.yaml")) if group else []
        expected = set().union(*(listed(yaml.safe_load(file.read_text())) for file in files))
        ours = {path for path in expected if not path.startswith("keras.")}
        assert {path for path in paths if allowed(path, group)} == ours, group
        for path in ours:
            target = resolve(path, group=group)
            kind = STRICT.get(group or "")
            assert inspect.isfunction(target) if kind is None else issubclass(target, kind), path


def keras_values() -> dict[str, Any]:
    """Whatever public name the allowed families of Keras hold, their submodules' included."""
    found: dict[str, Any] = {}
    for name, module in sorted(sys.modules.items()):
        api = name.removeprefix("keras.src.").removeprefix("keras.")
        if name.startswith("keras.") and api.split(".")[0] in KERAS_FAMILIES and inspect.ismodule(module):
            found |= {f"{name}.{key}": value for key, value in vars(module).items() if not key.startswith("_")}
    return found


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The names of the functions that were given the path of a file: Python's, TensorFlow's and the importer."""
    seen: list[str] = []
    ours = str(tmp_path)

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if seen is not None and any(ours in str(each) for each in arguments if isinstance(each, str | Path)):
            seen.append(event)

    sys.addaudithook(audit)  # cannot be taken back; `ours` is the path of this test alone
    for name in ("exists", "isdir", "GFile", "listdir", "remove", "makedirs", "stat"):
        real = getattr(tf.io.gfile, name)
        monkeypatch.setattr(tf.io.gfile, name, lambda path, *rest, real=real: (seen.append(str(path)), real(path))[1])
    return seen


def construct(target: type, value: str) -> None:
    """Call a class with the value as each of its arguments in turn, and numbers for those that it needs."""
    parameters = inspect.signature(target).parameters.values()
    named = [each for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    needed = {each.name: 2 for each in named if each.default is each.empty}
    for each in named:
        with contextlib.suppress(Exception):  # most refuse a path; what counts is what they touched before
            target(**(needed | {each.name: value}))


def test_no_keras_class_touches_a_file_that_its_arguments_name(tmp_path: Path, touched: list[str]) -> None:
    file = tmp_path / "words.txt"
    file.write_text("a\nb\n")
    classes = {path: value for path, value in keras_values().items() if inspect.isclass(value)}
    outside = {value.__name__ for value in classes.values() if is_part(value)} & KERAS_CLOSED
    assert not outside
    guilty = set()
    for value in set(classes.values()):
        touched.clear()
        if value.__module__.startswith("keras.src.") and value.__name__ != "TFSMLayer":
            construct(value, str(file))
        if touched:
            guilty.add(value)
    assert {"TextVectorization", "StringLookup"} <= {value.__name__ for value in guilty}, "this test sees readers"
    assert not [value for value in guilty for group in GROUPS if is_part(value, group=group)]


def test_of_keras_functions_only_applications_can_be_named() -> None:
    functions = {path: value for path, value in keras_values().items() if inspect.isfunction(value)}
    names = {(value.__name__, group) for value in functions.values() for group in GROUPS if is_part(value, group=group)}
    builders = {name for name, value in vars(keras.applications).items() if inspect.isfunction(value)}
    assert names == {(name, "model") for name in builders}
    assert "decode_predictions" not in builders


def check_all(config: dict[str, Any]) -> None:
    """Check a config as a run does before it calls anything."""
    for check in part_checks(config):
        check()


RUNS_A_FILE = {
    "_target_": "hookline.scripts.sweep.run.describe_best",
    "script": {"_target_": "hookline.trainer.errors.user_path", "path": "evil.py", "key": "x"},
    "arguments": [],
}
HOSTILE: dict[str, dict[str, Any]] = {
    "hook": {"hooks": {"evil": RUNS_A_FILE}},
    "part_of_a_model": {"model": {"_target_": "hookline.recipes.models.mlp.mlp", "activation": RUNS_A_FILE}},
    "writer": {"hooks": {"evil": {"_target_": "hookline.hooks.monitors.metrics_jsonl.append_whole", "path": "made"}}},
    "importer": {"hooks": {"evil": {"_target_": "hookline.deploy.options.import_optional", "module": "evil"}}},
    "remover": {"hooks": {"evil": {"_target_": "hookline.trainer.files.remove", "path": "."}}},
    "wrong_group": {"schedule": {"_target_": "hookline.recipes.data.image_folder.image_folder", "path": "."}},
    "model_as_part": {
        "model": {"_target_": "hookline.recipes.models.mlp.mlp", "activation": {"_target_": "hookline.recipes.gan.gan"}}
    },
    "loader_of_keras": {"model": {"_target_": "keras.applications.resnet.decode_predictions", "preds": []}},
    "reader_of_keras": {
        "model": {
            "_target_": "hookline.recipes.models.mlp.mlp",
            "activation": {"_target_": "keras.layers.TextVectorization"},
        }
    },
    "importer_of_keras": {
        "model": {"_target_": "hookline.recipes.models.mlp.mlp", "activation": {"class_name": "function"}}
    },
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_run_from_a_stranger_executes_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('executed', 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    (job,) = preflight(parse_command(["recipe=bnn"]))
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.merge(job.config, HOSTILE[name])))
    (run / "overrides.txt").write_text("recipe=bnn\n")
    before = sorted(tmp_path.iterdir())
    for door in (lambda: preflight(parse_command([f"resume={run}"]))[0].config, lambda: read_config(str(run))):
        with pytest.raises(UserError) as caught:
            check_all(door())
        assert "\n" not in str(caught.value)
    assert sorted(tmp_path.iterdir()) == before
    assert "evil" not in sys.modules


def test_all_parts_are_checked_before_the_first_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "called = []\nclass Mine:\n    def __init__(self, x=1): called.append(x)\n"
    (tmp_path / "part_of_mine.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    own = "part_of_mine.Mine"
    (job,) = preflight(parse_command(["recipe=bnn", "plugins=[part_of_mine]", f"+hooks.mine._target_={own}"]))
    for change in ({"mine": {"_target_": own, "y": 2}}, {"mine": {"_target_": own}}):
        with pytest.raises(UserError, match=r"^hooks\.mine: (Unknown argument 'y'|.*does not derive from Hook)"):
            check_all({**job.config, "hooks": {**job.config["hooks"], **change}})
    assert sys.modules["part_of_mine"].called == []
