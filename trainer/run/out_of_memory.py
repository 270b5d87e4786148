"""Memory that is not enough, told in one line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from trainer.errors import UserError

OF_MEMORY = re.compile(r"\bOOM\b|out of memory", re.IGNORECASE)
"""What tells a lack of memory from other lacks of TensorFlow's, such as that of room on a disk."""
ARRAY = re.compile(r"shape ?[\[(]([\d, ]+)[\])] and (?:data )?type (\w+)")


@contextmanager
def memory_errors() -> Iterator[None]:
    """Raise a `UserError` where memory was not enough for a tensor of TensorFlow or an array of NumPy.

    Raises:
        UserError: with the shape that was asked for, where it is known, and what takes less.
    """
    try:
        yield
    except (tf.errors.ResourceExhaustedError, MemoryError) as error:
        text = str(error)
        if isinstance(error, tf.errors.OpError) and not OF_MEMORY.search(text):
            raise
        found = ARRAY.search(text)
        asked = f" for a tensor of shape [{re.sub(r' *, *', ', ', found[1])}], {found[2]}" if found else ""
        raise UserError(
            f"There is not enough memory{asked}. Expected a smaller trainer.batch_size, more "
            "trainer.accumulation_steps, smaller inputs or a smaller model."
        ) from error
