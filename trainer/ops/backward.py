"""A named backward pass: what it computes, what it needs for that, and what it is meant to be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trainer.errors import UserError
from trainer.ops.gradient_checks import is_differentiable
from trainer.ops.override_gradient import override_gradient

NEEDS = ("inputs", "outputs")


@dataclass(frozen=True, eq=False)
class Backward:
    """Describe a backward pass that can be put on any forward pass.

    Attributes:
        name: such as "reverse".
        function: called as function(upstream, **needs); returns one gradient for each input, or a bare tensor for a
            single one. Upstream is dL/d(outputs), as forward returns them. A backward pass that modifies gets the
            tuple of forward's own gradients, dL/d(inputs), in its place.
        needs: which of "inputs" (a tuple) and "outputs" function takes beside upstream. One that modifies stands before
            forward and knows no outputs.
        modifies: whether it changes forward's own gradients (True) or takes their place (False).
        constants: float tensors that function uses beside them, such as a factor that follows a schedule.
        surrogate: the function of the inputs whose derivative this is meant to be; None: it is none's, it changes the
            gradient on purpose.
        second_backward: the second derivative, as in `override_gradient`.
    """

    name: str
    function: Callable[..., Any]
    needs: tuple[str, ...] = ()
    modifies: bool = False
    constants: tuple[tf.Tensor, ...] = ()
    surrogate: Callable[..., Any] | None = None
    second_backward: Callable[..., Any] | str | None = None

    def __post_init__(self) -> None:
        """Check what it needs.

        Raises:
            UserError: something that there is not, or a surrogate of one that modifies.
        """
        known = NEEDS[:1] if self.modifies else NEEDS
        if unknown := sorted(set(self.needs) - set(known)):
            raise UserError(f"The backward pass '{self.name}' needs {unknown}. Expected some of {list(known)}.")
        if self.modifies and self.surrogate is not None:
            raise UserError(
                f"The backward pass '{self.name}' modifies gradients and declares a surrogate. Expected none: its "
                "gradients are forward's own, changed on purpose."
            )

    def __call__(self, upstream: Any, inputs: Sequence[tf.Tensor], outputs: Any) -> Any:
        """Return what function makes of what it needs.

        Args:
            upstream: dL/d(outputs), or forward's own gradients for one that modifies.
            inputs: of the forward pass.
            outputs: of the forward pass.
        """
        given = {"inputs": tuple(inputs), "outputs": outputs}
        return self.function(upstream, **{need: given[need] for need in self.needs})


def with_backward(forward: Callable[..., Any], backward: Backward, inputs: Sequence[Any], **options: Any) -> Any:
    """Return forward(*inputs), differentiated by a named backward pass.

    Args:
        forward: of tensors, returns a float tensor or a tuple of them. Where backward modifies gradients, these are
            forward's own, so it may use variables.
        backward: to put on it.
        inputs: tensors or variables.
        **options: numpy_output and name of `override_gradient`; a forward of NumPy has no gradients to modify.
    """
    declared = {"constants": backward.constants, "second_backward": backward.second_backward}
    if not backward.modifies:
        options = {"name": backward.name, **declared, "surrogate": backward.surrogate, **options}
        return override_gradient(forward, backward, inputs, **options)
    if options.get("numpy_output") is not None:
        raise UserError(
            f"The backward pass '{backward.name}' modifies the gradients of the forward pass, and one of NumPy has "
            "none. Expected a backward pass that takes their place."
        )
    return forward(*modify_gradients(backward, inputs, **options))


def modify_gradients(backward: Backward, inputs: Sequence[Any], *, name: str | None = None) -> tuple[tf.Tensor, ...]:
    """Return the inputs as they are; their gradients are what a backward pass makes of those that arrive.

    Args:
        backward: modifies.
        inputs: tensors or variables.
        name: what messages call it.
    """
    tensors = [tf.convert_to_tensor(each) for each in inputs]
    passed = override_gradient(
        lambda *given: tuple(tf.identity(each) for each in given),
        backward,
        [each for each in tensors if is_differentiable(each)],
        constants=backward.constants,
        second_backward=backward.second_backward,
        surrogate=None,
        name=name or backward.name,
    )
    waiting = iter(passed)
    return tuple(next(waiting) if is_differentiable(each) else each for each in tensors)
