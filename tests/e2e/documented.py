"""What a documented program may be, how it is checked without running it, and how it is made short to be run.

Every program is of a kind that is listed here; another one is an error, so that nothing is left out unseen.
"""

from __future__ import annotations

import importlib
import importlib.util
from datetime import datetime
from pathlib import Path

from omegaconf import OmegaConf

from hookline import train
from hookline.scripts.sweep.open import open_sweep, resumed_path
from hookline.trainer.config.command import parse_command
from hookline.trainer.config.preflight import preflight
from tests.support.documentation import DocumentationError

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
    """Return the overrides of a program that makes or plans one run and nothing else; None for any other."""
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
    """Check the arguments of train.py, each job of a sweep; what only shows something is shown."""
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
        check_training(["-m", *module.parse(arguments).command.overrides])
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
    """Return the arguments of a training of two steps; of one step where hooks count in epochs, so that they agree."""
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
