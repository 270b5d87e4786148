"""Why a YAML file cannot be read, in words."""

from __future__ import annotations

import yaml


def reason(error: BaseException) -> str:
    """Return what is wrong with a file, with the line where it is known.

    Args:
        error: that reading it raised.
    """
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    text = str(problem or error).strip().partition("\n")[0].rstrip(".")
    return text if mark is None else f"{text} (line {mark.line + 1})"


def file_of(error: yaml.YAMLError) -> str:
    """Return the path of the file that could not be parsed, as far as the error knows it.

    Args:
        error: that parsing it raised.
    """
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None) or error
    return getattr(mark, "name", None) or "a config file"
