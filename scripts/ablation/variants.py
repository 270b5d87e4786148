"""A recipe without each of its technique hooks in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hooks.techniques import technique_hooks
from train import check
from trainer.errors import UserError

WHOLE = "whole"


@dataclass(frozen=True)
class Variant:
    """Hold one way to run a recipe.

    Attributes:
        name: "whole", or "without <hook>".
        overrides: without a seed.
        reason: why it cannot run; None where it can, as far as is known.
    """

    name: str
    overrides: tuple[str, ...]
    reason: str | None = None

    def job(self, seed: int) -> list[str]:
        """Return the overrides of a job."""
        return [*self.overrides, f"seed={seed}"]


def variants_of(overrides: Sequence[str], seed: int) -> list[Variant]:
    """Return the recipe as it is, and without each of its technique hooks.

    Args:
        overrides: what the user gave for every run.
        seed: any of those that will be run.

    Raises:
        UserError: the recipe as it is cannot run, or has no technique hook.
    """
    whole = Variant(WHOLE, tuple(overrides))
    (job,) = check(whole.job(seed))
    hooks = technique_hooks(job.config["hooks"])
    if not hooks:
        raise UserError(
            f"recipe={job.recipe} has no technique hook to take away. Expected a recipe that has one, or +hooks=<name>."
        )
    return [whole, *(_without(name, overrides, seed) for name in hooks)]


def _without(hook: str, overrides: Sequence[str], seed: int) -> Variant:
    """Return the recipe without a hook, and so without what the user set for it."""
    key = f"hooks.{hook}"
    kept = [text for text in overrides if not text.lstrip("+").partition("=")[0].startswith(f"{key}.")]
    is_users_own = any(text.startswith(f"+{key}.") for text in overrides)
    variant = Variant(f"without {hook}", (*kept, *([] if is_users_own else [f"{key}=null"])))
    try:
        check(variant.job(seed))
    except UserError as error:
        return Variant(variant.name, variant.overrides, str(error))
    return variant
