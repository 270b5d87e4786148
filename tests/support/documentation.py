"""Parse the pages of the documentation, and check their programs without running them, or run them.

Every kind of program is listed here; any other is an error, so that none is silently left out.
"""

import ast
import contextlib
import importlib
import importlib.util
import io
import re
import runpy
import shlex
import shutil
import tomllib
import traceback
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf

from hookline import train
from hookline.cli import SUBCOMMANDS, resume_arguments
from hookline.scripts.sweep.open import open_sweep, resumed_path
from hookline.trainer.config.command import Command as CommandLine
from hookline.trainer.config.command import parse_command
from hookline.trainer.config.preflight import preflight, preflight_each
from tests.support.images import write_images, write_mnist

PAGES = (
    *("README.md", "CONTRIBUTING.md", "hookline/README.md", "hookline/MIGRATION.md", "hookline/COMPARISON.md"),
    *("recipes/OWN.md", "recipes/README.md", "scripts/README.md", "trainer/README.md", "hooks/README.md"),
)
DRAWINGS = ("runs/<recipe>/<date_time>/", "batch(step)")
"""How fences without a language begin that show a tree of files, or stages, instead of commands."""


class DocumentationError(ValueError):
    """Report a part of a page that is not of a known kind."""


@dataclass(frozen=True)
class Item:
    """A block of code or, without a language, a command of a shell."""

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self):
        return f"{self.page}:{self.line}"


def read_page(page, text):
    """Yield the commands and blocks of a page that can be run or parsed, except `py`, code for other packages.

    A fence of an unknown kind is a DocumentationError.
    """
    for block in fences(page, text):
        if block.language == "" and not block.text.startswith(DRAWINGS):
            yield from commands(block)
        elif block.language in ("python", "toml"):
            yield block
        elif block.language not in ("", "text", "py"):
            raise DocumentationError(f"{block.place}: a fence of '{block.language}', which is not known here")


def fences(page, text):
    opened = None
    content = []
    for number, line in enumerate(text.splitlines(), start=1):
        marker = re.match(r"(\s*)(```+)\s*([\w-]*)", line)
        if opened is None and marker:
            opened, content = (number + 1, marker[3], marker[1]), []
        elif opened is not None and marker and not marker[3]:
            yield Item(page, opened[0], opened[1], "\n".join(content))
            opened = None
        elif opened is not None:
            content.append(line.removeprefix(opened[2]))
    if opened is not None:
        raise DocumentationError(f"{page}:{opened[0] - 1}: a fence that is not closed.")


def commands(block):
    text, line = "", block.line
    for number, part in enumerate(block.text.splitlines(), start=block.line):
        line = line if text else number
        text = f"{text} {part.strip()}"
        if text.endswith("\\"):
            text = text.removesuffix("\\").rstrip()
            continue
        if bare := re.sub(r"(^|\s)#.*", "", text).strip():
            yield replace(block, line=line, text=bare)
        text = ""


def programs(text):
    found = [[]]
    for word in shlex.split(text):
        if word == "&&":
            found.append([])
        else:
            found[-1].append(word)
    return [as_file(words) for words in found]


def as_file(words):
    if words[:1] != ["hookline"]:
        return words
    name, rest = words[1], words[2:]
    if name not in SUBCOMMANDS:
        return ["python", "-m", *words]
    script = SUBCOMMANDS[name][0].replace(".", "/")
    return ["python", f"{script}.py", *(resume_arguments(rest) if name == "resume" else rest)]


ROOT = Path(__file__).resolve().parents[2]
SHOWING = ("--help", "-h", "--cfg", "--info", "--explain")
NEED_MORE = (
    *("sh scripts/setup.sh", "sh scripts/benchmarks/environments.sh", "python -m pip", "python -m pytest"),
    *("srun", "python scripts/submit.py", "tensorboard"),
)
"""Programs that are checked and not run: they need the network or a cluster, serve until stopped, or run this test."""


def is_run(words):
    return not {" ".join(_same(words)[:count]) for count in (1, 2, 3)} & {*NEED_MORE}


def _same(words):
    return ["python" if words[0] == ".venv/bin/python" else words[0], *words[1:]]


def single_run(words):
    rest = words[2:]
    other = any(each.startswith("-") or each.partition("=")[0] == "resume" for each in rest)
    return None if other or words[1:2] not in (["train.py"], ["scripts/check_gradients.py"]) else rest


def check(program, made=()):
    """Check a program as far as possible without running it; `made` are run directories of the commands above it."""
    words = _same(program)
    if words[0] == "srun":
        check(words[1:], made)
    elif words[:2] == ["python", "-m"]:
        assert importlib.util.find_spec(words[2]), f"there is no module '{words[2]}'"
    elif words[:2] == ["python", "train.py"]:
        check_training(words[2:], made)
    elif words[0] == "python":
        check_script(Path(words[1]), words[2:])
    elif words[0] == "sh":
        assert (ROOT / words[1]).exists()
    elif is_run(words):
        raise DocumentationError(f"'{' '.join(words)}' is not a program that is known here: see {Path(__file__).name}")


def check_training(arguments, made=()):
    if any(each in SHOWING for each in arguments):
        assert train.main(arguments) == 0
        return
    sweep = "-m" in arguments
    command = parse_command([re.sub(r"^(seed=\d+),.*", r"\1", each) if sweep else each for each in arguments])
    if sweep:
        opened = open_sweep(command).sweep
        opened.directory.mkdir(parents=True, exist_ok=True)
        opened.write()
    elif resumed_path(arguments) not in made:
        preflight(command)


def check_script(script, arguments):
    """Check the arguments of a script with its own `parse`, and the jobs of scripts that train."""
    module = importlib.import_module(".".join(script.with_suffix("").parts))
    if any(each in SHOWING for each in arguments):
        module.main(arguments)
    elif script.stem == "check_gradients":
        check_training(arguments)
    elif script.stem == "launch":
        module.checked(module.parse(arguments))
    elif script.stem == "submit":
        command = module.parse(arguments).command
        check_training(["-m", *command.overrides, *(["--trials", "2"] if command.trials else [])])
    elif script.stem == "ablate":
        check_training(module.parse(arguments).overrides)
    else:
        module.parse(arguments)


def shortened(words):
    """Return a program with any training limited to two steps."""
    if Path(words[1]).name != "train.py" or any(each.startswith("resume=") for each in words):
        return words
    limits = ("trainer.epochs", "trainer.steps")
    own = [each for each in words if each.partition("=")[0] not in limits]
    return [*own, "trainer.epochs=null", "trainer.steps=2"]


READERS = {"python": ast.parse, "toml": tomllib.loads}
DATE = r"(?:<date_time>|\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)"
RUN = re.compile(rf"runs/(\w+)/{DATE}")
STAND_IN = "stand_in"
FILLED = {
    "data.path=<folder>": "data.path=clothing",
    "cifar10=<folder>": "cifar10=photos",
    "images=<folder>": "images=photos",
    "environments=<folder>": "environments=environments",
    "out=<new directory>": "out=new_directory",
    "+hooks=<name> hooks.<name>.<key>=<value>": "+hooks=ema hooks.ema.decay=0.9",
    "hooks.<name>=null": "hooks.progress=null",
    " /shared/": " shared/",
}
"""Placeholders in commands, and what replaces them here."""


def fill(command, directory, made):
    """Return the text of a command with angle brackets filled in, and write configs for the runs that it names."""
    text = command.text
    for printed, ours in FILLED.items():
        text = text.replace(printed, ours)
    for recipe in set(RUN.findall(text)) - made:
        made.add(recipe)
        data = ["data.path=photos"] if recipe == "clothing_retrieval" else []
        (job,) = preflight_each(CommandLine(()), [[f"recipe={recipe}", *data]])
        (run := directory / "runs" / recipe / STAND_IN).mkdir(parents=True)
        (run / "config.yaml").write_text(OmegaConf.to_yaml(job.config))
        (run / "overrides.txt").write_text("".join(f"{each}\n" for each in job.overrides))
    text = RUN.sub(rf"runs/\1/{STAND_IN}", text)
    if left := re.findall(r"<[\w ]+>", text):
        raise DocumentationError(f"{command.place}: {command.text}\n  nothing stands for {left[0]}")
    return text


def make_files(directory):
    """Write the files that readers bring themselves: MNIST's file, two folders of images, a file of resources."""
    np.savez(directory / "new_patients.npz")  # a block of code writes it, where blocks are run
    write_mnist(directory / "mnist.npz")
    for folder in ("photos", "clothing"):
        write_images(directory / folder, images=2, classes=10)
    shutil.copy(ROOT / "scripts" / "slurm.yaml", directory / "my.yaml")
    for folder in ("environments", "shared"):
        (directory / folder).mkdir()


def check_page(items, directory):
    """Return the errors of a page that can be found without running it; the directory is the current one."""
    make_files(directory)
    failures, jobs, made, filled = [], [], set(), set()
    for item in items:
        with _told(item, failures), contextlib.redirect_stdout(io.StringIO()):
            if item.language:
                read_block(item, directory)
                continue
            for words in programs(fill(item, directory, filled)):
                if (overrides := single_run(words)) is None:
                    check(words, made)
                else:
                    jobs.append((item, overrides))
                    made |= {each.partition("=")[2] for each in overrides if each.startswith("run_dir=")}
    with contextlib.suppress(Exception):  # all together, which is faster; one by one only where one is wrong
        preflight_each(CommandLine(()), [overrides for _, overrides in jobs])
        return failures
    for item, overrides in jobs:
        with _told(item, failures):
            preflight_each(CommandLine(()), [overrides])
    return failures


def read_block(block, directory):
    READERS[block.language](block.text)
    named = re.match(r"# *([\w./-]+\.\w+)\n", block.text)
    path = directory / (named[1] if named else "block.py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text)
    return path


def run_here(items, directory):
    """Run the commands and blocks of a page in this process; return how many, and what failed.

    Programs that start processes are left out. Trainings that no other command refers to are only checked.
    """
    make_files(directory)
    failures, count = [], 0
    for item in items:
        with _told(item, failures):
            if item.language:
                path = read_block(item, directory)
                if item.language == "python":
                    count += 1
                    _run("a block", lambda path: runpy.run_path(path) and 0, str(path))
                continue
            for words in map(_same, filter(is_run, programs(fill(item, directory, set())))):
                named = any(each.startswith(("run_dir=", "resume=")) for each in words)
                if words[1] == "train.py" and not named:
                    check(words)
                elif words[0] == "python" and "-m" not in words:
                    count += 1
                    module = importlib.import_module(".".join(Path(words[1]).with_suffix("").parts))
                    _run(shlex.join(words), module.main, shortened(words)[2:])
    return count, failures


def _run(name, call, argument):
    """Refuse an exit code other than 0, and a traceback."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        try:
            code = call(argument)
        except Exception:  # noqa: BLE001 - the page is told
            traceback.print_exc()
            code = 1
    output = shown.getvalue()
    if code > 0 or "Traceback (most recent call last)" in output:
        last = "\n".join(f"    {line}" for line in output.strip().splitlines()[-12:])
        raise DocumentationError(f"ran: {name}\n  exit code {code}; it ends with\n{last}")


@contextlib.contextmanager
def _told(item, failures):
    try:
        yield
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, the page is told
        shown = f"a block of {item.language}" if item.language else item.text
        failures.append(f"{item.place}: {shown}\n  {type(error).__name__}: {error}")
