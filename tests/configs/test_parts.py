"""What an untrusted config may name, and every way around it: a `_target_` is a call."""

import ast
import contextlib
import inspect
import sys
import types
from pathlib import Path

import keras
import pytest
import tensorflow as tf
import yaml
from omegaconf import OmegaConf

from hookline.trainer import schedules
from hookline.trainer.config import parts
from hookline.trainer.config.build import resolve
from hookline.trainer.config.command import parse_command
from hookline.trainer.config.parts import KERAS_CLOSED, KERAS_FAMILIES, KINDS, check_path, is_part
from hookline.trainer.config.preflight import preflight
from hookline.trainer.errors import UserError
from hookline.trainer.hook import Hook
from hookline.trainer.input.augment import Augment
from hookline.trainer.run.blueprint import from_config
from hookline.trainer.run.finished import read_config
from tests.support.refusals import assert_refused, refusal

ROOT = Path(__file__).resolve().parents[2]
GROUPS = (*KINDS, None)
STRICT = {"hooks": Hook, "augment": Augment, "optimizer": keras.optimizers.Optimizer}


def public_names():
    for room in ("trainer", "deploy", "hooks", "recipes", "scripts"):
        for file in sorted((ROOT / room).rglob("*.py")):
            module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    yield f"hookline.{module}.{node.name}"


def listed(node):
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    own = {node["_target_"]} if isinstance(node, dict) and isinstance(node.get("_target_"), str) else set()
    return own.union(*(listed(child) for child in children))


def allowed(path, group):
    try:
        check_path(path, group=group)
    except UserError:
        return False
    return True


def test_only_parts_listed_in_configs_are_allowed_each_in_its_group(monkeypatch):
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


def keras_values():
    found = {}
    for name, module in sorted(sys.modules.items()):
        api = name.removeprefix("keras.src.").removeprefix("keras.")
        if name.startswith("keras.") and api.split(".")[0] in KERAS_FAMILIES and inspect.ismodule(module):
            found |= {f"{name}.{key}": value for key, value in vars(module).items() if not key.startswith("_")}
    return found


@pytest.fixture
def touched(monkeypatch, tmp_path):
    """Record Python's audit events about files in tmp_path, and paths given to TensorFlow's file functions."""
    seen, watching = [], [True]
    ours = str(tmp_path)

    def audit(event, arguments):
        if watching and any(ours in str(each) for each in arguments if isinstance(each, str | Path)):
            seen.append(event)

    sys.addaudithook(audit)  # an audit hook cannot be removed
    for name in ("exists", "isdir", "GFile", "listdir", "remove", "makedirs", "stat"):
        real = getattr(tf.io.gfile, name)
        monkeypatch.setattr(tf.io.gfile, name, lambda path, *rest, real=real: (seen.append(str(path)), real(path))[1])
    yield seen
    watching.clear()


def construct(target, value):
    """Call a class with the value as each of its arguments in turn, and numbers for the other required ones."""
    parameters = inspect.signature(target).parameters.values()
    named = [each for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    needed = {each.name: 2 for each in named if each.default is each.empty}
    for each in named:
        with contextlib.suppress(Exception):  # most refuse a path; only files touched before that count
            target(**(needed | {each.name: value}))


def test_no_allowed_keras_class_touches_a_file_given_as_argument(tmp_path, touched):
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


def test_keras_applications_are_the_only_allowed_keras_functions():
    functions = {path: value for path, value in keras_values().items() if inspect.isfunction(value)}
    names = {(value.__name__, group) for value in functions.values() for group in GROUPS if is_part(value, group=group)}
    builders = {name for name, value in vars(keras.applications).items() if inspect.isfunction(value)}
    assert names == {(name, "model") for name in builders}
    assert "decode_predictions" not in builders


def check_all(config):
    blueprint = from_config(config)
    blueprint.check()
    blueprint.build_augments()
    blueprint.build_hooks()


RUNS_A_FILE = {
    "_target_": "hookline.scripts.sweep.run.describe_best",
    "script": {"_target_": "hookline.trainer.errors.user_path", "path": "evil.py", "key": "x"},
    "arguments": [],
}
HOOKS = [
    RUNS_A_FILE,
    {"_target_": "hookline.hooks.monitors.metrics_jsonl.append_whole", "path": "made"},
    {"_target_": "hookline.trainer.errors.import_optional", "module": "evil"},
    {"_target_": "hookline.trainer.files.remove", "path": "."},
]
ACTIVATIONS = [
    RUNS_A_FILE,
    {"_target_": "hookline.recipes.gan.gan"},
    {"_target_": "keras.layers.TextVectorization"},
    {"class_name": "function"},
]
HOSTILE = [
    *({"hooks": {"evil": node}} for node in HOOKS),
    *({"model": {"_target_": "hookline.recipes.models.mlp.mlp", "activation": node}} for node in ACTIVATIONS),
    {"model": {"_target_": "keras.applications.resnet.decode_predictions", "preds": []}},
    {"schedule": {"_target_": "hookline.recipes.data.image_folder.image_folder", "path": "."}},
]


def test_untrusted_run_executes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('executed', 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    (job,) = preflight(parse_command(["recipe=bnn"]))
    run = tmp_path / "run"
    run.mkdir()
    (run / "overrides.txt").write_text("recipe=bnn\n")
    before = sorted(tmp_path.iterdir())
    for change in HOSTILE:
        (run / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.merge(job.config, change)))
        for door in (lambda: preflight(parse_command([f"resume={run}"]))[0].config, lambda: read_config(str(run))):
            refusal(lambda door=door: check_all(door()))
        assert sorted(tmp_path.iterdir()) == before, change
    assert "evil" not in sys.modules


def test_all_parts_are_checked_before_any_is_called(tmp_path, monkeypatch):
    source = "called = []\nclass Mine:\n    def __init__(self, x=1): called.append(x)\n"
    (tmp_path / "part_of_mine.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    own = "part_of_mine.Mine"
    (job,) = preflight(parse_command(["recipe=bnn", "plugins=[part_of_mine]", f"+hooks.mine._target_={own}"]))
    for change in ({"mine": {"_target_": own, "y": 2}}, {"mine": {"_target_": own}}):
        with pytest.raises(UserError, match=r"^hooks\.mine: (Unknown argument of .* 'y'|.*does not derive from Hook)"):
            check_all({**job.config, "hooks": {**job.config["hooks"], **change}})
    assert sys.modules["part_of_mine"].called == []


NO_PARTS = [
    "os.system", "builtins.eval", "importlib.import_module", "pickle.loads", "numpy.load", "hydra.utils.instantiate",
    "tensorflow.saved_model.load", "keras.src.utils.file_utils.os.system", "keras.src.layers.core.dense.ops",
    "keras.layers.os.system", "keras.utils.get_file", "keras.saving.load_model", "keras.layers.get",
    "keras.config.enable_unsafe_deserialization", "keras.layers.deserialize", "keras.layers.TFSMLayer",
    "keras.optimizers.get", "keras.optimizers.Adam.from_config", "keras.callbacks.LambdaCallback",
    "hookline.trainer.schedules.keras.utils.get_file", "hookline.trainer.schedules.tf.io.write_file",
    "hookline.trainer.schedules.Any", "hookline.trainer.errors.difflib", "hookline.trainer.network.dataclass",
    "hookline.hooks.__builtins__.eval", "hookline.hooks.__init__.__builtins__", "hookline.trainer.config.build.build",
    "hookline.recipes.data.array_files.np.load", "hookline.trainer.config.build.importlib.import_module",
    "hookline.trainer.run.directory.make_directory", "hookline.trainer.run.directory.subprocess.run",
]  # fmt: skip


def test_target_that_builds_no_part_of_a_run_is_refused():
    for path in NO_PARTS:
        assert refusal(resolve, path).startswith(f"_target_={path}")
    for path in ("", "Adam", ".Adam", "keras.", "keras..Adam", "keras.optimizers.Adam()", None, 3, []):
        assert_refused("Expected an import path such as", check_path, path)
    assert resolve("keras.layers.Dense") is keras.layers.Dense
    assert resolve("keras.applications.MobileNetV2", group="model") is keras.applications.MobileNetV2
    assert resolve("hookline.trainer.schedules.cosine", group="schedule") is schedules.cosine


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An importable package with a function, a class, aliases, and objects that only look like a class or function."""
    folder = tmp_path / "some_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("from some_package.nets import net\n")
    (folder / "nets.py").write_text(
        "import functools\nimport os\nfrom os import system\nfrom shutil import rmtree\n"
        "from keras.layers import Dense\n"
        "def net(width):\n    return width\n"
        "class Net:\n    class Inner: ...\n    def __call__(self): ...\n"
        "instance = Net()\npartial = functools.partial(os.system, 'ls')\nanonymous = lambda: None\n"
        "system.__class__\n"
        "def liar(): ...\nliar.__module__ = 'os'\n"
        "def imposter(): ...\nimposter.__qualname__ = 'net'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "some_package"]:
        monkeypatch.delitem(sys.modules, name)
    return "some_package"


def test_user_package_must_be_listed_and_gives_access_to_nothing_else(package):
    assert_refused(r"If you trust it, add plugins=\[some_package\]", resolve, "some_package.nets.net")
    assert package not in sys.modules, "it must not be imported before it is allowed"
    found = resolve("some_package.nets.net", plugins=[package])
    assert isinstance(found, types.FunctionType)
    assert resolve("some_package.net", plugins=[package]) is found, "a package may re-export its own"
    assert resolve("some_package.nets.Dense", plugins=[package]) is keras.layers.Dense
    for path in ("some_package_2.net", "hooksmith.net"):  # other packages with a common prefix
        assert_refused("is not allowed", check_path, path, plugins=[package])
    for name in ("system", "os", "rmtree", "partial", "instance", "anonymous", "liar", "imposter"):
        with pytest.raises(UserError, match="is not allowed: it is not a class or function that some_package provides"):
            resolve(f"some_package.nets.{name}", plugins=[package])


def test_typo_in_a_target_is_reported(package):
    for path, words in (
        ("keras.optimizers.Adma", "has no 'Adma'. Did you mean 'Adamax'"),
        ("some_package.nest.net", "there is no module 'some_package.nest'"),
    ):
        assert_refused(words, resolve, path, plugins=[package])
    with pytest.raises(UserError, match=r"configs/schedule lists\. Did you mean 'hookline\.trainer\.schedules\.cos"):
        check_path("hookline.trainer.schedules.cosin", group="schedule")
