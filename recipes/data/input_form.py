"""How stored inputs become what a network takes: the order of their axes, and the range of their values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from recipes.data.pixels import centered_pixels, pixel_preparation
from trainer.errors import UserError, unknown_name
from trainer.inference.preparation import Preparation
from trainer.input.checks import as_pixels, check_finite
from trainer.objective import Batch

SCALES = ("auto", "pixels", "none")
CHANNELS = ("auto", "last", "first", "none")
FEW_CHANNELS = (1, 3)
PEAK = 255
LARGEST_NUMBER = 8  # bytes: TensorFlow has no long double


@dataclass(frozen=True)
class InputForm:
    """Describe stored inputs and what is made of them.

    Attributes:
        stored: shape of one input as it is stored.
        dtype: as it is stored.
        pixels: whether 0 .. 255 becomes [-1, 1].
        channels: "last" as they are; "first" moves the first axis to the end; "new" adds an axis of 1 at the end.
    """

    stored: tuple[int, ...]
    dtype: np.dtype
    pixels: bool
    channels: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one input as the network takes it."""
        if self.channels == "new":
            return (*self.stored, 1)
        return (*self.stored[1:], self.stored[0]) if self.channels == "first" else self.stored

    @property
    def preparation(self) -> Preparation:
        """Return what is made of an example, for predictions later."""
        if self.pixels:
            return pixel_preparation(self.shape, PEAK, axes=self.channels)
        return Preparation(self.shape, axes=self.channels)

    def transform(self, batch: Batch) -> Batch:
        """Return a batch with "inputs" as the network takes them, float32; the rest is left.

        Args:
            batch: with "inputs" [n, *stored].
        """
        inputs = batch["inputs"]
        if self.channels == "new":
            inputs = inputs[..., tf.newaxis]
        elif self.channels == "first":
            inputs = tf.transpose(inputs, [0, *range(2, len(self.stored) + 1), 1])
        if self.pixels:
            return centered_pixels(PEAK)({**batch, "inputs": inputs})
        return {**batch, "inputs": tf.cast(inputs, tf.float32)}

    def check_rows(self, inputs: np.ndarray, rows: np.ndarray, where: str) -> None:
        """Check rows that were just read.

        Args:
            inputs: [n, *stored].
            rows: int64 [n], where they are from.
            where: what they are called in messages.

        Raises:
            UserError: a value that is NaN or infinite, or no pixel where pixels are expected; names the row.
        """
        flat = inputs.reshape(len(inputs), -1)
        if inputs.dtype.kind == "f":
            _refuse_rows(~np.isfinite(flat), rows, where, "NaN or infinite values; expected finite numbers")
        if self.pixels and inputs.dtype != np.uint8:
            outside = (flat < 0) | (flat > PEAK)
            _refuse_rows(outside, rows, where, "values outside 0..255; expected grey values, or data.scale=none")

    def in_memory(self, inputs: np.ndarray, where: str) -> np.ndarray:
        """Return inputs as they are held in memory, checked: pixels as uint8, float64 as float32, in native order.

        Args:
            inputs: [size, *stored], all of them.
            where: what they are called in messages.

        Raises:
            UserError: a value that is NaN or infinite, or no pixel where pixels are expected.
        """
        inputs = inputs.astype(inputs.dtype.newbyteorder("="), copy=False)
        if self.pixels and inputs.dtype != np.uint8:
            check_finite(inputs, where)
            return as_pixels(inputs, where)
        if inputs.dtype == np.float64:
            with np.errstate(over="ignore"):  # what float32 does not hold is found below
                inputs = inputs.astype(np.float32)
        check_finite(inputs, where)
        return inputs


def input_form(stored: tuple[int, ...], dtype: np.dtype, *, scale: str, channels: str, where: str) -> InputForm:
    """Return what is made of stored inputs.

    Args:
        stored: shape of one input.
        dtype: of the inputs: integers or floats.
        scale: "pixels" makes [-1, 1] of 0 .. 255; "none" keeps values; "auto" is "pixels" for uint8, else "none".
        channels: "last", "first", or "none" (the shape is kept whatever it means); "auto" takes the last axis for the
            channels of an image [height, width, channels], and gives a grey image [height, width] an axis of 1.
        where: what the inputs are called in messages.

    Raises:
        UserError: an unknown option, inputs without a shape or of another dtype, or channels that seem to come first.
    """
    if scale not in SCALES:
        raise unknown_name("data.scale", scale, SCALES)
    if channels not in CHANNELS:
        raise unknown_name("data.channels", channels, CHANNELS)
    if dtype.kind not in "iuf" or dtype.itemsize > LARGEST_NUMBER:
        raise UserError(f"{where}: inputs of dtype {dtype}; expected numbers of up to 64 bits. Convert them.")
    if not stored or not all(stored):
        raise UserError(f"{where}: inputs of shape {list(stored)}; expected numbers, such as [features] or an image's.")
    pixels = scale == "pixels" or (scale == "auto" and dtype == np.uint8)
    return InputForm(stored, dtype, pixels, _axis(stored, channels, where))


def _axis(stored: tuple[int, ...], channels: str, where: str) -> str:
    if channels == "first":
        if len(stored) < 3:
            raise UserError(
                f"{where}: inputs of shape {list(stored)} received with data.channels=first; expected [channels, "
                "height, width]. Set data.channels=auto."
            )
        return "first"
    if channels == "auto" and len(stored) == 3 and stored[0] in FEW_CHANNELS and stored[2] not in (*FEW_CHANNELS, 2, 4):
        raise UserError(
            f"{where}: inputs of shape {list(stored)} look like [channels, height, width]; expected [height, width, "
            "channels]. Set data.channels=first to move the axis, or data.channels=last if they are what they say."
        )
    return "new" if len(stored) == 2 and channels != "none" else "last"


def _refuse_rows(bad: np.ndarray, rows: np.ndarray, where: str, what: str) -> None:
    if bad.any():
        row = int(rows[np.argmax(bad.any(axis=1))])
        raise UserError(f"{where}, row {row}: {what}. Mend or remove this row.")
