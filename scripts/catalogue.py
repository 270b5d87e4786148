"""Write the catalogue of hooks, `hooks/README.md`.

python scripts/catalogue.py

The page is generated from each hook's own files: the docstrings of its class, the comments in its config file, and what
the class overrides and declares.

Exit code: 0 done, 1 a hook lacks documentation (one line per gap, with what to add).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from hookline.scripts.command import make_main
from hookline.train import DONE, FAILED

PAGE = Path(__file__).resolve().parents[1] / "hooks" / "README.md"


def _command(arguments: Sequence[str]) -> int:
    from hookline.trainer.deferred import quiet_start

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
    PAGE.write_text(make_page(hooks), encoding="utf-8")
    return DONE


parse = list  # there are no options
main = make_main(__doc__, parse, _command)

if __name__ == "__main__":
    sys.exit(main())
