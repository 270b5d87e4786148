"""What a run with a hook reports, held against what the hook's docstring says that it reports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from hookline.hooks import load
from hookline.scripts.documentation.description import parse_docstring

OF_ALL_RUNS = re.compile(r"loss/(total|cross_entropy)|metric/accuracy|(grad_norm|opt|time)/.*")
"""What the trainer and the classification report by themselves."""
CONDITION = re.compile(r"\b(where|if) (\S+ is set|there is one|there are any)")


def check_reported(name: str, directory: Path) -> None:
    """Compare the names in a run's reports with the section "Scalars:" of a hook.

    Args:
        name: of the hook, the only technique of the run, which classifies.
        directory: of the run.
    """
    lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
    reported = {key for line in lines for key in line} - {"step", "split"}
    entries = parse_docstring(load(name).__doc__).entries("Scalars")
    assert differing_names(entries, reported) == []


def differing_names(entries: Mapping[str, str], reported: Iterable[str]) -> list[str]:
    """Return which names are reported and not described, and which are described and not reported.

    Args:
        entries: descriptions by name; "<layer>" stands for any. One that says under what condition it is reported may
            be missing. Evaluations put "metric/" in front.
        reported: names.
    """
    own = [name for name in reported if not OF_ALL_RUNS.fullmatch(name)]
    patterns = {name: re.compile("(metric/)?" + re.escape(name).replace("<layer>", ".+")) for name in entries}
    unknown = [name for name in sorted(own) if not any(pattern.fullmatch(name) for pattern in patterns.values())]
    absent = [
        name
        for name, text in entries.items()
        if not CONDITION.search(text) and not any(patterns[name].fullmatch(each) for each in own)
    ]
    return [*(f"{name} is not described" for name in unknown), *(f"{name} is not reported" for name in absent)]
