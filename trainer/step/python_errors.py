"""Errors of Python that a graph calls, such as a forward pass of NumPy, as they were raised."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from trainer.errors import UserError

RAISED = re.compile(rf"\b{UserError.__name__}: (.+)")


@contextmanager
def python_errors() -> Iterator[None]:
    """Raise the `UserError` that Python code in a graph raised.

    TensorFlow wraps it into one of its own errors, with the places in the code before and after it.

    Raises:
        UserError: as it was; other errors stay what they are.
    """
    try:
        yield
    except tf.errors.OpError as error:
        found = RAISED.search(error.message)
        if found is None:
            raise
        raise UserError(found[1]) from error
