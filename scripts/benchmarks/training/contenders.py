"""Who takes part in `what=training`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from hookline.scripts.benchmarks.contender import STEPS, Contender, Work
from hookline.scripts.benchmarks.training import case as cases
from hookline.scripts.benchmarks.training import hookline, keras_loops, legacy, pytorch
from hookline.scripts.benchmarks.training.case import Case
from hookline.scripts.benchmarks.training.limit import limit

WHAT = "training"
PLAIN = ("hooks.fused_batch_norm=null",)
"""Batch norm by Keras' own ops."""
HALF = "trainer.precision=bfloat16"
BINARY = (
    "recipe=bnn",
    "model.activation=linear",
    "model.logits_scale=false",
    "hooks.bnn_rounding.all_binary=true",
)
"""Larq's tutorial to the letter: no activation before its quantizers, no scale in its last batch norm."""
PRUNED = (
    "+hooks=prune",
    f"hooks.prune.final_sparsity={cases.PRUNED}",
    f"hooks.prune.frequency={cases.MASKS_EVERY}",
    f"hooks.prune.power={cases.POWER}",
)
"""The schedule's default end is halfway, at `PRUNED_AT`."""
TECHNIQUES = (
    "center_loss",
    "bernoulli_attention",
    "frozen_mask",
    "prune",
    "incremental_quantization",
    "freeze_layers",
    "gradient_override",
    "ema",
)
"""Hooks that work on any network with convolutions, each with what it needs to do something."""
OPTIONS = {
    "freeze_layers": ["hooks.freeze_layers.layers=conv_1"],
    "gradient_override": ["hooks.gradient_override.layers=dense_1", "hooks.gradient_override.backward=clip"],
}


def _one(case: Case, name: str, way: Callable[..., Work], **more: Any) -> Contender:
    """Return a contender; what `Contender` does not know of `more` is for `way`."""
    own = {key: more.pop(key) for key in ("baseline", "limit", "environment") if key in more}
    losses = 0 if own.get("limit") or way is hookline.whole_epochs else case.loss_steps
    prepare = partial(way, case=case, **more)
    return Contender(WHAT, case.name, name, prepare, unit=STEPS, batch_size=case.batch_size, loss_steps=losses, **own)


def _against_keras(case: Case, others: Iterable[Contender]) -> list[Contender]:
    """Return the contenders of a case that Keras can train as it is."""
    fits = [
        (f"keras fit{' jit' if jit else ''}{_spe(many)}", jit, many) for many in (1, case.many) for jit in (False, True)
    ]
    return [
        _one(case, "hookline", hookline.ours),
        *others,
        *(_one(case, name, keras_loops.fit, jit=jit, many=many, baseline=True) for name, jit, many in fits),
        _one(case, "by hand", keras_loops.by_hand),
        *_pytorch(case),
        _one(case, "limit", limit, limit=True),
    ]


def _spe(many: int) -> str:
    """Return what a contender is called that runs so many steps an execution."""
    return f" spe {many}" if many > 1 else ""


def _pytorch(case: Case, *, prune: bool = False) -> list[Contender]:
    return [
        _one(case, name, pytorch.steps, compiled=compiled, prune=prune, environment="torch")
        for name, compiled in (("pytorch", False), ("pytorch compile", True))
    ]


def _ours(case: Case, name: str, *overrides: str) -> Contender:
    return _one(case, f"hookline {name}", hookline.ours, overrides=overrides)


def _technique(name: str) -> Contender:
    return _ours(cases.HOOKS, name, f"+hooks={name}", *OPTIONS.get(name, []))


CONTENDERS = (
    *_against_keras(cases.LENET_300_100, [_ours(cases.LENET_300_100, "compile=on", "trainer.compile=on")]),
    *_against_keras(cases.LENET_5, [_ours(cases.LENET_5, "bfloat16", HALF)]),
    *_against_keras(
        cases.CNN,
        [
            _ours(cases.CNN, "plain batch norm", *PLAIN),
            _ours(cases.CNN, "bfloat16", HALF),
        ],
    ),
    _one(cases.BNN, "hookline", hookline.ours, overrides=BINARY),
    _ours(cases.BNN, "plain batch norm", *BINARY, *PLAIN),
    _ours(cases.BNN, "bfloat16", *BINARY, HALF),
    *(
        _one(cases.BNN, f"larq fit{_spe(many)}", legacy.larq, many=many, **own)
        for own in ({"environment": "larq", "baseline": True},)
        for many in (1, cases.BNN.many)
    ),
    *_pytorch(cases.BNN),
    _one(cases.BNN, "limit", limit, overrides=BINARY, limit=True),
    _one(cases.PRUNING, "hookline", hookline.ours, overrides=PRUNED),
    _ours(cases.PRUNING, "frozen_mask", "recipe=frozen_mask", *PRUNED[1:]),
    *(
        _one(cases.PRUNING, f"tfmot fit{_spe(many)}", legacy.tfmot, many=many, **own)
        for own in ({"environment": "tfmot", "baseline": True},)
        for many in (1, cases.PRUNING.many)
    ),
    *_pytorch(cases.PRUNING, prune=True),
    _one(cases.PRUNING, "limit", limit, limit=True),
    _one(cases.HOOKS, "hookline", hookline.ours, baseline=True),
    *(_technique(name) for name in TECHNIQUES),
    _one(cases.HOST_HOOKS, "hookline no host hooks", hookline.whole_epochs, watched=False, baseline=True),
    _one(cases.HOST_HOOKS, "hookline all host hooks", hookline.whole_epochs, watched=True),
)
