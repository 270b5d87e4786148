"""Whether command lines can run: each is built and traced as train.py does it, in a process of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from train import check
from trainer.errors import UserError


def reasons_against(jobs: Sequence[Sequence[str]]) -> list[str | None]:
    """Return why command lines cannot run, one line each; None where they can. Nothing is trained or written.

    Args:
        jobs: overrides of each.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:  # TensorFlow stays there
        return process.submit(_reasons, [list(job) for job in jobs]).result()


def _reasons(jobs: Sequence[list[str]]) -> list[str | None]:
    from trainer.quiet import plain_warnings, quiet_start

    with quiet_start():
        from trainer.run.release import released_graphs
        from trainer.run.session import prepare
    reasons: list[str | None] = []
    for job in jobs:
        try:
            with plain_warnings(), released_graphs():
                prepare(check(job)[0].config)
            reasons.append(None)
        except UserError as error:
            reasons.append(str(error))
    return reasons
