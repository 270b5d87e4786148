"""The contenders of `what=training`: our own runs, other ways to do the same work, and the limit of the machine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hookline.scripts.benchmarks import training_hookline as hookline
from hookline.scripts.benchmarks import training_others as others
from hookline.scripts.benchmarks.contender import Contender, Work
from hookline.scripts.benchmarks.training_hookline import BINARY, Case

PLAIN = ("hooks.fused_batch_norm=null",)
"""Batch norm by Keras' own ops."""
HALF = ("trainer.precision=bfloat16",)
PRUNED = (
    "+hooks=prune",
    f"hooks.prune.final_sparsity={hookline.PRUNED}",
    f"hooks.prune.frequency={hookline.MASKS_EVERY}",
    f"hooks.prune.power={hookline.POWER}",
)
"""The schedule's default end is halfway, at `PRUNED_AT`."""
TECHNIQUES: dict[str, tuple[str, ...]] = {
    "center_loss": (),
    "bernoulli_attention": (),
    "frozen_mask": (),
    "prune": (),
    "incremental_quantization": (),
    "freeze_layers": ("hooks.freeze_layers.layers=conv_1",),
    "gradient_override": ("hooks.gradient_override.layers=dense_1", "hooks.gradient_override.backward=clip"),
    "ema": (),
}
"""Hooks that work on any network with convolutions, each with what it needs to do something."""
OWN = ("baseline", "limit", "environment")


def _one(case: Case, name: str, way: Callable[..., Work], **more: Any) -> Contender:
    """Return a contender; what `Contender` does not know of `more` is for `way`."""
    own = {key: more.pop(key) for key in OWN if key in more}
    prepare = partial(way, case=case, **more)
    return Contender("training", case.name, name, prepare, batch_size=case.batch_size, **own)


def _ours(case: Case, variants: dict[str, tuple[str, ...]], *always: str, baseline: bool = False) -> list[Contender]:
    """Return our own runs: as the case has it, and variants of it."""
    first = _one(case, "hookline", hookline.ours, overrides=always, baseline=baseline)
    return [first, *(_one(case, f"hookline {name}", hookline.ours, overrides=each) for name, each in variants.items())]


def _fits(case: Case, name: str, way: Callable[..., Work], **more: Any) -> list[Contender]:
    """Return ways to call `fit`: a step an execution, and many."""
    return [
        _one(case, f"{name}{f' spe {many}' if many > 1 else ''}", way, many=many, baseline=True, **more)
        for many in (1, case.many)
    ]


def _beside(case: Case, overrides: tuple[str, ...] = (), *, prune: bool = False) -> list[Contender]:
    """Return PyTorch and the limit."""
    return [
        _one(case, "pytorch", others.pytorch, compiled=False, prune=prune, environment="torch"),
        _one(case, "pytorch compile", others.pytorch, compiled=True, prune=prune, environment="torch"),
        _one(case, "limit", hookline.limit, overrides=overrides, xla=False, limit=True),
        _one(case, "limit XLA", hookline.limit, overrides=overrides, xla=True, limit=True),
    ]


def _against_keras(case: Case, **variants: tuple[str, ...]) -> list[Contender]:
    """Return the contenders of a case that Keras can train as it is."""
    fits = [*_fits(case, "keras fit", others.fit, jit=False), *_fits(case, "keras fit jit", others.fit, jit=True)]
    return [*_ours(case, variants), *fits, *_beside(case)]


CONTENDERS = (
    *_against_keras(hookline.LENET_300_100, **{"compile=on": ("trainer.compile=on",)}),
    *_against_keras(hookline.LENET_5, bfloat16=HALF),
    *_against_keras(hookline.CNN, **{"plain batch norm": PLAIN, "bfloat16": HALF}),
    *_ours(hookline.BNN, {"plain batch norm": (*BINARY, *PLAIN), "bfloat16": (*BINARY, *HALF)}, *BINARY),
    *_fits(hookline.BNN, "larq fit", others.larq, environment="larq"),
    *_beside(hookline.BNN, BINARY),
    *_ours(hookline.PRUNING, {"frozen_mask": ("recipe=frozen_mask", *PRUNED[1:])}, *PRUNED),
    *_fits(hookline.PRUNING, "tfmot fit", others.tfmot, environment="tfmot"),
    *_beside(hookline.PRUNING, prune=True),
    *_ours(hookline.HOOKS, {name: (f"+hooks={name}", *options) for name, options in TECHNIQUES.items()}, baseline=True),
    _one(hookline.HOST_HOOKS, "hookline no host hooks", hookline.whole_epochs, watched=False, baseline=True),
    _one(hookline.HOST_HOOKS, "hookline all host hooks", hookline.whole_epochs, watched=True),
)
