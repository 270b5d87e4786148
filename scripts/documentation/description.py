"""Descriptions of hooks from their docstrings, config files and classes, gaps in these, and the catalogue page."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import keras
from omegaconf import OmegaConf

from hookline.hooks import CONFIG_DIRECTORY, HookEntry, catalogue, load
from hookline.scripts.command import markdown_table
from hookline.scripts.help import keys_of
from hookline.scripts.planning.trace import own_stages
from hookline.trainer.hook import GraphHook, Hook, HostHook
from hookline.trainer.network import Network
from hookline.trainer.run.blueprint import build_hook
from hookline.trainer.step.context import BuildContext

ROOT = CONFIG_DIRECTORY.parents[1]
HEADING = re.compile(r"^([A-Z][a-z]+):$", re.MULTILINE)
BEHIND = re.compile(r"^(Group|Cost|Reference): ", re.MULTILINE)
LISTS = ("State", "Scalars", "Pictures", "Pitfalls")
"""Sections that list names."""


@dataclass(frozen=True)
class Docstring:
    """A docstring of Google's style as data."""

    summary: str  # its first line
    body: str = ""  # the text between it and the sections
    sections: Mapping[str, str] = field(default_factory=dict)  # text by heading, without the indentation

    def entries(self, heading: str) -> dict[str, str]:
        """Return the entries of a section in the form "name: text", such as arguments; empty if it is missing."""
        found: dict[str, str] = {}
        for entry in re.split(r"\n(?! )", self.sections.get(heading, "")):
            name, separator, text = entry.partition(": ")
            if entry and (not separator or name in found):
                raise ValueError(f"'{entry}' received in the section '{heading}:'. Expected 'name: text', each once.")
            found |= {name: " ".join(text.split())} if entry else {}
        return found


def parse_docstring(text: str | None) -> Docstring:
    """Parse a docstring with its sections last: a heading such as "Cost:", then text after it or indented below it."""
    head, *parts = HEADING.split(BEHIND.sub(r"\1:\n    ", inspect.cleandoc(text or "")))
    summary, _, body = head.partition("\n")
    sections: dict[str, str] = {}
    for heading, content in zip(parts[::2], parts[1::2], strict=True):
        if heading in sections or not content.strip() or re.search(r"^\S", content, re.MULTILINE):
            raise ValueError(f"The section '{heading}:' is empty, comes twice, or is not indented.")
        sections[heading] = textwrap.dedent(content).strip()
    return Docstring(summary, body.strip(), sections)


class Description:
    """A hook as its docstrings, config file and class describe it, and what it declares on a small network."""

    def __init__(self, entry: HookEntry) -> None:
        self.name, self.purpose = entry.name, entry.purpose
        self.hook_class: type[Hook] = load(entry.name)
        self.source = Path(inspect.getfile(self.hook_class)).resolve().relative_to(ROOT)
        self.config = entry.config_file.relative_to(ROOT)
        self.is_default = entry.name in OmegaConf.load(CONFIG_DIRECTORY / "default.yaml").defaults
        try:
            self.docstring = parse_docstring(vars(self.hook_class).get("__doc__"))
            self.entries = {heading: self.docstring.entries(heading) for heading in LISTS}
            of_constructor = parse_docstring(getattr(vars(self.hook_class).get("__init__"), "__doc__", None))
            self.arguments = of_constructor.entries("Args")
        except ValueError as error:
            raise ValueError(f"{self.source}, docstring of {self.hook_class.__name__}: {error}") from error
        keys = keys_of(entry.config_file)
        self.options = {key.partition(".")[2]: (value, comment) for key, value, comment in keys}  # default and comment
        hook = build_hook(entry.name, entry.node)
        self.state, self.declared = _declared(hook)
        self.stages = own_stages(hook)


@cache
def describe_hooks() -> list[Description]:
    """Return the project's own hooks, in alphabetical order. This imports and builds them, which takes some seconds."""
    return [Description(entry) for entry in catalogue(CONFIG_DIRECTORY).values() if entry.plugin is None]


CLASSES = 10
LAYERS = ("conv_1", "norm_1", "conv_2", "norm_2", "dense_1", "norm_3", "logits")
"""The layers with weights of the small network: two convolutions and two dense layers, with batch norm between them."""


def _declared(hook: Hook) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Return what a hook declares on the small network; "<variable>" is a placeholder for each of its variables."""
    saved = hook.state_dict() if isinstance(hook, HostHook) else {}
    state = {key: "null at first" if value is None else type(value).__name__ for key, value in saved.items()}
    if not isinstance(hook, GraphHook):
        return state, {}
    variables = _build(hook).variables
    declared = hook.declare()

    def general(name: str) -> tuple[str, Any]:
        owner = next((each for each in variables if name.endswith(f"/{each}")), "")
        return (f"{name.removesuffix(owner)}<variable>", variables[owner]) if owner else (name, None)

    for name, value in declared.state.items():
        shown, owner = general(name)
        form = f"{value.dtype.name} {value.shape.as_list()}" if value.shape.rank else str(value.dtype.name)
        if owner is not None and tuple(value.shape) == tuple(owner.shape):
            form = f"{value.dtype.name}, of the variable's shape"
        state[shown] = form
    return state, {
        "reads": hook.reads,
        "writes": tuple(dict.fromkeys(general(name)[0] for name in declared.writes)),
        "projects": tuple(name for name in variables if name in declared.projected),
        "freezes": tuple(name for name in variables if name in declared.frozen),
    }


def _build(hook: GraphHook) -> Network:
    """Rebuild a small network with a hook, and build the hook for it; return the network."""
    keras.utils.set_random_seed(0)
    inputs = features = keras.Input((8, 8, 1), name="images")
    layers = [keras.layers.Conv2D(4, 3, use_bias=False, name=f"conv_{number}") for number in (1, 2)]
    layers += [keras.layers.Dense(16, use_bias=False, name="dense_1")]
    for number, layer in enumerate(layers, start=1):
        flat = keras.layers.Flatten(name="flatten")(features) if layer.name == "dense_1" else features
        features = keras.layers.BatchNormalization(name=f"norm_{number}")(layer(flat))
        features = keras.layers.Activation("hard_tanh", name=f"activation_{number}")(features)
    small = keras.Model(inputs, keras.layers.Dense(CLASSES, name="logits")(features), name="small")
    model = hook.rebuild_model(small)
    network = Network("model", model, keras.optimizers.Adam())
    hook.network = network.name
    network.taps |= hook.request_taps(model)
    network.optimizer.build(model.trainable_variables)
    hook.build(BuildContext(network, total_steps=100, steps_per_epoch=10.0, batch_size=32, seed=0, classes=CLASSES))
    return network


GROUPS = {
    "technique": "Techniques",
    "optimization": "Normalization and optimization",
    "guard": "Guards",
    "monitor": "Monitors",
}
"""Values of a section "Group:", with their titles on the page, in the order of the page."""
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
    found, group = hook.docstring.sections, hook.docstring.sections.get("Group")
    changes_training = group in ("technique", "optimization")
    reported = {  # sections required exactly if there is something to describe
        "State": bool(hook.state),
        "Scalars": bool({"add_losses", "evaluate", "measure"} & {*hook.stages}),
        "Pictures": "show" in hook.stages,
    }
    needed = {"Equation": changes_training, "Reference": changes_training, **reported}
    missing = [heading for heading in SECTIONS if needed.get(heading, True) and heading not in found]
    lines = [f"add a section '{heading}:' with {SECTIONS[heading]}." for heading in missing]
    wrong = [heading for heading in found if heading not in SECTIONS or not reported.get(heading, True)]
    lines += [f"remove the section '{heading}:': it is unknown, or there is nothing to describe." for heading in wrong]
    if group is not None and group not in GROUPS:
        lines.append(f"'{group}' received in 'Group:'. Expected one of: {', '.join(GROUPS)}.")
    if "State" in found and hook.entries["State"].keys() != hook.state.keys():
        lines.append(f"Expected in 'State:' what the hook saves: {', '.join(hook.state)}.")
    files = [file for file in hook.entries["Pitfalls"] if not (ROOT / file).is_file()]
    lines += [f"'Pitfalls:' names {file}, which is not a file. Expected the test that proves it." for file in files]
    if differing := {*hook.arguments} ^ ({*hook.options} - {"objective"}):
        names = ", ".join(sorted(differing))
        lines.append(f"{names} must be both in the Args of __init__ and in {hook.config}.")
    bare = [key for key, (_, comment) in hook.options.items() if not comment]
    lines += [f"{hook.config}: add a comment behind '{key}:' that says what it is." for key in bare]
    return [f"{hook.source}, {hook.hook_class.__name__}: {line}" for line in lines]


CODE = re.compile(r"(`[^`]*`)")
MARKUP = re.compile(r"[<*]|(?<!\w)_|_(?!\w)")
PREAMBLE = f"""\
# Hooks

<!-- Made by python scripts/catalogue.py of the hooks' docstrings, classes and config files. Do not edit it by hand. -->

```
python train.py recipe=baseline +hooks=<name> hooks.<name>.<key>=<value>   # add one to any recipe, and set an option
python train.py recipe=baseline hooks.<name>=null                          # take one out
python train.py recipe=baseline run_dir=runs/float                         # a trained network, for examples below
```

Hooks with a star run by default on the command line; [hookline/README.md](../hookline/README.md) lists those of
`hookline.Trainer`. A run may have several instances of a hook, under names of your choice:
`+hooks.<name>._target_=hookline.hooks.prune.Prune +hooks.<name>.<key>=<value>`, in Python `{{"<name>": Prune(...)}}`.
The row *stages* lists the methods that a hook implements; [trainer/hook.py](../trainer/hook.py) explains them. What a
hook writes, projects, freezes and saves is listed for its default options, on a small network with the layers
{", ".join(LAYERS)}; `<variable>` stands for each variable that the hook works on. "0.9 of the speed" means 0.9 times
the steps per second of a run without the hook, on 2 cores; times were measured there too. A hook without "State saved"
keeps no state.

*Latent weights* are the float variables that train while the forward pass uses rounded or masked values in their place.
*Slots* are the variables that the optimizer keeps for a weight, such as its momentum. The *moving average* of a weight
is the one that a Keras optimizer with use_ema=True keeps; the averages of the hook `ema` are separate. A hook
*projects* a weight if it writes it after the optimizer, for example to clip it or to keep it at 0. It *freezes* a
weight if it keeps the optimizer from changing it; the hook itself may still change it, as `bop` does. An *objective*
computes a loss for the networks that it trains; most runs have one. A step that fails a check, such as one for NaN, is
*held back* (or, on request, *skipped*): it writes nothing, except what objectives before the failing one wrote. A
*chunk* is a series of steps that run in one call of a traced function; hooks outside the step are called only between
chunks."""


def make_page(hooks: Sequence[Description]) -> str:
    """Return the catalogue page."""
    groups = [hook for group in GROUPS for hook in hooks if hook.docstring.sections["Group"] == group]
    parts = ["\n\n".join([f"## {hook.name}", *filter(None, make_parts(hook).values())]) for hook in groups]
    return "\n\n".join([make_overview(hooks), *parts]) + "\n"


def make_overview(hooks: Sequence[Description]) -> str:
    """Return the head of the page: what applies to all hooks, and their names by group."""
    tables = []
    for group, title in GROUPS.items():
        rows = [
            (f"[{hook.name}](#{hook.name}){' *' if hook.is_default else ''}", _text(hook.purpose))
            for hook in hooks
            if hook.docstring.sections["Group"] == group
        ]
        tables.append(f"**{title}**\n\n{markdown_table(('hook', 'what it does'), rows)}")
    return "\n\n".join([PREAMBLE, *tables])


def make_parts(hook: Description) -> dict[str, str]:
    """Return the parts of the page on one hook, by subject; empty where there is nothing to say."""
    sections = hook.docstring.sections
    options = [(f"`{key}`", f"`{default}`", _text(comment)) for key, (default, comment) in hook.options.items()]
    config = f"**Config** ([{hook.config.name}](../{hook.config}))\n\n{markdown_table(('key', 'default', ''), options)}"
    pitfalls = [
        f"- {_text(text[:1].upper() + text[1:])} ([{Path(file).stem}](../{file}))"
        for file, text in hook.entries["Pitfalls"].items()
    ]
    return {
        "summary": _text(hook.docstring.summary),
        "body": _text(hook.docstring.body),
        "example": f"```\n{sections['Example']}\n```",
        "equation": f"**Equation**\n\n```text\n{sections['Equation']}\n```" if "Equation" in sections else "",
        "facts": markdown_table(("", ""), _facts(hook)),
        "state": _list("State saved", hook.entries["State"], hook.state),
        "scalars": _list("Scalars", hook.entries["Scalars"]),
        "pictures": _list("Pictures", hook.entries["Pictures"]),
        "config": config if options else "",
        "cost": f"**Cost.** {_text(sections['Cost'])}",
        "pitfalls": "\n".join(["**Pitfalls and guarantees**, each with its test", "", *pitfalls]),
        "reference": f"**Reference.** {_text(sections['Reference'])}" if "Reference" in sections else "",
    }


def _facts(hook: Description) -> Iterator[tuple[str, str]]:
    cls = hook.hook_class
    kind = "inside the step (GraphHook) and watching from outside (HostHook)"
    if not (issubclass(cls, GraphHook) and issubclass(cls, HostHook)):
        changes = issubclass(cls, GraphHook)
        kind = "changes training inside the step (GraphHook)" if changes else "watches from outside the step (HostHook)"
    yield "class", f"[{cls.__name__}](../{hook.source}), {kind}"
    yield "stages", _names(hook.stages)
    classes: dict[str, Any] = {name: load(name) for name in catalogue()}

    def with_others(declared: Sequence[str], converse: str) -> list[str]:  # a declaration applies to both
        return sorted({*declared, *(name for name, each in classes.items() if hook.name in getattr(each, converse))})

    relations = {"after": with_others(cls.after, "before"), "before": with_others(cls.before, "after")}
    order = [f"{word} {_names(names)}" for word, names in relations.items() if names]
    priority = f"by priority {cls.priority}, from 0 (first) to 100 (last)"
    yield "order", "; ".join([*order, f"otherwise {priority}" if order else priority])
    rows = {"conflicts with": with_others(cls.conflicts, "conflicts"), **hook.declared}
    yield from ((label, _names(names)) for label, names in rows.items() if names)


def _list(title: str, entries: Mapping[str, str], forms: Mapping[str, str] | None = None) -> str:
    """Return entries as a Markdown list; an empty string if there are none."""
    form = {name: f" ({each})" for name, each in (forms or {}).items()}
    lines = [f"- `{name}`{form.get(name, '')}: {_text(text)}" for name, text in entries.items()]
    return "\n".join([f"**{title}**", "", *lines]) if lines else ""


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _text(text: str) -> str:
    """Escape what Markdown would take for a tag or for emphasis in free text."""
    parts = CODE.split(text)
    return "".join(part if CODE.fullmatch(part) else MARKUP.sub(r"\\\g<0>", part) for part in parts)
