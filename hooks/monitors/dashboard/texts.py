"""What the text tab says of a run, as Markdown: its config, where it runs, what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from trainer.files import read_json
from trainer.run.directory import ENVIRONMENT
from trainer.run.results import format_value, metric_rows


def config_as_markdown(config: dict[str, Any]) -> str:
    """Return the resolved config as a fenced block of YAML.

    Args:
        config: plain dicts and lists.
    """
    return f"```yaml\n{OmegaConf.to_yaml(OmegaConf.create(config))}```"


def environment_as_markdown(directory: Path) -> str:
    """Return what `environment.json` says as a table of two columns; empty where a run has no such file.

    Args:
        directory: of the run.
    """
    try:
        environment = read_json(directory / ENVIRONMENT)
    except (OSError, ValueError):
        environment = None
    if not isinstance(environment, dict):
        return ""
    versions = [environment.pop(name, None) for name in ("packages", "plugins")]
    rows = {**environment, **{name: each[name] for each in versions if isinstance(each, Mapping) for name in each}}
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {_as_cell(value)} |" for name, value in rows.items())])


def _as_cell(value: Any) -> str:
    if isinstance(value, list):
        value = ", ".join(map(str, value)) or None
    return "none" if value is None else str(value).replace("|", "\\|")


def summary_as_markdown(summary: dict[str, Any]) -> str:
    """Return the result as a Markdown table of the metrics, followed by everything that `summary.json` holds.

    Args:
        summary: what `summary.json` holds.
    """
    lines = ["| | train (final) | validation (best) | test |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {' | '.join(format_value(value) for value in values)} |" for name, *values in metric_rows(summary)
    ]
    return "\n".join([*lines, "", "```json", json.dumps(summary, indent=2, default=str), "```"])
