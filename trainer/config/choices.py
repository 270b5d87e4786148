"""Overrides that choose an option of a group: recipe=bnn, data=mnist, +hooks=center_loss."""

from __future__ import annotations

from collections.abc import Mapping

from hydra.core.override_parser.types import Override, OverrideType

from trainer.config.compose import Composer
from trainer.config.schema import NAMED
from trainer.config.values import show
from trainer.errors import UserError, unknown_name

MEND = {
    **{section: f"{section}.<name>=null to remove one {kind}" for section, kind in NAMED.items()},
    "recipe": "recipe=<name>; see python train.py --help",
}


def is_group_choice(override: Override, composer: Composer) -> bool:
    """Return whether an override chooses an option of a group.

    Args:
        override: one of the user's.
        composer: knows the groups.
    """
    return composer.is_group(override.key_or_group) and not isinstance(override.value(), dict)


def check_choice(override: Override, composer: Composer, choices: Mapping[str, str]) -> None:
    """Check an override that chooses an option of a group.

    Args:
        override: one of the user's.
        composer: knows the groups and their options.
        choices: what overrides without a plus choose, by group, as text.

    Raises:
        UserError: an unknown option, null, a removal, or a plus where it would be ignored or is needed.
    """
    group, text, value = override.key_or_group, override.input_line, override.value()
    if override.is_delete() or value is None:
        deed = "removes a whole group" if override.is_delete() else "leaves nothing to build"
        raise UserError(f"'{text}' {deed}. Expected {MEND.get(group, f'{group}=<name> to choose another')}.")
    names = value if isinstance(value, list) else [value]
    for name in names:
        if name not in composer.options(group):
            if reason := composer.why_refused(group, str(name)):
                raise UserError(
                    f"{show(name)} is no {NAMED.get(group, group)} of this run: {reason}. "
                    "Expected the plugin mended or uninstalled, or another name there."
                )
            raise unknown_name(NAMED.get(group, group), show(name), composer.options(group))
    _check_sign(override, ",".join(map(str, names)), choices)


def _check_sign(override: Override, listed: str, choices: Mapping[str, str]) -> None:
    """Refuse a plus that Hydra would ignore, and a missing one where options are added."""
    group, text = override.key_or_group, override.input_line
    section = group.partition("/")[0]
    if section in NAMED:
        if override.type is not OverrideType.ADD:
            added = f"[{listed}]" if "," in listed else listed
            raise UserError(f"'{text}' would replace all {NAMED[section]}s. Expected +{group}={added} to add.")
    elif override.type is not OverrideType.CHANGE and override.package is None:
        if group == "recipe" and group in choices:
            raise UserError(f"'{text}' would be ignored. Expected recipe=[{choices[group].strip('[]')},{listed}].")
        raise UserError(f"'{text}' adds to a group that takes one choice. Expected {group}={listed}.")
