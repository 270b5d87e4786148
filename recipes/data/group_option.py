"""Examples that belong together, as a data set's own option tells them: the checks of that option."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trainer.errors import UserError


def check_group_option(split: str, option: str, value: object) -> None:
    """Check that the option is given where the way to split needs it, and nowhere else.

    Args:
        split: data.split.
        option: that says which examples belong together, such as "group_pattern".
        value: of that option; None for none.

    Raises:
        UserError: one without the other.
    """
    if split == "group" and value is None:
        raise UserError(f"Received data.split=group and data.{option}=null; expected both. Set it.")
    if split != "group" and value is not None:
        raise UserError(
            f"Received data.{option} with data.split={split}, where it counts for nothing; expected data.split=group, "
            f"or data.{option}=null."
        )


def check_groups(parts: Mapping[str, np.ndarray], groups: np.ndarray) -> None:
    """Check that no group is in two parts, as it may be where files or folders made some of them.

    Args:
        parts: rows by split.
        groups: [size], the group of every row.

    Raises:
        UserError: one is; names the first.
    """
    seen: dict[object, str] = {}
    for name, rows in parts.items():
        for group in np.unique(groups[rows]).tolist():
            if group in seen:
                raise UserError(
                    f"Group '{group}' is in {seen[group]} and in {name}; expected it in one part. Move its examples "
                    "together, or let data.split=group make all parts."
                )
            seen[group] = name
