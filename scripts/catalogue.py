"""Write the catalogue of hooks, `hooks/README.md`: `python scripts/catalogue.py`.

The page is made of what each hook's own files say: the docstrings of its class, the comments of its config file, and
what the class overrides and declares.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from hookline.scripts.command import make_main
from hookline.train import DONE, FAILED
from hookline.trainer.errors import UserError

PAGE = Path(__file__).resolve().parents[1] / "hooks" / "README.md"
USAGE = """python scripts/catalogue.py

Exit code: 0 done, 1 a hook does not say what it should (a line for each gap, with what to add), 2 the command line is
wrong.
"""


def parse(arguments: Sequence[str]) -> Path:
    """Return the page to write: there are no options."""
    if arguments:
        raise UserError(f"'{arguments[0]}' received. Expected no argument.")
    return PAGE


def _command(page: Path) -> int:
    from hookline.trainer.quiet import quiet_start

    with quiet_start():
        from hookline.scripts.documentation.description import describe_hooks, find_gaps, make_page
    try:
        hooks = describe_hooks()
        gaps = [gap for hook in hooks for gap in find_gaps(hook)]
    except ValueError as error:  # a docstring or a config file that cannot be read
        gaps = [str(error)]
    if gaps:
        print("\n".join(gaps))
        return FAILED
    page.write_text(make_page(hooks), encoding="utf-8")
    return DONE


main = make_main(USAGE, parse, _command)

if __name__ == "__main__":
    sys.exit(main())
