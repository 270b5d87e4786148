"""What hooks answer after training: an answer that is wrong is left out with a warning, and costs nothing else."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from trainer.hook import Hook
from trainer.step.returned import checked


def answer(hook: Hook, stage: str, *arguments: Any, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what a stage of a hook returns, once it is checked; nothing, and a warning, where that fails.

    Args:
        hook: to ask.
        stage: name of its method, which returns a dict.
        arguments: of the stage.
        given: as for `checked`.
    """
    try:
        return dict(checked(hook, stage, getattr(hook, stage)(*arguments), given=given))
    except Exception as error:  # noqa: BLE001 - whatever a hook of a user does, the run is trained
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        warnings.warn(f"The hook '{hook.name}', stage {stage}: {reason} Its answer is left out.", stacklevel=3)
        return {}
