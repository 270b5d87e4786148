"""The page of hooks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from hookline.scripts.documentation.description import LAYERS, ROOT, Description
from hookline.scripts.planning.trace import DECLARATIONS
from hookline.trainer.hook import GraphHook, HostHook

GROUPS = {
    "technique": "Techniques",
    "optimization": "Normalization and optimization",
    "guard": "Guards",
    "monitor": "Monitors",
}
"""What a section "Group:" may say, with the title on the page, in the order of the page."""
UNLISTED = {"declare", "state_dict", "load_state_dict"}
"""Declarations that nearly every hook has."""
REPORTING = {"add_losses", "evaluate", "measure"}
SECTIONS = {
    "Group": f"one of the words {', '.join(GROUPS)}",
    "Equation": "the formula that the code computes, in plain characters",
    "State": "'name: what it holds' for each name of its state",
    "Scalars": "'name: what it is' for all it reports",
    "Pictures": "'name: what it shows' for each picture",
    "Cost": "what it does per step, and measured figures where there are any",
    "Pitfalls": "'<test file>: what is easy to get wrong, which this file tests'",
    "Reference": "paper, section or equation, or where else it comes from",
    "Example": "a command that runs as it stands",
}
"""The sections of a hook's docstring, in the order of the page, and what to write into them."""


def find_gaps(hook: Description) -> list[str]:
    """Return a line for everything that a hook's documentation lacks or states wrongly."""
    where = f"{hook.source}, docstring of {hook.hook_class.__name__}:"
    lines = [f"{where} {line}" for line in (*_section_gaps(hook), *_entry_gaps(hook))]
    if differing := {*hook.arguments} ^ ({*hook.options} - {"objective"}):
        names = ", ".join(sorted(differing))
        lines.append(f"{where} {names} must be both in the Args of __init__ and in {hook.config}.")
    bare = [key for key, (_, comment) in hook.options.items() if not comment]
    return lines + [f"{hook.config}: add a comment behind '{key}:' that says what it is." for key in bare]


def _section_gaps(hook: Description) -> Iterator[str]:
    changes_training = hook.group in ("technique", "optimization")
    needed = {
        "Equation": changes_training,
        "State": bool(hook.state),
        "Scalars": bool(REPORTING & {*hook.stages}),
        "Pictures": "show" in hook.stages,
        "Reference": changes_training,
    }
    found = hook.docstring.sections
    for heading in found.keys() - SECTIONS.keys():
        yield f"the section '{heading}:' is unknown. Expected one of: {', '.join(SECTIONS)}."
    for heading, content in SECTIONS.items():
        if needed.get(heading, True) and heading not in found:
            yield f"add a section '{heading}:' with {content}."
        elif heading in ("State", "Scalars", "Pictures") and heading in found and not needed[heading]:
            yield f"remove the section '{heading}:': there is nothing to describe."
    if hook.group and hook.group not in GROUPS:
        yield f"'{hook.group}' received in 'Group:'. Expected one of: {', '.join(GROUPS)}."


def _entry_gaps(hook: Description) -> Iterator[str]:
    try:
        state, pitfalls, *_ = map(hook.docstring.entries, ("State", "Pitfalls", "Scalars", "Pictures"))
    except ValueError as error:
        yield str(error)
        return
    if hook.state and state.keys() != hook.state.keys():
        yield f"'State:' names {', '.join(state)}. Expected what the hook saves: {', '.join(hook.state)}."
    for file in pitfalls:
        if not (ROOT / file).is_file():
            yield f"'Pitfalls:' names {file}, which is not a file. Expected the test that proves it."


CODE = re.compile(r"(`[^`]*`)")
MARKUP = re.compile(r"[<*]|(?<!\w)_|_(?!\w)")
HEADING = "## "
COMMAND = "python scripts/catalogue.py"
PREAMBLE = f"""\
# Hooks

<!-- Made by {COMMAND} of the hooks' docstrings, classes and config files. Do not edit it by hand. -->

```
python train.py recipe=baseline +hooks=<name> hooks.<name>.<key>=<value>   # add one to any recipe, and set an option
python train.py recipe=baseline hooks.<name>=null                          # take one out
```

Hooks with a star run by default on the command line; [hookline/README.md](../hookline/README.md) lists those of
`hookline.Trainer`. A hook may run several times, under names of your choice:
`+hooks.<name>._target_=...`, in Python `{{"<name>": Prune(...)}}`. [trainer/hook.py](../trainer/hook.py) explains the
stages. What a hook writes, projects, freezes, reads and saves is listed for its default options, on a small network
with the layers {", ".join(LAYERS)}; `<variable>` stands for each variable
that the hook works on. "0.9 of the speed" means 0.9 times the steps per second of a run without the hook, on 2 cores;
times were measured there too. A hook without "State saved" keeps no state.

*Latent weights* are the float variables that train while the forward pass uses rounded or masked values in their
place. *Slots* are the variables that the optimizer keeps for a weight, such as its momentum. A hook *projects* a weight
if it writes it after the optimizer, for example to clip it or to keep it at 0. A step that is *held back* or *skipped*
writes nothing."""


def make_page(hooks: Sequence[Description]) -> str:
    """Return the page."""
    groups = {group: [hook for hook in hooks if hook.group == group] for group in GROUPS}
    overview = [_overview(GROUPS[group], members) for group, members in groups.items() if members]
    parts = [_part(hook) for members in groups.values() for hook in members]
    return "\n\n".join([PREAMBLE, *overview, *parts]) + "\n"


def _overview(title: str, hooks: Iterable[Description]) -> str:
    rows = [
        (f"[{hook.name}](#{hook.name}){' *' if hook.is_default else ''}", _text(hook.entry.purpose)) for hook in hooks
    ]
    return f"**{title}**\n\n" + _table(("hook", "what it does"), rows)


def _part(hook: Description) -> str:
    """Return what the page says of one hook."""
    sections = hook.docstring.sections
    pieces = [
        f"{HEADING}{hook.name}",
        _text(hook.docstring.summary),
        _text(hook.docstring.body),
        _code(sections["Example"]),
        f"**Equation**\n\n{_code(sections['Equation'], 'text')}" if "Equation" in sections else "",
        _table(("", ""), _facts(hook)),
        _entries("State saved", hook.docstring.entries("State"), hook.state),
        _entries("Scalars", hook.docstring.entries("Scalars")),
        _entries("Pictures", hook.docstring.entries("Pictures")),
        f"**Config** ([{hook.config.name}](../{hook.config}))\n\n{_options(hook)}" if hook.options else "",
        f"**Cost.** {_text(sections['Cost'])}",
        _pitfalls(hook.docstring.entries("Pitfalls")),
        f"**Reference.** {_text(sections['Reference'])}" if "Reference" in sections else "",
    ]
    return "\n\n".join(piece for piece in pieces if piece)


def _facts(hook: Description) -> Iterator[tuple[str, str]]:
    cls = hook.hook_class
    yield "class", f"[{cls.__name__}](../{hook.source}), {_kind(cls)}"
    yield "stages", _names(hook.stages)
    if listed := [name for name in hook.overridden if name in DECLARATIONS - UNLISTED]:
        yield "declares", _names(listed)
    order = [f"{word} {_names(names)}" for word, names in (("after", cls.after), ("before", cls.before)) if names]
    yield "order", "; ".join([*order, f"by priority {cls.priority}, from 0 (first) to 100 (last)"])
    rows = {"conflicts with": cls.conflicts, **hook.declared}
    yield from ((label, _names(names)) for label, names in rows.items() if names)


def _kind(hook_class: type) -> str:
    """Return in words whether a hook changes training or watches it."""
    changes, watches = issubclass(hook_class, GraphHook), issubclass(hook_class, HostHook)
    if changes and watches:
        return "inside the step (GraphHook) and watching from outside (HostHook)"
    return "changes training inside the step (GraphHook)" if changes else "watches from outside the step (HostHook)"


def _options(hook: Description) -> str:
    rows = [(f"`{key}`", f"`{default}`", _text(comment)) for key, (default, comment) in hook.options.items()]
    return _table(("key", "default", ""), rows)


def _entries(title: str, entries: Mapping[str, str], forms: Mapping[str, str] | None = None) -> str:
    """Return entries as a list; nothing if there are none."""
    form = {name: f" ({each})" for name, each in (forms or {}).items()}
    lines = [f"- `{name}`{form.get(name, '')}: {_text(text)}" for name, text in entries.items()]
    return "\n".join([f"**{title}**", "", *lines]) if lines else ""


def _pitfalls(entries: Mapping[str, str]) -> str:
    names = {file: file.rpartition("/")[2].removesuffix(".py") for file in entries}
    lines = [f"- {_text(text[:1].upper() + text[1:])} ([{names[file]}](../{file}))" for file, text in entries.items()]
    return "\n".join(["**Easy to get wrong**, with the test that proves it", "", *lines])


def _code(text: str, language: str = "") -> str:
    return f"```{language}\n{text}\n```"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _text(text: str) -> str:
    """Return free text without what Markdown would take for a tag or for emphasis."""
    parts = CODE.split(text)
    return "".join(part if CODE.fullmatch(part) else MARKUP.sub(r"\\\g<0>", part) for part in parts)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells are Markdown in one line."""
    lines = [heads, ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("|".join(["", *(f" {cell} " if cell else " " for cell in line), ""]) for line in lines)
