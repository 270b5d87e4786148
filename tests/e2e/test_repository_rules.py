"""The project's rules that no linter checks, each with a planted fault that it must find."""

import ast
import re
import subprocess
from functools import cache, partial

import pytest

from tests.support.workers import ROOT

ROOMS = ("trainer", "deploy", "hooks", "recipes", "scripts")
MAY_IMPORT = {
    "trainer": {"trainer"},
    "deploy": {"deploy", "trainer"},
    "hooks": {"hooks", "trainer"},
    "recipes": {"recipes", "trainer"},
    "scripts": {*ROOMS, "train"},
}
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
SKIPPED_FOLDERS = {"runs", "multirun", "outputs", "build", "dist", "venv", "__pycache__"}

# Put together from parts, so that this file does not break its own rules.
MACHINE_PATH = re.compile(
    r"(?<![\w./-])/(?:" + "|".join(["work", "root", "home", "Users", "tmp/hk", "opt/pypi"]) + ")/"
)
INDEX_HOSTS = [r"pypi\." + "(org|python|ngc|nvidia)", "pythonhosted" + r"\.org", "anaconda" + r"\.(org|com)"]
INDEX_HOSTS += ["(pypi|simple)" + "/simple", r"^\s*--(extra-)?(index-url|find-links)"]
INDEX_HOST = re.compile("|".join(INDEX_HOSTS), re.MULTILINE | re.IGNORECASE)


def _names():
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return [name for name in listed.stdout.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):  # no clone
        paths = [path.relative_to(ROOT) for path in ROOT.rglob("*")]
        return [path.as_posix() for path in paths if not any(_is_skipped(each) for each in path.parts)]


def _is_skipped(folder):
    return folder in SKIPPED_FOLDERS or (folder.startswith(".") and folder != ".ci")


@pytest.fixture(scope="module")
def repository():
    paths = {name: ROOT / name for name in sorted(_names())}
    found = {name: path.read_bytes() for name, path in paths.items() if path.is_file() and not path.is_symlink()}
    return {name: data.decode("utf-8") for name, data in found.items() if b"\0" not in data}


IMPORTS, FUNCTIONS = ast.Import | ast.ImportFrom, ast.FunctionDef | ast.AsyncFunctionDef


DYNAMIC = re.compile(r"""\b(?:import_module|__import__)\(\s*["']([\w.]+)""")


def _statements(body):
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _statements(getattr(node, part, ()))


@cache
def _nodes(source):
    """Return the imports at the top of a module, and all imports and functions in it."""
    tree = ast.parse(source)
    found = [node for node in _statements(tree.body) if isinstance(node, IMPORTS | FUNCTIONS)]
    return [node for node in tree.body if isinstance(node, IMPORTS)], found


def _room(name):
    room = name.split("/")[0]
    return room if "/" in name and room in ROOMS else None


def _imported_modules(name, imports):
    """Yield the line and the absolute name of everything that a module imports."""
    for node in imports:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        else:
            package = name.split("/")[: -node.level] if node.level else []
            module = ".".join([*package, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}" if module else alias.name


def imports_against_the_direction(files):
    found = []
    for name, source in files.items():
        if name.endswith(".py") and (room := _room(name)):
            imports = [node for node in _nodes(source)[1] if isinstance(node, IMPORTS)]
            modules = [*_imported_modules(name, imports), *(("", each) for each in DYNAMIC.findall(source))]
            wrong = [each for each in modules if not _may_import(room, each[1].split("."))]
            found += [f"{name}:{line} imports {module}" for line, module in wrong]
    return found


def _may_import(room, module):
    """Return whether a package may import a module: its own and lower ones, by the one import root."""
    if module[0] == "hookline" and len(module) > 1 and module[1] in {*ROOMS, "train"}:
        return module[1] in MAY_IMPORT[room]
    return module[0] not in {*ROOMS, "train", "tests"}


def import_cycles(files):
    modules = {"hookline." + name.removesuffix(".py").replace("/", "."): name for name in files if _room(name)}
    imported = {
        module: {
            found
            for _, full in _imported_modules(name, _nodes(files[name])[0])
            for found in (full, full.rpartition(".")[0])
            if found in modules
        }
        for module, name in modules.items()
        if name.endswith(".py")
    }
    while leaves := [module for module, others in imported.items() if not others & imported.keys()]:
        for module in leaves:
            del imported[module]
    return [f"{modules[module]} is in or above an import cycle" for module in imported]


def long_files(files):
    lengths = {name: len(text.splitlines()) for name, text in files.items() if name.endswith((".py", ".sh", ".yaml"))}
    return [f"{name} has {length} lines" for name, length in lengths.items() if length > MAX_FILE_LINES]


def long_functions(files):
    return [
        f"{name}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for name, source in files.items()
        if name.endswith(".py")
        for node in _nodes(source)[1]
        if isinstance(node, FUNCTIONS) and node.end_lineno - node.lineno >= MAX_FUNCTION_LINES
    ]


def _lines_matching(pattern, files):
    return [
        f"{name}:{number} {line.strip()[:80]}"
        for name, text in files.items()
        if pattern.search(text)
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


machine_paths, index_hosts = partial(_lines_matching, MACHINE_PATH), partial(_lines_matching, INDEX_HOST)
RULES = [imports_against_the_direction, import_cycles, long_files, long_functions, machine_paths, index_hosts]
BODY = "\n".join(["    pass"] * MAX_FUNCTION_LINES)
FAULTS = [
    (imports_against_the_direction, "trainer/step/loop.py", "import hookline.hooks.center_loss"),
    (imports_against_the_direction, "trainer/loop.py", "def late():\n    from hookline.hooks.ema import Ema"),
    (imports_against_the_direction, "trainer/loop.py", "import importlib\nimportlib.import_module('hooks.freeze')"),
    (imports_against_the_direction, "recipes/bnn.py", "from hookline.hooks import freeze"),
    (imports_against_the_direction, "scripts/plan.py", "from trainer.errors import UserError"),
    (import_cycles, "trainer/loop.py", "from hookline.trainer import step\nfrom hookline.trainer.loop import x"),
    (long_files, "hooks/freeze.py", "x = 1\n" * (MAX_FILE_LINES + 1)),
    (long_functions, "tests/hooks/test_a.py", f"def long():\n{BODY}"),
    (machine_paths, "configs/train.yaml", "path: /" + "home/someone/data"),
    (index_hosts, "requirements.lock", "--extra-index" + "-url https://example.com/"),
    (index_hosts, "requirements.lock", "x @ https://files.python" + "hosted.org/x.whl"),
]
ALLOWED = "import hookline.trainer\nfrom hookline.hooks import monitors\nTEXT = 'network/root/of/hooks'"


def test_repository_keeps_every_rule(repository):
    assert [found for rule in RULES for found in rule(repository)] == []


def test_planted_faults_are_found_and_allowed_code_passes():
    assert {rule for rule, _, _ in FAULTS} == set(RULES)
    for rule, name, source in FAULTS:
        assert len(rule({name: source})) == 1, source
    assert [found for rule in RULES for found in rule({"hooks/freeze.py": ALLOWED})] == []


def test_every_lock_entry_is_pinned_and_hashed(repository):
    locks = {name: text for name, text in repository.items() if name.endswith(".lock")}
    assert len(locks) == 3
    for name, text in locks.items():
        for entry in text.replace("\\\n", " ").splitlines():
            assert re.match(r"[\w.-]+==[^ ]+ .*--hash=sha256:[0-9a-f]{64}", entry), f"{name}: {entry[:80]}"
