"""All that is known of a hook: its docstrings, its config file, its class, and what it declares once it is built."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from hooks import CONFIG_DIRECTORY, HookEntry, catalogue, load
from scripts.documentation.docstring import Docstring, parse_docstring
from scripts.documentation.options import Option, read_options
from scripts.documentation.specimen import Declared, declared_by
from scripts.documentation.stages import overridden_declarations, overridden_stages
from trainer.hook import Hook
from trainer.run.build_hook import build_hook

ROOT = CONFIG_DIRECTORY.parents[1]


@dataclass(frozen=True)
class Description:
    """Hold what is known of a hook.

    Attributes:
        name: its key under `hooks`.
        purpose: one line.
        hook_class: of the hook.
        docstring: of the class.
        arguments: what the constructor's docstring says of each.
        options: the keys of its config file.
        stages: that it overrides.
        declarations: that it overrides.
        declared: by a hook with the defaults of the config file.
        source: its file, relative to the project.
        config: its config file, relative to the project.
        is_default: whether every run has it.
    """

    name: str
    purpose: str
    hook_class: type[Hook]
    docstring: Docstring
    arguments: Mapping[str, str]
    options: list[Option]
    stages: list[str]
    declarations: list[str]
    declared: Declared
    source: Path
    config: Path
    is_default: bool

    @property
    def group(self) -> str:
        """Return what kind of hook it says it is."""
        return self.docstring.sections.get("Group", "")


def describe_hooks() -> list[Description]:
    """Return the project's own hooks, in alphabetical order. This imports and builds them, and so TensorFlow.

    Raises:
        ValueError: a docstring or config file that cannot be read; it names the file.
    """
    return [describe(entry) for entry in catalogue(CONFIG_DIRECTORY).values() if entry.plugin is None]


def describe(entry: HookEntry) -> Description:
    """Return what is known of a hook.

    Args:
        entry: of the catalogue.

    Raises:
        ValueError: a docstring or config file that cannot be read; it names the file.
    """
    hook_class = load(entry.name)
    source = Path(inspect.getfile(hook_class)).resolve().relative_to(ROOT)
    try:
        docstring = parse_docstring(vars(hook_class).get("__doc__"))
        arguments = parse_docstring(getattr(vars(hook_class).get("__init__"), "__doc__", None)).entries("Args")
    except ValueError as error:
        raise ValueError(f"{source}, docstring of {hook_class.__name__}: {error}") from error
    return Description(
        name=entry.name,
        purpose=entry.purpose,
        hook_class=hook_class,
        docstring=docstring,
        arguments=arguments,
        options=read_options(entry.config_file),
        stages=overridden_stages(hook_class),
        declarations=overridden_declarations(hook_class),
        declared=declared_by(build_hook(entry.name, _node(entry))),
        source=source,
        config=entry.config_file.relative_to(ROOT),
        is_default=entry.name in OmegaConf.load(CONFIG_DIRECTORY / "default.yaml").defaults,
    )


def _node(entry: HookEntry) -> dict[str, Any]:
    content: Any = OmegaConf.to_container(OmegaConf.load(entry.config_file))
    return content[entry.name]
