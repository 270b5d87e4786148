"""Compare the gradients that a run overrides with true ones.

python scripts/check_gradients.py recipe=<name> [key=value ...]

Every overridden or custom gradient of the first training step is compared with central differences of its forward
pass, and with the derivative of the surrogate that it declares. Takes the arguments of train.py; nothing is trained.

  exact        the derivative of the forward pass, according to finite differences
  surrogate    the derivative of the declared surrogate
  on purpose   declared as not the derivative of any function: clipped, reversed, scaled, guided, stopped
  undeclared   neither the derivative of the forward pass nor declared, such as tf.custom_gradient in your own layer
  not measured in half precision, which is too coarse for finite differences
  wrong        not the declared derivative; the command exits with 1

"from ..." is the distance from that gradient, relative to the larger of the two.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from hookline.scripts.command import built, make_main, one_job
from hookline.train import DONE, FAILED

if TYPE_CHECKING:
    from hookline.scripts.gradient_probe import Compared


def check(arguments: Sequence[str]) -> list[Compared]:
    """Compare every overridden gradient of the run that a command line describes."""
    with built(one_job(arguments)) as run:
        from hookline.scripts.gradient_probe import compare_gradients

        return compare_gradients(run.trainer, run.training.batch)


def _command(compared: Sequence[Compared]) -> int:
    """Print one line for each gradient."""
    from hookline.hooks.monitors.console import TextTable, open_console, show

    console = open_console()
    if not compared:
        console.print("No gradient of the training step is overridden.")
        return DONE
    distances = [["" if each is None else f"{each:.1e}" for each in (one.true, one.declared)] for one in compared]
    rows = [(one.name, one.verdict, *two, one.op) for one, two in zip(compared, distances, strict=True)]
    columns = ("gradient", "verdict", "from true", "from surrogate", "op")
    show(console, TextTable("Overridden gradients", columns, rows, texts=("verdict", "op")))
    wrong = [each.name for each in compared if each.verdict == "wrong"]
    if wrong:
        console.print(f"{len(wrong)} wrong: {', '.join(wrong)}", soft_wrap=True)
    return FAILED if wrong else DONE


main = make_main(__doc__, check, _command)

if __name__ == "__main__":
    sys.exit(main())
