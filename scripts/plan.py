"""Print what a run will do, without training.

python scripts/plan.py [--full | --dot | --mermaid] recipe=<name> [train.py arguments ...]

  --full       one row per update op and variable; by default, similar ones share a row
  --dot        print only the step, as a Graphviz digraph: python scripts/plan.py --dot recipe=bnn > step.dot
  --mermaid    print only the step, as a Mermaid flowchart

Nothing is trained or written, and run_dir is ignored. A step with updates that are not wired is refused, as by
train.py. Exit code: 0 done, 1 failed, 2 the command line or the config is wrong, 130 or 143 interrupted. For recipes,
hooks and values see python train.py --help.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from hookline.scripts.command import built, make_main, one_job
from hookline.trainer.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from hookline.scripts.planning.plan import Plan
    from hookline.trainer.config.preflight import Job

FORMS = FULL, DOT, MERMAID = ("--full", "--dot", "--mermaid")
NAME = 26
"""Length up to which names in the first column are not wrapped."""


def parse(arguments: Sequence[str]) -> tuple[Job, str]:
    """Return the job to plan, and the output form."""
    forms = sorted({*arguments} & {*FORMS})
    if len(forms) > 1:
        raise UserError(f"{' and '.join(forms)} received. Expected one of them, or none.")
    return one_job([argument for argument in arguments if argument not in FORMS]), forms[0] if forms else ""


def _command(asked: tuple[Job, str]) -> None:
    """Print the plan of a job in a form."""
    job, form = asked
    with built(job) as run:
        from hookline.hooks.monitors.console import open_console
        from hookline.scripts.planning.drawing import as_dot, as_mermaid
        from hookline.scripts.planning.trace import plan_run

        plan = plan_run(run)
    console = open_console()
    if form in (DOT, MERMAID):
        console.file.write(as_dot(plan) if form == DOT else as_mermaid(plan))
    else:
        print_plan(console, plan, full=form == FULL)


def print_plan(console: Console, plan: Plan, *, full: bool) -> None:
    """Print the plan as tables."""
    from rich.table import Table

    from hookline.scripts.planning.plan import NONE, sections

    for number, section in enumerate(sections(plan, full=full)):
        console.print(("\n" if number else "") + section.title, style="bold")
        if not section.rows:
            console.print(f"  {NONE}")
            continue
        heads = any(section.columns)
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=heads, header_style="dim")
        for place, column in enumerate(section.columns):
            longest = max(len(row[place]) for row in section.rows)
            whole = column == "bytes" or (place == 0 and longest <= NAME)  # the others wrap if there is no room
            justify: Literal["right", "left"] = "right" if column == "bytes" else "left"
            table.add_column(column, justify=justify, overflow="fold", no_wrap=whole)
        previous = ""
        for first, *others in section.rows:
            table.add_row("" if first == previous and section.columns[0] == "when" else first, *others)
            previous = first
        console.print(table)


main = make_main(__doc__, parse, _command)

if __name__ == "__main__":
    sys.exit(main())
