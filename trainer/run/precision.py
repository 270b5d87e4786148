"""The precision in which networks compute: Keras's mixed policies, where the hardware is faster with them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.run.directory import cpu_flags
from hookline.trainer.step.losses import LossScale

FLOAT32, FLOAT16, BFLOAT16 = "float32", "float16", "bfloat16"
POLICIES = {FLOAT32: "float32", FLOAT16: "mixed_float16", BFLOAT16: "mixed_bfloat16"}
"""Under a mixed policy latent variables, statistics and slots stay float32; layers compute in less."""
NEEDED_CAPABILITY = {FLOAT16: (7, 0), BFLOAT16: (8, 0)}
"""The compute capability from which NVIDIA GPUs have units for it."""
BFLOAT16_FLAGS = ("amx_bf16", "avx512_bf16")

Device = Mapping[str, Any]


@contextmanager
def computing_in(precision: str) -> Iterator[None]:
    """Build layers with the Keras policy of a precision; afterwards the policy is what it was, whatever happens."""
    before = keras.config.dtype_policy()
    if before.name == POLICIES[precision]:
        yield
        return
    keras.config.set_dtype_policy(POLICIES[precision])
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def loss_scale_for(precision: str) -> LossScale | None:
    """Return a scale of the loss where the precision needs one; the others have the range of float32."""
    return LossScale() if precision == FLOAT16 else None


def describe_precision(precision: str, scale: LossScale | None) -> dict[str, Any]:
    """Return what summary.json says of the precision."""
    return {
        "compute": precision,
        "loss_scale": None if scale is None else float(scale.value),
        "overflow_steps": None if scale is None else int(scale.overflow_steps),
    }


def check_precision(precision: str, *, allow_slow: bool) -> None:
    """Refuse a precision that would be slower on this machine."""
    if precision == FLOAT32 or allow_slow:
        return
    gpus = [tf.config.experimental.get_device_details(device) for device in tf.config.list_physical_devices("GPU")]
    if reason := why_slow(precision, cpu_flags(), gpus):
        raise UserError(
            f"trainer.precision={precision} received, but {reason}. Expected trainer.precision=float32 here; to try it "
            "all the same, trainer.allow_slow_precision=true."
        )


def why_slow(precision: str, flags: Collection[str], gpus: Sequence[Device]) -> str | None:
    """Return why a precision is slower on a machine; None if it is faster."""
    if gpus:
        return next((reason for gpu in gpus if (reason := _why_slow_on(gpu, precision))), None)
    if precision == FLOAT16:
        return "a CPU has no fast float16 (convolutions were measured 6 to 8 times slower than in float32)"
    if not any(flag in flags for flag in BFLOAT16_FLAGS):
        missing = " nor ".join(BFLOAT16_FLAGS)
        return f"this CPU has neither {missing} (without them bfloat16 was measured 4 to 9 times slower than float32)"
    return None


def _why_slow_on(gpu: Device, precision: str) -> str | None:
    needed, found = NEEDED_CAPABILITY[precision], gpu.get("compute_capability")
    name = gpu.get("device_name", "this GPU")
    if found is None:
        return f"{name} does not tell its compute capability, so nothing is known of its speed in {precision}"
    if tuple(found) < needed:
        return f"{name} has compute capability {_dotted(found)}, and {precision} is fast from {_dotted(needed)} on"
    return None


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))
