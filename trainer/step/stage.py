"""Where an error came from: the hook and the stage, added to the error as a note."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from trainer.errors import UserError
from trainer.hook import Hook
from trainer.step.name_scope import UPDATE_OPS, named_scope
from trainer.step.scope import stray_tensors

KEEPS_SCOPE = "around_forward"  # what it enters stays entered: the forward pass has a scope of its own


@contextmanager
def in_stage(hook: Hook, stage: str, step: int | None = None) -> Iterator[None]:
    """Add "in hook X, stage Y, step N" to an error that leaves the block; its traceback stays.

    What is traced in the block is named "<stage>/<hook>/...".

    Args:
        hook: whose code runs.
        stage: the stage, such as "transform_weights".
        step: the step, where one is known; tracing knows none.

    Raises:
        UserError: the hook uses a tensor of a micro batch or branch that is over, where TensorFlow would say so later.
    """
    try:
        with _scope(hook, stage, step):
            yield
        if stray := stray_tensors():
            raise _stray(hook, stage, ", ".join(stray))
    except BaseException as error:
        if type(error).__name__ == "InaccessibleTensorError":  # TensorFlow's own, for those that it finds at once
            raise _stray(hook, stage, str(error).partition(" is out of scope")[0]) from error
        where = "while the step was traced" if step is None else f"step {step}"
        error.add_note(f"in hook {hook.name or type(hook).__name__}, stage {stage}, {where}")
        raise


def _scope(hook: Hook, stage: str, step: int | None) -> AbstractContextManager[None]:
    if step is not None or stage == KEEPS_SCOPE:
        return nullcontext()
    return named_scope(UPDATE_OPS if stage == "update_ops" else stage, hook.name or type(hook).__name__)


def _stray(hook: Hook, stage: str, tensors: str) -> UserError:
    return UserError(
        f"The hook '{hook.name}' uses in {stage} what it made in another stage, in a micro batch or a branch that is "
        f"over: {tensors}. Put what add_losses makes for later stages into context.taps, and never into an attribute."
    )
