"""`python -m hookline`: the console command, with the directory that it was called from on the path."""

from __future__ import annotations

import os
import sys

from hookline.cli import main

if __name__ == "__main__":
    if not sys.flags.safe_path:  # Python looks into this directory first; the processes of a sweep shall, too
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
        os.environ["PYTHONSAFEPATH"] = "1"  # not into that of their script, whose `hooks` and `recipes` are ours
    sys.exit(main())
