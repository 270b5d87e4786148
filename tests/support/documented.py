"""What a documented program may be, how it is checked without running it, and how it is made short to be run.

Every program is of a kind that is listed here; another one is an error, so that nothing is left out unseen.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import tomllib
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from omegaconf import OmegaConf

import train
from tests.support.documentation import DocumentationError, Part
from trainer.config.command import parse_command
from trainer.config.preflight import Job, preflight
from trainer.sweep.open import open_sweep
from trainer.sweep.start import resumed_path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ("python", "python3", ".venv/bin/python")
SHOWING = ("--help", "-h", "--cfg", "--info", "--explain")
NOT_RUN = {
    ("sh", "scripts/setup.sh"): "installs from the network; .ci/run begins with it",
    ("sh", "scripts/benchmarks/environments.sh"): "installs other frameworks from the network",
    (".ci/run",): "is what runs this test",
    ("python", "-m", "pytest"): "is this test, among the others",
    ("python", "-m", "ruff"): "a step of .ci/run",
    ("python", "-m", "mypy"): "a step of .ci/run",
    ("python", "-m", "pip"): "installs from the network",
    ("pip",): "installs from the network",
    ("srun",): "needs a cluster; what it starts is checked",
    ("python", "scripts/submit.py"): "needs a cluster; its jobs are checked",
    ("uv",): "needs the network",
    ("$compile",): "needs the network",
    ("git",): "needs the network",
    ("tensorboard",): "serves until it is ended; a test of its own asks it for its page",
    (".",): "changes the shell that it is typed into",
    ("cd",): "changes the shell that it is typed into",
}
"""Programs that are checked and not run, with the reason."""
SMALL = {
    "attention": {"data.train_examples": "600"},
    "gradient_reversal": {"data.train_examples": "600", "data.test_examples": "179"},
    "gan": {"data.examples": "800", "task.samples": "100"},
    "sgan": {"data.examples": "800", "task.samples": "100"},
    "clothing_retrieval": {"data.image_size": "32"},
}
"""What runs of a recipe get beside what is printed, so that they are short."""
SHORT = {
    "kill_runs": ["kills=1", "recipes=[bnn]"],
    "benchmark": ["repeats=1", "seconds=0.05", "contenders=hookline*"],
    "ablate": ["seeds=0"],
    "reproduce": ["--list"],  # the targets, without the hours that they take
}
"""What other scripts get in the place of what is printed."""
STEPS = ["trainer.epochs=null", "trainer.steps=2"]
PAUSE = ["trainer.max_seconds=0"]
IN_EPOCHS = ("begin_epoch", "end_epoch", "step_epochs", "stage_epochs")
ALL_TRAINING = ("incremental_quantization",)
"""Hooks that need more than two steps for what they do over a training."""
DOWNLOADED = ("data", "data.name", "data.source", "data.originals")


def same(program: Part) -> tuple[str, ...]:
    """Return the words of a program, with one name for Python.

    Args:
        program: of a command.
    """
    words = program.words
    return ("python", *words[1:]) if words and words[0] in PYTHON else words


def reason_not_to_run(program: Part) -> str | None:
    """Return why a program is not run; None where it is.

    Args:
        program: of a command.
    """
    words = same(program)
    if not words or "=" in words[0]:
        return "sets a variable"
    return next((why for head, why in NOT_RUN.items() if words[: len(head)] == head), None)


def single_run(program: Part) -> list[str] | None:
    """Return the overrides of a program that makes or plans one run and nothing else; None for any other.

    Args:
        program: of a command.
    """
    words = same(program)
    if words[:2] not in (("python", "train.py"), ("python", "scripts/check_gradients.py")):
        return None
    rest = list(words[2:])
    other = any(each.startswith("-") or each.partition("=")[0] == "resume" for each in rest)
    return None if other else rest


def check(program: Part, made: Collection[str] = ()) -> None:
    """Check a program as far as that goes without running it.

    Args:
        program: of a command.
        made: run directories that commands above would have made.

    Raises:
        DocumentationError: a program of an unknown kind.
        Exception: whatever it refuses.
    """
    words = same(program)
    head, rest = words[:1], list(words[1:])
    if not words or "=" in words[0] or head in (("uv",), ("$compile",), (".",), ("cd",), ("git",)):
        _check_files(rest)
    elif head == ("srun",):
        check(replace(program, words=tuple(rest)), made)
    elif head == ("sh",) or head == (".ci/run",):
        script = rest[0] if rest else words[0]
        subprocess.run(["bash", "-n", str(ROOT / script)], check=True)
    elif head == ("tensorboard",):
        _check_tensorboard(rest)
    elif head == ("pip",):
        _check_extras(rest)
    elif head == ("python",) and rest[:1] == ["-m"]:
        _check_module(rest[1], rest[2:])
    elif head == ("python",) and rest[:1] == ["train.py"]:
        check_training(rest[1:], made)
    elif head == ("python",) and rest and rest[0].startswith("scripts/"):
        check_script(Path(rest[0]), rest[1:])
    else:
        raise DocumentationError(f"'{' '.join(words)}' is no program that is known here: see {Path(__file__).name}")


def check_training(arguments: list[str], made: Collection[str] = ()) -> None:
    """Check the arguments of train.py, each job of a sweep; what only shows something is shown.

    Args:
        arguments: as printed.
        made: as for `check`.
    """
    if any(each in SHOWING for each in arguments):
        if (code := train.main(arguments)) != 0:
            raise DocumentationError(f"exit code {code}")
        return
    sweep = "-m" in arguments
    command = parse_command([_fewer(each, 1) if sweep else each for each in arguments])
    if sweep:
        opened = open_sweep(command, datetime.now()).sweep
        opened.directory.mkdir(parents=True, exist_ok=True)
        opened.write()
    elif resumed_path(arguments) not in made:
        preflight(command)


def check_script(script: Path, arguments: list[str]) -> None:
    """Check the arguments of a script by its own `parse`, and of those that train, the jobs.

    Args:
        script: path from the root of the project.
        arguments: as printed.
    """
    module = importlib.import_module(".".join(script.with_suffix("").parts))
    if any(each in SHOWING for each in arguments):
        module.main(arguments)
    elif script.stem == "check_gradients":
        check_training(arguments)
    elif script.stem == "launch":
        module.checked(module.parse(arguments))
    elif script.stem == "submit":
        check_training(["-m", *module.parse(arguments).command.overrides])
    elif script.stem == "ablate":
        options = module.parse(arguments)
        check_training(options.overrides)
    else:
        module.parse(arguments)


def shortened(program: Part) -> Part:
    """Return a program that does a little of what is printed.

    Args:
        program: of a command that is run.
    """
    words = same(program)
    rest = list(words[2:])
    if words[1:2] == ("train.py",):
        rest = short_training(rest)
    elif words[1:2] == ("scripts/launch.py",):
        own = [each for each in rest if each.startswith(("workers=", "grace="))]
        rest = [*own, *short_training([each for each in rest if each not in own])]
    elif words[1:2] == ("scripts/export.py",) and any(each.startswith("codebook") for each in rest):
        rest = [*rest, "tolerance=1"]  # of 200 examples, after two steps of training
    elif (added := SHORT.get(Path(words[1]).stem)) is not None:
        keys = {each.partition("=")[0] for each in added}
        shows = any(each.startswith("--") for each in rest)
        rest = rest if shows else [*(each for each in rest if each.partition("=")[0] not in keys), *added]
    return replace(program, words=(*words[:2], *rest))


def short_training(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a training of two steps; of one step where hooks count in epochs, so that they agree.

    Args:
        arguments: as printed.
    """
    keys = {each.partition("=")[0].lstrip("+"): each.partition("=")[2] for each in arguments}
    if "resume" in keys or any(each in SHOWING for each in arguments) or ("--sweep" in keys and "recipe" not in keys):
        return list(arguments)
    sweep = "-m" in arguments
    short = [_fewer(each, 2) if sweep else each for each in arguments]
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
        return [*short, *PAUSE]
    return [*(each for each in short if each.partition("=")[0] not in ("trainer.epochs", "trainer.steps")), *STEPS]


def counts_epochs(arguments: Sequence[str]) -> bool:
    """Return whether a hook of a training does something after some epochs, which the run must reach then.

    Args:
        arguments: of train.py.
    """
    if "--trials" in arguments:
        return False
    hooks = [hook for job in preflight(parse_command(arguments)) for hook in job.config["hooks"].items()]
    return any(
        name in ALL_TRAINING or any(isinstance(node.get(key), int | float) and node[key] > 0 for key in IN_EPOCHS)
        for name, node in hooks
    )


def write_config(directory: Path, job: Job) -> None:
    """Write what a run leaves of its config, so that commands that go on with it can be checked.

    Args:
        directory: of the run; left as it is where it exists.
        job: of the run.
    """
    if not directory.exists():
        directory.mkdir(parents=True)
        (directory / "config.yaml").write_text(OmegaConf.to_yaml(job.config))
        (directory / "overrides.txt").write_text("".join(f"{each}\n" for each in job.overrides))


def _fewer(argument: str, seeds: int) -> str:
    """Return an argument of a sweep with fewer seeds."""
    key, _, value = argument.partition("=")
    return f"{key}={','.join(value.split(',')[:seeds])}" if key == "seed" else argument


def _check_module(module: str, arguments: list[str]) -> None:
    if module not in ("pytest", "ruff", "mypy", "pip"):
        raise DocumentationError(f"'python -m {module}' is no program that is known here: see {Path(__file__).name}")
    if importlib.util.find_spec(module) is None:
        raise DocumentationError(f"there is no module '{module}'")
    if module == "pip":
        _check_extras(arguments)
    _check_files(arguments)


def _check_files(arguments: Sequence[str]) -> None:
    """Check that the files of the project that arguments name are there."""
    for each in arguments:
        path = each.partition("::")[0]
        named = re.fullmatch(r"[\w./-]+/[\w.-]+|[\w-]+\.(lock|toml|txt|py|sh)", path)
        if named and not path.startswith((".venv", "http", "~", "/")) and not (ROOT / path).exists():
            raise DocumentationError(f"there is no {path}")


def _check_extras(arguments: Sequence[str]) -> None:
    """Check that the extras which are installed exist."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for each in arguments:
        for extra in re.findall(r"[\w-]+", each.partition("[")[2]) if each.startswith((".[", "hookline[")) else ():
            if extra not in known:
                raise DocumentationError(f"there is no extra '{extra}'")


def _check_tensorboard(arguments: Sequence[str]) -> None:
    known = ("--logdir", "--port", "--host", "--bind_all")
    for flag in (each.partition("=")[0] for each in arguments if each.startswith("--")):
        if flag not in known:
            raise DocumentationError(f"tensorboard {flag} is not known here. Expected one of {', '.join(known)}")
