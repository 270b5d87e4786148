"""Where an error came from: the hook and the stage, added to the error as a note."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trainer.hook import Hook


@contextmanager
def in_stage(hook: Hook, stage: str, step: int | None = None) -> Iterator[None]:
    """Add "in hook X, stage Y, step N" to an error that leaves the block; its traceback stays.

    Args:
        hook: whose code runs.
        stage: the stage, such as "transform_weights".
        step: the step, where one is known; tracing knows none.
    """
    try:
        yield
    except BaseException as error:
        where = "while the step was traced" if step is None else f"step {step}"
        error.add_note(f"in hook {hook.name or type(hook).__name__}, stage {stage}, {where}")
        raise
