"""Stand in for train.py where a table is made of what runs leave: write a whole run at once, as its seed says.

Seed 13 fails, 14 says that it was interrupted.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.stored_runs import config_of, summary_of, write_run


def main() -> None:
    """Write the run that the arguments ask for."""
    values = dict(each.split("=", 1) for each in sys.argv[1:])
    own = [each for each in sys.argv[1:] if not each.startswith(("run_dir=", "trainer.threads="))]
    seed = int(values["seed"])
    if seed in (13, 14):
        sys.stdout.write("some line\nError: The loss is NaN.\n\n")
        sys.exit({13: 1, 14: 130}[seed])
    accuracy = 0.9 + seed / 100 - (0.1 if "null" in " ".join(own) else 0.0)
    write_run(Path(values["run_dir"]), config_of(seed), summary_of(accuracy, 1 - accuracy), own)


if __name__ == "__main__":
    main()
