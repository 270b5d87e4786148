"""The rules of the house that a machine can check, each with a planted fault that it must find."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("trainer", "hooks", "recipes", "scripts")
FORBIDDEN_IMPORTS = {
    "trainer": {"hooks", "recipes", "scripts", "train", "tests"},
    "hooks": {"recipes", "scripts", "train", "tests"},
    "recipes": {"hooks", "scripts", "train", "tests"},
    "scripts": {"tests"},
}
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
SKIPPED_FOLDERS = {"runs", "multirun", "outputs", "data", "build", "dist", "venv", "__pycache__"}

# Put together from parts, so that this file does not break its own rules.
MACHINE_PATH = re.compile(
    r"(?<![\w./-])/(?:" + "|".join(["work", "root", "home", "Users", "tmp/hk", "opt/pypi"]) + ")/"
)
INDEX_HOST = re.compile(
    "|".join(
        [
            r"pypi\." + "(org|python|ngc|nvidia)",
            "pythonhosted" + r"\.org",
            "anaconda" + r"\.(org|com)",
            "(pypi|simple)" + "/simple",
            r"^\s*--(extra-)?(index-url|find-links)",
        ]
    ),
    re.MULTILINE | re.IGNORECASE,
)

Files = dict[str, str]
Rule = Callable[[Files], list[str]]


def _listed_by_git() -> list[str] | None:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return [name for name in listed.stdout.split("\0") if name]


def _listed_by_walking() -> list[str]:
    names = []
    for folder, inner, files in os.walk(ROOT):
        here = Path(folder)
        top = here == ROOT
        inner[:] = [name for name in inner if not _is_skipped(name, top=top)]
        names += [(here / name).relative_to(ROOT).as_posix() for name in files]
    return names


def _is_skipped(folder: str, *, top: bool) -> bool:
    if folder == "__pycache__" or (folder.startswith(".") and folder != ".ci"):
        return True
    return top and folder in SKIPPED_FOLDERS


def _read(names: list[str]) -> Files:
    files = {}
    for name in sorted(names):
        path = ROOT / name
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            if b"\0" not in data:
                files[name] = data.decode("utf-8")
    return files


@pytest.fixture(scope="module")
def repository() -> Files:
    """Text files of the repository: path from its root, and content."""
    listed = _listed_by_git()
    return _read(_listed_by_walking() if listed is None else listed)


def _python(files: Files) -> Iterator[tuple[str, str, ast.Module]]:
    for name, source in files.items():
        if name.endswith(".py"):
            yield name, source, ast.parse(source, filename=name)


def _room(name: str) -> str | None:
    room = name.split("/")[0]
    return room if "/" in name and room in ROOMS else None


def _imported_modules(name: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the absolute name of everything that a module imports, also by `import_module("...")`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            package = name.split("/")[: -node.level] if node.level else []
            module = ".".join([*package, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}" if module else alias.name
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def imports_against_the_direction(files: Files) -> list[str]:
    return [
        f"{name}:{line} imports {module}"
        for name, _, tree in _python(files)
        for line, module in _imported_modules(name, tree)
        if (room := _room(name)) and module.split(".")[0] in FORBIDDEN_IMPORTS[room]
    ]


def uses_of_tf_keras(files: Files) -> list[str]:
    found = []
    for name, _, tree in _python(files):
        for line, module in _imported_modules(name, tree):
            if module == "tf_keras" or module.startswith(("tensorflow.keras", "tensorflow.python.keras", "tf_keras.")):
                found.append(f"{name}:{line}")
        found += [
            f"{name}:{node.lineno}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and ast.unparse(node) in {"tf.keras", "tensorflow.keras"}
        ]
    return found


def long_files(files: Files) -> list[str]:
    lengths = {name: len(text.splitlines()) for name, text in files.items() if name.endswith((".py", ".sh", ".yaml"))}
    return [f"{name} has {length} lines" for name, length in lengths.items() if length > MAX_FILE_LINES]


def long_functions(files: Files) -> list[str]:
    found = []
    for name, _, tree in _python(files):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    found.append(f"{name}:{node.lineno} {node.name} has {length} lines")
    return found


def missing_docstrings(files: Files) -> list[str]:
    found = []
    for name, _, tree in _python(files):
        if not _room(name) and name != "train.py":
            continue
        if not ast.get_docstring(tree):
            found.append(f"{name}: module")
        for node in tree.body:
            documented = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if documented and not node.name.startswith("_") and not ast.get_docstring(node):
                found.append(f"{name}:{node.lineno} {node.name}")
    return found


def _lines_matching(files: Files, pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name}:{number} {line.strip()[:80]}"
        for name, text in files.items()
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


def machine_paths(files: Files) -> list[str]:
    return _lines_matching(files, MACHINE_PATH)


def index_hosts(files: Files) -> list[str]:
    return _lines_matching(files, INDEX_HOST)


RULES = [
    imports_against_the_direction,
    uses_of_tf_keras,
    long_files,
    long_functions,
    missing_docstrings,
    machine_paths,
    index_hosts,
]

BODY = "\n".join(["    pass"] * MAX_FUNCTION_LINES)
DOC = '"""Say something."""\n'
FAULTS: list[tuple[Rule, str, str]] = [
    (imports_against_the_direction, "trainer/step/loop.py", "import hooks.center_loss"),
    (imports_against_the_direction, "trainer/loop.py", "from recipes import bnn"),
    (imports_against_the_direction, "trainer/loop.py", "def late():\n    from hooks.center_loss import CenterLoss"),
    (imports_against_the_direction, "trainer/loop.py", "import importlib\nimportlib.import_module('hooks.freeze')"),
    (imports_against_the_direction, "trainer/step/loop.py", "from ... import hooks"),
    (imports_against_the_direction, "hooks/freeze.py", "from recipes.data import digits"),
    (imports_against_the_direction, "hooks/monitors/watch.py", "import train"),
    (imports_against_the_direction, "recipes/bnn.py", "from hooks.freeze import Freeze"),
    (uses_of_tf_keras, "scripts/plan.py", "import tensorflow as tf\nlayer = tf.keras.layers.Dense(3)"),
    (uses_of_tf_keras, "tests/unit/test_a.py", "from tensorflow import keras"),
    (uses_of_tf_keras, "hooks/freeze.py", "import tensorflow.keras.layers"),
    (uses_of_tf_keras, "hooks/freeze.py", "import tf_keras"),
    (long_files, "hooks/freeze.py", "x = 1\n" * (MAX_FILE_LINES + 1)),
    (long_functions, "tests/unit/test_a.py", f"def long():\n{BODY}"),
    (long_functions, "hooks/freeze.py", f"class A:\n    async def long(self):\n{BODY.replace('    ', ' ' * 8)}"),
    (missing_docstrings, "trainer/__init__.py", ""),
    (missing_docstrings, "scripts/plan.py", f"{DOC}def plan(): ..."),
    (missing_docstrings, "recipes/models/cnn.py", f"{DOC}class Cnn: ..."),
    (missing_docstrings, "train.py", "x = 1"),
    (machine_paths, "README.md", "see /" + "work/data/digits.npz"),
    (machine_paths, "configs/train.yaml", "path: /" + "home/someone/data"),
    (machine_paths, "scripts/setup.sh", "cd '/" + "root/x'"),
    (index_hosts, "requirements.lock", "--extra-index" + "-url https://example.com/"),
    (index_hosts, "requirements.lock", "x @ https://files.python" + "hosted.org/x.whl"),
    (index_hosts, "README.md", "https://" + "PyPI" + ".org/project/x"),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_repository_keeps(rule: Rule, repository: Files):
    assert rule(repository) == []


@pytest.mark.parametrize(("rule", "name", "source"), FAULTS, ids=[f"{r.__name__}-{n}" for r, n, _ in FAULTS])
def test_a_planted_fault_is_found(rule: Rule, name: str, source: str):
    assert len(rule({name: source})) == 1


def test_every_rule_has_a_planted_fault():
    assert {rule for rule, _, _ in FAULTS} == set(RULES)


@pytest.mark.parametrize(
    "source",
    [
        DOC + "import trainer\nfrom trainer.hook import GraphHook\nimport keras\nfrom . import monitors",
        DOC + "def _private(): ...\nTEXT = 'network/root/of/hooks, tf.keras is not used, scripts/root/a'",
        DOC + f"def long():\n    {DOC}" + "\n".join(["    pass"] * (MAX_FUNCTION_LINES - 2)),
        DOC + "x = 1\n" * (MAX_FILE_LINES - 1),
    ],
)
def test_what_is_allowed_is_left_alone(source: str):
    assert [found for rule in RULES for found in rule({"hooks/freeze.py": source})] == []


def test_walking_the_tree_finds_the_source_files_that_git_lists(repository: Files):
    walked = _read(_listed_by_walking())
    rooms = {name for name in repository if _room(name) and name.endswith(".py")}
    assert rooms <= walked.keys()
    assert {"pyproject.toml", ".ci/run", "LICENSE"} <= walked.keys() & repository.keys()
    assert not any(name.startswith((".git/", ".venv/", "runs/")) for name in walked)


def test_every_lock_entry_is_pinned_and_hashed(repository: Files):
    locks = {name: text for name, text in repository.items() if name.endswith(".lock")}
    assert len(locks) == 3
    for name, text in locks.items():
        entries = text.replace("\\\n", " ").splitlines()
        assert entries, name
        for entry in entries:
            assert re.match(r"[\w.-]+==[^ ]+ .*--hash=sha256:[0-9a-f]{64}", entry), f"{name}: {entry[:80]}"
