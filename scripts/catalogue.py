"""Write the catalogue of hooks, `hooks/README.md`: `python scripts/catalogue.py`; with check=true only compare it.

The page is made of what each hook's own files say: the docstrings of its class, the comments of its config file, and
what the class overrides and declares.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from hookline.scripts.command import make_main, parse_options
from hookline.train import DONE, FAILED
from hookline.trainer.errors import UserError

PAGE = Path(__file__).resolve().parents[1] / "hooks" / "README.md"
USAGE = """python scripts/catalogue.py [check=true]

  check        true: write nothing, and name the hooks of which the page does not say what their files say
  page         the file; without it hooks/README.md

Exit code: 0 done, 1 the page is out of date, or a hook does not say what it should (a line for each gap, with what to
add), 2 the command line is wrong.
"""


@dataclass(frozen=True)
class Options:
    """Hold the options.

    Attributes:
        check: whether to compare the page instead of writing it.
        page: its file.
    """

    check: bool = False
    page: str = str(PAGE)


def parse(arguments: Sequence[str]) -> Options:
    """Return the options of a command line."""
    options = parse_options(arguments, Options, texts=("page",))
    if not isinstance(options.check, bool):
        raise UserError(f"Invalid check: {options.check!r}. Expected true or false.")
    return options


def _command(options: Options) -> int:
    from hookline.trainer.quiet import quiet_start

    with quiet_start():
        from hookline.scripts.documentation.description import describe_hooks
        from hookline.scripts.documentation.page import find_gaps, make_page
    try:
        hooks, path = describe_hooks(), Path(options.page)
    except ValueError as error:  # a docstring or a config file that cannot be read
        print(error)
        return FAILED
    if gaps := [gap for hook in hooks for gap in find_gaps(hook)]:
        print("\n".join(gaps))
        return FAILED
    made = make_page(hooks)
    if not options.check:
        path.write_text(made, encoding="utf-8")
        return DONE
    if (differing := compare_pages(path.read_text(encoding="utf-8") if path.is_file() else "", made)) is None:
        return DONE
    print(f"{path} is out of date: {differing}. Write it again: python scripts/catalogue.py")
    return FAILED


def compare_pages(found: str, made: str) -> str | None:
    """Return which hooks' parts of a page are not as they should be, in words; None if all is as it should be."""
    from hookline.scripts.documentation.page import parts_of

    if found == made:
        return None
    old, new = parts_of(found), parts_of(made)
    names = [name for name in dict.fromkeys([*new, *old]) if old.get(name) != new.get(name)]
    return ", ".join(name or "the overview" for name in names) or "its blank lines or the order of its parts"


main = make_main(USAGE, parse, _command)

if __name__ == "__main__":
    sys.exit(main())
