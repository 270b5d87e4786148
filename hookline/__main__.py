"""`python -m hookline`: the console command, with the current directory on the path."""

from __future__ import annotations

import os
import sys

from hookline.cli import main

if __name__ == "__main__":
    if not sys.flags.safe_path:  # Python searches this directory first; so should the processes of a sweep
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
        os.environ["PYTHONSAFEPATH"] = "1"  # but not their script's directory, which has our `hooks` and `recipes`
    sys.exit(main())
