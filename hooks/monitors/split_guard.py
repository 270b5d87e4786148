"""Split guard: the same image in two splits is found before the first step."""

from __future__ import annotations

import csv
import io
import itertools
import time
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hookline.hooks.options import check_choice, check_number
from hookline.hooks.splits.copies import Fingerprints, Looks, fingerprints, join_looks, near_copies
from hookline.trainer.errors import UserError
from hookline.trainer.files import write_whole
from hookline.trainer.hook import HostHook
from hookline.trainer.input.data import Split

if TYPE_CHECKING:
    from hookline.trainer.run.run import Run

WARN, STOP = "warn", "stop"
EXACT, NEAR = "exact", "near"
FILE = "split_guard.csv"
SHOWN = 3
WORDS = {
    EXACT: ("is the same as an example", "are the same as examples"),
    NEAR: ("is a near copy of an example", "are near copies of examples"),
}


class Leak(NamedTuple):
    """Name an example that an earlier split holds, too: the same bits ("exact"), or the same looks ("near")."""

    split: str
    example: str
    original_split: str
    original: str
    kind: str
    correlation: float


class SplitGuard(HostHook):
    """Read every example of every split once before training begins, and look for copies in other splits.

    Exact copies have the same bits as inputs of the network, without augmentation. Near copies are images that look the
    same; `hooks/splits/copies.py` explains how the hook tells them from images that are similar by nature, such as
    digits. Measured on CIFAR-10 and photographs of clothing: the hook finds all copies that were saved again as JPEG of
    quality 30 or more, made darker, grey, noisy, or smaller by a quarter; it finds 9 in 10 overexposed copies, and few
    or none that were moved by a pixel, cropped, mirrored or rotated.

    An example is compared with the splits before its own: validation with train, test with both. `split_guard.csv` in
    the run directory lists all findings; `summary.json` has their number and the cost of the search.

    Group:
        guard

    Cost:
        Before the first step, every example is read once, and images are compared by 64-bit codes. Measured: 0.55 s for
        the 1,797 digits.

    Pitfalls:
        tests/hooks/monitors/test_split_guard.py: copies are searched for in every pair of splits, but not within a
            split.
        tests/hooks/splits/test_copies.py: images that are similar by nature, such as digits, are not copies, but a real
            copy among them is found; codes do not change with brightness and contrast.

    Example:
        python train.py recipe=baseline +hooks=split_guard hooks.split_guard.on_leak=stop
    """

    def __init__(self, *, on_leak: str = WARN, near: float = 0.35) -> None:
        """Set what counts as a copy.

        Args:
            on_leak: "warn" shows one line and continues; "stop" ends the run with it.
            near: in [0, 1): how much nearer than the 10th nearest image a copy must be; 0 for exact copies alone.
        """
        self._on_leak = check_choice("on_leak", on_leak, (WARN, STOP))
        expected = "a number of at least 0, below 1, such as 0.35"
        self._near = check_number("near", near, minimum=0.0, maximum=np.nextafter(1.0, 0.0), expected=expected)
        self._summary: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def on_fit_begin(self, run: Run) -> None:
        start = time.perf_counter()
        splits = {"train": run.training.split, **{name: each.split for name, each in run.held_out.items()}}
        leaks = find_leaks(splits, nearer=self._near)
        self._summary = {
            **{kind: _counts(leaks, kind) for kind in (EXACT, NEAR)},
            "examples": sum(split.size for split in splits.values()),
            "seconds": round(time.perf_counter() - start, 2),
        }
        if not leaks:
            return
        write_leaks(run.directory / FILE, leaks)
        message = f"{describe(leaks)} All of them: {run.directory / FILE}."
        if self._on_leak == STOP:
            raise UserError(f"{message} Take them out of one split, or set hooks.{self.name}.on_leak=warn.")
        warnings.warn(message, stacklevel=2)

    def summary(self) -> dict[str, Any]:
        return self._summary


def find_leaks(splits: Mapping[str, Split], *, nearer: float) -> list[Leak]:
    """Return the examples that an earlier split holds, too, in order; without near copies if `nearer` is 0."""
    names = list(splits)
    read = [fingerprints(split, with_looks=nearer > 0.0) for split in splits.values()]
    starts = np.cumsum([0, *(split.size for split in splits.values())])
    found = _exact(read, starts)
    if (looks := _joined(read)) is not None:
        for start, stop in itertools.pairwise(starts[1:].tolist()):
            copies = near_copies(looks, start, stop, nearer=nearer)
            near = [(int(c), (int(o), NEAR, float(r))) for c, o, r in zip(*copies, strict=True)]
            found = {**dict(near), **found}

    def place(position: int) -> tuple[str, str]:
        number = int(np.searchsorted(starts, position, side="right")) - 1
        return names[number], splits[names[number]].name_of(position - int(starts[number]))

    pairs = sorted(found.items())
    return [Leak(*place(copy), *place(first), kind, correlation) for copy, (first, kind, correlation) in pairs]


def _exact(read: list[Fingerprints], starts: np.ndarray) -> dict[int, tuple[int, str, float]]:
    """Return the position of each exact copy with the first one of an earlier split."""
    seen: dict[bytes, int] = {}
    found: dict[int, tuple[int, str, float]] = {}
    for start, each in zip(starts.tolist(), read, strict=False):
        here = list(enumerate(each.digests, start))
        found |= {position: (seen[digest], EXACT, 1.0) for position, digest in here if digest in seen}
        for position, digest in here:
            seen.setdefault(digest, position)
    return found


def _joined(read: list[Fingerprints]) -> Looks | None:
    """Return the looks of all splits together; None if they are not images of one form."""
    looks = [each.looks for each in read if each.looks is not None]
    if len(looks) < len(read) or len({each.waves.shape[1] for each in looks}) > 1:
        return None
    return join_looks(looks)


def _counts(leaks: list[Leak], kind: str) -> dict[str, int]:
    """Return how many copies there are, such as {"test in train": 3}."""
    return dict(Counter(f"{leak.split} in {leak.original_split}" for leak in leaks if leak.kind == kind))


def describe(leaks: list[Leak]) -> str:
    """Return one line on what was found."""
    parts = []
    for kind, (one, several) in WORDS.items():
        for places, count in _counts(leaks, kind).items():
            split, original_split = places.split(" in ")
            parts.append(f"{count} of {split} {one if count == 1 else several} of {original_split}")
    pairs = [f"{leak.split} {leak.example} and {leak.original_split} {leak.original}" for leak in leaks[:SHOWN]]
    return f"Splits share examples: {', '.join(parts)}; such as {', '.join(pairs)}."


def write_leaks(path: Path, leaks: list[Leak]) -> None:
    """Write a table with a row for each leak."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(Leak._fields)
    writer.writerows([*leak[:-1], f"{leak.correlation:.4f}"] for leak in leaks)
    write_whole(path, text.getvalue())
