"""A `_target_` is a call, and a config may come from somebody else: what may be called, and every way around it."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import keras
import pytest

from hookline.trainer import schedules
from hookline.trainer.config.build import resolve
from hookline.trainer.config.parts import check_path
from hookline.trainer.errors import UserError

ELSEWHERE = [
    "os.system", "posix.system", "subprocess.run", "builtins.eval", "builtins.exec", "importlib.import_module",
    "shutil.rmtree", "pickle.loads", "numpy.load", "tensorflow.io.write_file", "tensorflow.saved_model.load",
    "hydra.utils.instantiate", "omegaconf.OmegaConf.load",
]  # fmt: skip
ALIASES = [
    "keras.src.utils.file_utils.os.system", "keras.src.layers.core.dense.ops", "keras.layers.os.system",
]  # fmt: skip
OF_OURS = [
    "trainer.schedules.keras.utils.get_file", "trainer.schedules.tf.io.write_file", "trainer.schedules.Any",
    "trainer.errors.difflib.get_close_matches", "trainer.errors.difflib", "trainer.network.dataclass",
    "hooks.__builtins__.eval", "hooks.__init__.__builtins__", "recipes.data.array_files.np.load",
    "trainer.config.build.build", "trainer.config.build.resolve", "trainer.config.build.importlib.import_module",
    "trainer.run.directory.make_directory", "trainer.run.directory.subprocess.run",
]  # fmt: skip
LOADERS = [
    "keras.utils.get_file", "keras.models.load_model", "keras.saving.load_model",
    "keras.saving.deserialize_keras_object", "keras.config.enable_unsafe_deserialization", "keras.layers.deserialize",
    "keras.layers.get", "keras.layers.TFSMLayer", "keras.optimizers.deserialize", "keras.optimizers.get",
    "keras.optimizers.Adam.from_config", "keras.callbacks.LambdaCallback",
    "keras.src.saving.serialization_lib.deserialize_keras_object",
]  # fmt: skip


def test_what_builds_no_part_of_a_run_is_refused() -> None:
    for path in [*ELSEWHERE, *ALIASES, *LOADERS, *(f"hookline.{path}" for path in OF_OURS)]:
        with pytest.raises(UserError) as caught:
            resolve(path)
        assert str(caught.value).startswith(f"_target_={path}")
    for path in ("", "Adam", ".Adam", "keras.", "keras..Adam", "keras.optimizers.Adam()", None, 3, []):
        with pytest.raises(UserError, match="Expected an import path such as"):
            check_path(path)


def test_classes_and_functions_that_build_are_found() -> None:
    assert resolve("keras.optimizers.Adam") is keras.optimizers.Adam
    assert resolve("keras.layers.Dense") is keras.layers.Dense
    assert resolve("keras.applications.MobileNetV2", group="model") is keras.applications.MobileNetV2
    assert resolve("hookline.trainer.schedules.cosine", group="schedule") is schedules.cosine


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An installed package with a hook, aliases, and things that only look like a class or function."""
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
    (folder / "broken.py").write_text("import a_package_that_is_not_installed\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "some_package"]:
        monkeypatch.delitem(sys.modules, name)
    return "some_package"


def test_a_package_of_ones_own_must_be_listed(package: str) -> None:
    with pytest.raises(UserError, match=r"If you trust it, add plugins=\[some_package\]"):
        resolve("some_package.nets.net")
    assert package not in sys.modules, "it must not be imported before it is allowed"
    found = resolve("some_package.nets.net", plugins=[package])
    assert isinstance(found, types.FunctionType)
    assert resolve("some_package.net", plugins=[package]) is found, "a package may re-export its own"
    assert resolve("some_package.nets.Dense", plugins=[package]) is keras.layers.Dense


def test_a_listed_package_allows_no_other_with_the_same_beginning(package: str) -> None:
    for path in ("some_package_2.net", "hooksmith.net"):
        with pytest.raises(UserError, match="is not allowed"):
            check_path(path, plugins=[package])


def test_a_listed_package_leads_nowhere_else(package: str) -> None:
    for name in ("system", "os", "rmtree", "partial", "instance", "anonymous", "liar", "imposter"):
        with pytest.raises(UserError, match="is not allowed: it is not a class or function that some_package defines"):
            resolve(f"some_package.nets.{name}", plugins=[package])


def test_a_typo_is_named(package: str) -> None:
    for path, words in (
        ("keras.optimizers.Adma", "the module 'keras.optimizers' has no 'Adma'. Did you mean 'Adamax'?"),
        ("some_package.net.net", "there is no module 'some_package.net'. Did you mean 'nets'?"),
        ("some_package.broken.net", "some_package/broken.py:1). Install what is missing."),
    ):
        with pytest.raises(UserError) as caught:
            resolve(path, plugins=[package])
        assert words in str(caught.value)
    with pytest.raises(UserError, match=r"configs/schedule lists\. Did you mean 'hookline\.trainer\.schedules\.cos"):
        check_path("hookline.trainer.schedules.cosin", group="schedule")
