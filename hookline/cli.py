"""The console command `hookline`: a subcommand for each script. See `hookline --help`."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hookline.train import DONE, INTERRUPTED, WRONG, report, say
from hookline.trainer.deferred import open_streams
from hookline.trainer.errors import UserError, check_choice, did_you_mean

SUBCOMMANDS = {
    "train": ("train", "Train a recipe; with -m, one run for each combination of values"),
    "resume": ("train", "Resume a run where it stopped, bit for bit"),
    "plan": ("scripts.plan", "Print what a run will do, without training"),
    "check-gradients": ("scripts.check_gradients", "Compare the gradients that a run overrides with true ones"),
    "evaluate": ("scripts.evaluate", "Evaluate a run or an export"),
    "predict": ("scripts.predict", "Predict with an exported network or a run"),
    "export": ("scripts.export", "Write the finished model of a run for other programs"),
    "compare": ("scripts.compare", "Compare finished runs"),
    "find-rate": ("scripts.find_rate", "Train some steps at rising learning rates, to find a good one"),
    "verify": ("scripts.verify", "Check whether a run directory is sound; replay=<steps> trains steps of it again"),
    "ablate": ("scripts.ablate", "Run a recipe without each of its technique hooks in turn"),
    "sensitivity": ("scripts.sensitivity", "Measure how much each layer of a finished run can be pruned"),
    "launch": ("scripts.launch", "Start the workers of a run on this machine"),
    "submit": ("scripts.submit", "Submit the jobs of a sweep to SLURM"),
}
"""For each, its module, with a `main` from arguments to exit code, and its purpose in one line."""
HELP = """\
Usage: hookline <command> [key=value ...]

  hookline train recipe=bnn run_dir=runs/first
  hookline resume runs/first
  hookline export run=runs/first format=packed

Commands
{commands}

hookline <command> --help   what a command takes; hookline train --help lists every recipe, hook, model and data set
hookline --version          the version that is installed
hookline --completion bash  a script that completes commands and names: eval "$(hookline --completion bash)"
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit code; 2 for an unknown one.

    Args:
        arguments: command line arguments without the program name; None for those of the process.
    """
    open_streams()
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    except UserError as error:
        return report(error, WRONG)
    except KeyboardInterrupt as error:  # while a module is being imported; scripts handle their own
        return report(error, INTERRUPTED)


def _run(given: Sequence[str]) -> int:
    name, *rest = given or ["--help"]
    if name in ("--help", "-h", "help") and rest:
        name, rest = rest[0], ["--help", *rest[1:]]
    if name in ("--help", "-h", "help"):
        width = max(map(len, SUBCOMMANDS)) + 2
        listed = "\n".join(f"  {each:<{width}}{text}" for each, (_, text) in SUBCOMMANDS.items())
        say(HELP.format(commands=listed), end="")
    elif name in ("--version", "-V"):
        from hookline.trainer.config.parts import __version__

        say(f"hookline {__version__}")
    elif name == "--completion":
        say(completion_text(rest))
    elif name not in SUBCOMMANDS:
        if "=" in name:
            raise UserError(f"'{name}' received. Expected a command first: hookline train {name}.")
        kind, hint = "option" if name.startswith("-") else "command", did_you_mean(name.replace("_", "-"), SUBCOMMANDS)
        raise UserError(f"Unknown {kind} '{name}'.{hint} Expected one of: {', '.join(SUBCOMMANDS)}.")
    else:
        module: Any = importlib.import_module(f"hookline.{SUBCOMMANDS[name][0]}")
        return int(module.main(resume_arguments(rest) if name == "resume" else rest))
    return DONE


def resume_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of `train` that resume a run, given its directory (or resume=<directory>) and overrides."""
    if "--help" in arguments or "-h" in arguments:
        return ["--help"]
    if not arguments or arguments[0].startswith("-"):
        raise UserError("No run was given. Expected its directory: hookline resume runs/first.")
    first, *rest = arguments
    from hookline.trainer.config.overrides import quoted

    return [first if first.startswith("resume=") else f"resume={quoted(Path(first))}", *rest]


PLAIN = re.compile(r"[\w-]+")
"""Names that need no quoting in a shell."""
BASH = """\
_hookline() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} key= words
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{commands}" -- "$current"))
        return
    fi
    if [ "$current" = "=" ]; then # bash cuts words at "="
        key=${{COMP_WORDS[COMP_CWORD - 1]}} current=
    elif [ "${{COMP_WORDS[COMP_CWORD - 1]}}" = "=" ]; then
        key=${{COMP_WORDS[COMP_CWORD - 2]}}
    fi
    case $key in
{cases}
    "")
        COMPREPLY=($(compgen -W "{keys}" -- "$current"))
        [ ${{#COMPREPLY[@]}} -gt 0 ] && compopt -o nospace
        return
        ;;
    *) return ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _hookline hookline"""


def completion_text(shell: Sequence[str]) -> str:
    """Return a shell script that completes commands, and names of recipes, hooks, data sets and so on."""
    from hookline.scripts.help import TITLES, options_of
    from hookline.trainer.config.parts import installed_plugins
    from hookline.trainer.config.schema import NAMED

    check_choice("shell", " ".join(shell), ["bash"])
    plugins = installed_plugins()
    cases, keys = [], ["run_dir", "resume", "init_from", "seed", "run"]
    for group in TITLES:
        names = {name.removesuffix(" *") for name, _ in options_of(group, plugins)}
        words = " ".join(sorted(name for name in names if PLAIN.fullmatch(name)))
        keys.append(f"+{group}" if group in NAMED else group)
        cases.append(f'    {keys[-1]}) words="{words}" ;;')
    return BASH.format(commands=" ".join(SUBCOMMANDS), cases="\n".join(cases), keys=" ".join(f"{key}=" for key in keys))
