"""Completion for shells: the subcommands, and the names of recipes, hooks, data and the like."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hookline.trainer.config.help import CONFIG_DIR, TITLES, of_plugins, options_of
from hookline.trainer.config.plugins import installed_plugins
from hookline.trainer.config.schema import NAMED
from hookline.trainer.errors import UserError, unknown_name

PLAIN = re.compile(r"[\w-]+")
"""Names that a shell takes as they are."""
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


def completion_text(shell: Sequence[str], commands: Sequence[str]) -> str:
    """Return a script for a shell that completes command lines; it knows what is installed now.

    Args:
        shell: its name, alone in a list: "bash".
        commands: the subcommands.

    Raises:
        UserError: another shell, or none.
    """
    if len(shell) != 1:
        raise UserError("--completion takes one shell. Expected --completion bash.")
    if shell[0] != "bash":
        raise unknown_name("shell", shell[0], ["bash"])
    plugins = installed_plugins().values()
    cases, keys = [], ["run_dir", "resume", "init_from", "seed", "run"]
    for group in TITLES:
        options = (*options_of(CONFIG_DIR / group), *of_plugins(plugins, group))
        found = [name for name in (each.removesuffix(" *") for each, _ in options) if PLAIN.fullmatch(name)]
        keys.append(f"+{group}" if group in NAMED else group)
        cases.append(f'    {keys[-1]}) words="{" ".join(sorted(set(found)))}" ;;')
    return BASH.format(commands=" ".join(commands), cases="\n".join(cases), keys=" ".join(f"{key}=" for key in keys))
