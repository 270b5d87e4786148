"""The names of all scalars that a run reports: which namespaces there are, and what each means."""

from __future__ import annotations

from collections.abc import Collection, Iterable

TRAINERS = {
    "loss": "what training minimises: each term, and their sum, loss/total",
    "metric": "how good the networks are: averages over examples, or values of a whole split",
    "grad_norm": "L2 norm of all gradients of a network: before the hooks, after each that may change them, at the end",
    "opt": "of the optimizer: the learning rate, and in float16 the scale of the loss",
    "time": "milliseconds since the last report, by what took them; the speed; the share spent waiting for batches",
}
"""Namespaces that the trainer fills, whatever the recipe and its hooks."""
TECHNIQUES = {
    "sparsity": "share of zeros among the weights that the next forward pass sees, in all and by layer",
    "bnn": "weights of few bits: the share that changed its value, and that of latent weights at the clip",
    "attention": "the map of an attention gate: its mean and entropy, the share kept, and that inside the box",
    "center": "features and the centers of their classes: distances within and between, length of the centers",
    "ema": "the moving average of the weights: its decay, and how far the weights are from it",
}
"""Namespaces of techniques, under the field's words for them."""
OWN = "measures of the hook of that name"
"""Any other hook puts what it measures under its own name; so does one of the above under another name."""
NAMESPACES = {**TRAINERS, **TECHNIQUES}


def namespace_of(name: str, *, hooks: Collection[str] = (), scopes: Collection[str] = ()) -> str | None:
    """Return the namespace that a scalar is in; None for one in no documented namespace.

    Args:
        name: "<namespace>/<name>", perhaps with an objective, a network, or both before it, each with "/".
        hooks: names of the run's hooks, as in its config; each is a namespace, too.
        scopes: names of the run's objectives and networks.
    """
    for part in name.split("/")[:-1]:
        if part in NAMESPACES or part in hooks:
            return part
        if part not in scopes:
            return None
    return None


def explain(names: Iterable[str], *, hooks: Collection[str] = (), scopes: Collection[str] = ()) -> dict[str, str]:
    """Return what the namespaces of scalars mean: one line each, by namespace, in the order of the names.

    Args:
        names: of scalars.
        hooks: as for `namespace_of`.
        scopes: as for `namespace_of`.
    """
    found = dict.fromkeys(namespace_of(name, hooks=hooks, scopes=scopes) for name in names)
    return {each: NAMESPACES.get(each, OWN) for each in found if each is not None}
