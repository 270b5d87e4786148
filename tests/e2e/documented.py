"""What a documented program may be, how it is checked without running it, and how it is made short to be run.

Every program is of a kind that is listed here; another one is an error, so that nothing is left out unseen.
"""

from __future__ import annotations

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
from datetime import datetime
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf

from hookline import train
from hookline.scripts.sweep.open import open_sweep, resumed_path
from hookline.trainer.config.command import Command as CommandLine
from hookline.trainer.config.command import parse_command
from hookline.trainer.config.preflight import preflight, preflight_each
from tests.support.documentation import Block, Command, DocumentationError, programs
from tests.support.images import write_images, write_mnist

ROOT = Path(__file__).resolve().parents[2]
SHOWING = ("--help", "-h", "--cfg", "--info", "--explain")
NEED_MORE = (
    *("sh scripts/setup.sh", "sh scripts/benchmarks/environments.sh", "python -m pip", "python -m pytest"),
    *("srun", "python scripts/submit.py", "tensorboard"),
)
"""Programs that are checked and not run: they need the network or a cluster, serve on, or run this test."""
SMALL = {
    "attention": {"data.train_examples": "600"},
    "gradient_reversal": {"data.train_examples": "600", "data.test_examples": "179"},
    "gan": {"data.examples": "800", "task.samples": "100"},
    "sgan": {"data.examples": "800", "task.samples": "100"},
    "clothing_retrieval": {"data.image_size": "32"},
}
"""What runs of a recipe get beside what is printed, so that they are short."""
SHORT = {
    "kill_runs.py": ["kills=1", "recipes=[bnn]"],
    "benchmark.py": ["repeats=1", "seconds=0.05", "contenders=hookline*"],
    "ablate.py": ["seeds=0"],
    "find_rate.py": ["count=5"],
    "reproduce.py": ["--list"],  # the targets, without the hours that they take
}
"""What other scripts get in the place of what is printed."""
IN_EPOCHS = ("begin_epoch", "end_epoch", "rewind_epoch", "step_epochs", "stage_epochs")
DOWNLOADED = ("data", "data.name", "data.source", "data.originals")


def is_run(words):
    return not {" ".join(_same(words)[:count]) for count in (1, 2, 3)} & {*NEED_MORE}


def _same(words):
    return ["python" if words[0] == ".venv/bin/python" else words[0], *words[1:]]


def single_run(words):
    rest = words[2:]
    other = any(each.startswith("-") or each.partition("=")[0] == "resume" for each in rest)
    return None if other or words[1:2] not in (["train.py"], ["scripts/check_gradients.py"]) else rest


def check(program, made=()):
    """Check a program as far as that goes without running it; `made` are run directories of the commands above it."""
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
    command = parse_command([_fewer(each, 1) if sweep else each for each in arguments])
    if sweep:
        opened = open_sweep(command, datetime.now()).sweep
        opened.directory.mkdir(parents=True, exist_ok=True)
        opened.write()
    elif resumed_path(arguments) not in made:
        preflight(command)


def check_script(script, arguments):
    """Check the arguments of a script by its own `parse`, and of those that train, the jobs."""
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


def shortened(program):
    words = _same(program)
    script, rest = Path(words[1]).name, words[2:]
    if script == "train.py":
        rest = short_training(rest)
    elif script == "launch.py":
        own = [each for each in rest if each.startswith(("workers=", "grace="))]
        rest = [*own, *short_training([each for each in rest if each not in own])]
    elif script == "export.py" and any(each.startswith("codebook") for each in rest):
        rest = [*rest, "tolerance=1"]  # of 200 examples, after two steps of training
    elif (added := SHORT.get(script)) is not None and not any(each.startswith("--") for each in rest):
        keys = {each.partition("=")[0] for each in added}
        rest = [*(each for each in rest if each.partition("=")[0] not in keys), *added]
    return [*words[:2], *rest]


def short_training(arguments):
    keys = {each.partition("=")[0].lstrip("+"): each.partition("=")[2] for each in arguments}
    if "resume" in keys or any(each in SHOWING for each in arguments) or ("--sweep" in keys and "recipe" not in keys):
        return list(arguments)
    short = [_fewer(each, 2) if "-m" in arguments else each for each in arguments]
    for place, each in enumerate(short):
        if each == "--trials":
            short[place + 1] = "2"
    added = {name: value for name, value in SMALL.get(keys.get("recipe", ""), {}).items() if name not in keys}
    if keys.get("data", "") not in ("", keys.get("recipe", "")):
        added = {name: value for name, value in added.items() if not name.startswith("data.")}
    if "mnist" in [keys.get(key) for key in DOWNLOADED] and "data.path" not in keys:
        added["data.path"] = "mnist.npz"  # without it, the file is downloaded
    if keys.get("data") == "mnist" and "data.validation_size" not in keys:
        added["data.validation_size"] = "100"  # of the small file that stands for MNIST's
    if keys.get("trainer.precision", "float32") != "float32":
        added["trainer.allow_slow_precision"] = "true"  # not every CPU that tests has instructions for it
    short += [f"{name}={value}" for name, value in added.items()]
    if "trainer.max_seconds" not in keys and counts_epochs(short):
        return [*short, "trainer.max_seconds=0"]
    whole = ("trainer.epochs", "trainer.steps")
    return [*(each for each in short if each.partition("=")[0] not in whole), "trainer.epochs=null", "trainer.steps=2"]


def counts_epochs(arguments):
    """Return whether a hook of a training does something after some epochs, which the run must reach then."""
    if "--trials" in arguments:
        return False
    hooks = [hook for job in preflight(parse_command(arguments)) for hook in job.config["hooks"].items()]
    return any(
        name == "incremental_quantization"  # it needs more than two steps for what it does over a training
        or any(isinstance(node.get(key), int | float) and node[key] > 0 for key in IN_EPOCHS)
        for name, node in hooks
    )


def write_config(directory, job):
    """Write what a run leaves of its config, so that commands that resume it can be checked."""
    if not directory.exists():
        directory.mkdir(parents=True)
        (directory / "config.yaml").write_text(OmegaConf.to_yaml(job.config))
        (directory / "overrides.txt").write_text("".join(f"{each}\n" for each in job.overrides))


def _fewer(argument, seeds):
    key, _, value = argument.partition("=")
    return f"{key}={','.join(value.split(',')[:seeds])}" if key == "seed" else argument


PROCESSES = ("launch", "ablate", "kill_runs", "benchmark", "submit")
"""Scripts that start processes of their own; their tests run them."""
EPOCHS = {"bnn": 7, "frozen_mask": 4}
"""Of the run of a recipe that stands for the reader's; of other recipes, two do."""
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
"""What commands leave to the reader, and what stands for it."""
IMAGES = {"photos": 12, "clothing": 40}
"""In each class of a folder: a quarter of the second, less its other splits, fills a batch."""


class Workplace:
    def __init__(self, directory, make_run):
        self.directory, self.make_run, self.made = directory, make_run, set()

    def fill(self, command):
        """Return the text of a command with angle brackets filled in, and make the runs that it names."""
        text = command.text
        for printed, ours in FILLED.items():
            text = text.replace(printed, ours)
        for recipe in dict.fromkeys(RUN.findall(text)):
            if recipe not in self.made:
                self.made.add(recipe)
                self.make_run(recipe, self.directory / "runs" / recipe / STAND_IN)
        text = RUN.sub(rf"runs/\1/{STAND_IN}", text)
        if left := re.findall(r"<[\w ]+>", text):
            raise DocumentationError(f"{command.place}: {command.text}\n  nothing stands for {left[0]}")
        return text


def make_files(directory):
    """Write what readers bring themselves: MNIST's file, two folders of images, a file of resources."""
    np.savez(directory / "new_patients.npz")  # a block of code writes it, where blocks are run
    write_mnist(directory / "mnist.npz", train=6000)  # of which data with MNIST's digits hold 5,000 out
    for folder, images in IMAGES.items():
        write_images(directory / folder, images=images, classes=10)
    shutil.copy(ROOT / "scripts" / "slurm.yaml", directory / "my.yaml")
    for folder in ("environments", "shared"):
        (directory / folder).mkdir()


def check_page(items, directory):
    """Return what is wrong with a page, as far as that shows without running it; the directory is the current one."""
    make_files(directory)
    place = Workplace(directory, lambda recipe, path: write_config(path, _job(recipe)))
    failures = []
    jobs = []
    made = set()
    for item in items:
        with _told(item, failures), contextlib.redirect_stdout(io.StringIO()):
            if isinstance(item, Block):
                read_block(item, directory)
                continue
            for words in programs(place.fill(item)):
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


def _job(recipe):
    data = ["data.path=photos"] if recipe == "clothing_retrieval" else []
    (job,) = preflight_each(CommandLine(()), [[f"recipe={recipe}", *data]])
    return job


def read_block(block, directory):
    text = "\n".join(block.lines) + "\n"
    READERS[block.language](text)
    path = directory / (block.file_name or "block.py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def run_here(items, directory):
    """Run the commands and blocks of a page in this process, but what starts others; return how many, what failed."""
    make_files(directory)
    place = Workplace(directory, lambda recipe, path: _run("the reader's run", train.main, run_arguments(recipe, path)))
    failures, count = [], 0
    for item in items:
        with _told(item, failures):
            if isinstance(item, Block):
                count += 1
                path = read_block(item, directory)
                if item.language == "python":
                    _run("a block", lambda path: runpy.run_path(path) and 0, str(path))
                continue
            for words in map(shortened, filter(is_run, programs(place.fill(item)))):
                script = Path(words[1])
                if words[0] == "python" and script.stem not in PROCESSES and "-m" not in words:
                    count += 1
                    module = importlib.import_module(".".join(script.with_suffix("").parts))
                    _run(shlex.join(words), module.main, list(words[2:]))
    return count, failures


def run_arguments(recipe, path):
    saving = ["hooks.checkpoint.every_seconds=0", "hooks.checkpoint.keep_last=9"]  # as a run that takes its time
    limits = [f"trainer.epochs={EPOCHS.get(recipe, 2)}", "trainer.compile=off"]
    return [f"recipe={recipe}", *limits, f"run_dir={path}", *saving]


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
        shown = item.text if isinstance(item, Command) else f"a block of {item.language}"
        failures.append(f"{item.place}: {shown}\n  {type(error).__name__}: {error}")
