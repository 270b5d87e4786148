"""Disjoint index sets, created once, before any shuffling."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from hookline.trainer.errors import UserError, check_integer, is_whole_number

TRAIN = "train"
HASHES = 2**64


def split_indices(
    size: int,
    held_out: Mapping[str, float | int],
    seed: int,
    labels: np.ndarray | None = None,
    *,
    groups: np.ndarray | None = None,
    keys: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Split the rows 0 .. size - 1 into held-out parts and "train", which is the rest; with keys, by their hash.

    Reproducible across machines and NumPy versions: only the raw stream of the bit generator is used, which is stable.
    """
    _check(size, held_out, seed)
    for name, values in {"labels": labels, "groups": groups, "keys": keys}.items():
        if values is not None and values.shape != (size,):
            raise UserError(f"Received {name} of shape {list(values.shape)} for {size} examples; expected [{size}].")
    if keys is not None:
        parts = _by_hash(keys, held_out, seed)
    elif groups is not None:
        parts = _by_group(groups, held_out, seed, np.zeros(size, np.int64) if labels is None else labels)
    else:
        parts = _by_order(size, held_out, seed, labels)
    for name, part in parts.items():
        if not part.size:
            raise UserError(
                f"Split '{name}' of {size} examples is empty; expected at least one. Change the fractions "
                f"({_listing(held_out)}) or give more data{'' if groups is None else ', or more groups'}."
            )
    return parts


def _by_order(
    size: int, held_out: Mapping[str, float | int], seed: int, labels: np.ndarray | None
) -> dict[str, np.ndarray]:
    """Return parts as consecutive slices of one random order, stratified by class if there are labels."""
    order = _permutation(size, seed)
    if labels is not None:
        order = order[np.argsort(_rank_within_class(labels[order]), kind="stable")]
    parts: dict[str, np.ndarray] = {TRAIN: order}
    start = 0
    for name, amount in held_out.items():
        stop = start + _count(amount, size)
        parts[name] = np.sort(order[start:stop])
        start = stop
    parts[TRAIN] = np.sort(order[start:])
    return parts


def _by_group(
    groups: np.ndarray, held_out: Mapping[str, float | int], seed: int, labels: np.ndarray
) -> dict[str, np.ndarray]:
    """Return parts of whole groups: in random order, each group goes to the part that needs its classes most.

    A group goes to a held-out part only if that brings the size of the part closer to its target.
    """
    names, group_of = np.unique(groups, return_inverse=True)
    _, class_of = np.unique(labels, return_inverse=True)
    totals = np.bincount(class_of).astype(float)
    by_group = np.split(class_of[np.argsort(group_of, kind="stable")], np.cumsum(np.bincount(group_of))[:-1])
    counts = [_count(amount, len(groups)) for amount in held_out.values()]
    wanted = np.array([len(groups) - sum(counts), *counts], float)
    # At least half an example: a share of little data may be rounded to 0.
    wanted_by_class = np.maximum(wanted, 0.5)[:, None] * totals / len(groups)
    filled = np.zeros_like(wanted_by_class)
    part_of = np.zeros(len(names), np.int64)
    for group in _permutation(len(names), seed):
        members = by_group[group]
        need = (1.0 - filled / wanted_by_class)[:, members].sum(axis=1)
        full = len(members) >= 2.0 * (wanted - filled.sum(axis=1))
        need[1:][full[1:]] = -np.inf
        part_of[group] = part = np.argmax(need)
        filled[part] += np.bincount(members, minlength=len(totals))
    _fill_empty(part_of, np.bincount(group_of), len(wanted))
    return {name: np.flatnonzero(part_of[group_of] == part) for part, name in enumerate((TRAIN, *held_out))}


def _fill_empty(part_of: np.ndarray, sizes: np.ndarray, parts: int) -> None:
    """Give each part without a group the smallest group of the part that has the most groups."""
    for part in range(parts):
        owned = np.bincount(part_of, minlength=parts)
        largest = int(np.argmax(owned))
        if not owned[part] and owned[largest] > 1:
            candidates = np.flatnonzero(part_of == largest)
            part_of[candidates[np.argmin(sizes[candidates])]] = part


def _by_hash(keys: np.ndarray, held_out: Mapping[str, float | int], seed: int) -> dict[str, np.ndarray]:
    """Return parts as intervals of a hash, in the order of `held_out`; "train" gets the last one."""
    counts = [f"{name}: {amount}" for name, amount in held_out.items() if not isinstance(amount, float)]
    if counts:
        raise UserError(f"Received numbers of examples with keys ({', '.join(counts)}); expected shares such as 0.1.")
    hashes = np.array([_hash(key, seed) for key in keys.tolist()], np.uint64)
    parts: dict[str, np.ndarray] = {TRAIN: hashes}
    taken, low = 0.0, 0
    for name, share in held_out.items():
        taken += share
        high = int(taken * HASHES)
        parts[name] = np.flatnonzero((hashes >= np.uint64(low)) & (hashes < np.uint64(high)))
        low = high
    parts[TRAIN] = np.flatnonzero(hashes >= np.uint64(low))
    return parts


def _hash(key: object, seed: int) -> int:
    """Return a 64-bit hash of seed and key. Numbers hash like their decimal digits, text like its UTF-8 bytes."""
    content = key if isinstance(key, bytes) else str(key).encode(errors="surrogateescape")
    return int.from_bytes(hashlib.blake2b(b"%d:%b" % (seed, content), digest_size=8).digest())


def _check(size: int, held_out: Mapping[str, float | int], seed: int) -> None:
    for name, amount in held_out.items():
        if not _is_share(amount) and not (is_whole_number(amount) and amount >= 1):
            raise UserError(f"Received {name} fraction {amount!r}; expected one in (0, 1), or a number of examples.")
    shares = sum(amount for amount in held_out.values() if _is_share(amount))
    if shares >= 1 or sum(_count(amount, size) for amount in held_out.values()) >= size:
        raise UserError(f"Received {_listing(held_out)} for {size} examples; expected some left to train on.")
    check_integer("split seed", seed, 0)


def _is_share(value: object) -> bool:
    return isinstance(value, float) and 0 < value < 1


def _count(amount: float | int, size: int) -> int:
    return round(amount * size) if isinstance(amount, float) else amount


def _listing(held_out: Mapping[str, float | int]) -> str:
    return ", ".join(f"{name}: {amount}" for name, amount in held_out.items())


def _permutation(size: int, seed: int) -> np.ndarray:
    """Return a permutation of range(size), int64 [size]."""
    return np.argsort(np.random.PCG64(seed).random_raw(size), kind="stable").astype(np.int64)


def _rank_within_class(labels: np.ndarray) -> np.ndarray:
    """Return the relative rank of each example in its class, in (0, 1): any slice sorted by it is stratified."""
    rank = np.empty(labels.size)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        rank[rows] = (np.arange(rows.size) + 0.5) / rows.size
    return rank
