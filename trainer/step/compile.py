"""Whether XLA compiles the step."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.hook import GraphHook

PYTHON_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


def use_xla(mode: str, hooks: Iterable[GraphHook], *, replicas: int = 1) -> bool:
    """Return whether to compile the step with XLA.

    "auto" compiles on a GPU, and not on a CPU: there TensorFlow's own kernels were measured faster for products (1.2
    times for LeNet-300-100, 1.5 to 2.5 times in bfloat16) and convolutions (up to 100 times). Only networks so small
    that most time goes into many small ops gain, and only after thousands of steps is the compile time made up for. A
    hook that XLA cannot compile keeps it off, with a warning where it would have been on.
    """
    blocking = [hook.name for hook in hooks if not hook.supports_xla]
    if mode == "on" and blocking:
        raise UserError(
            f"trainer.compile=on received, but XLA cannot compile {', '.join(blocking)}. Use trainer.compile=auto."
        )
    if mode == "on" and replicas > 1:
        raise UserError(
            f"trainer.compile=on received with {replicas} replicas, whose sums XLA does not compile. Use "
            "trainer.compile=auto."
        )
    if mode != "auto" or replicas > 1:
        return mode == "on"
    pays = bool(tf.config.list_physical_devices("GPU"))
    if pays and blocking:
        warnings.warn(f"XLA stays off: it cannot compile {', '.join(blocking)}.", stacklevel=2)
    return pays and not blocking


def python_ops(graph: tf.Graph) -> list[str]:
    """Return the names of the ops that call Python, such as `tf.numpy_function`, which XLA cannot compile."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    return list(dict.fromkeys(node.name for node in nodes if node.op in PYTHON_OPS))


def keep_xla_off(mode: str, ops: Sequence[str]) -> None:
    """Say that XLA stays off because of ops in the step that call Python."""
    reason = f"the step calls Python at {ops[0]}{f' and {len(ops) - 1} more ops' if len(ops) > 1 else ''}"
    if mode == "on":
        raise UserError(
            f"trainer.compile=on received, but XLA cannot compile the step: {reason} (tf.numpy_function or "
            "tf.py_function). Use trainer.compile=auto, or TensorFlow ops in its place."
        )
    warnings.warn(f"XLA stays off: {reason}, which it cannot compile.", stacklevel=2)
