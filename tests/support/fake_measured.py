"""Stand in for train.py where results are measured: write a whole run at once; milliseconds instead of seconds.

The accuracy is 0.9 plus seed / 100, minus 0.05 for `recipe=baseline`, minus 0.1 where a hook is removed.
A run fails if its seed is 13, or if the name of its directory is in FAKE_FAILS.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.stored_runs import config_of, summary_of, write_run

PACKAGES = {"tensorflow": "2.21.0", "keras": "3.15.1"}
ENVIRONMENT = {"python": "3.11.7", "packages": PACKAGES, "cpu_count": 2, "gpus": [], "git_commit": "0123456789abcdef"}


def main():
    values = dict(each.split("=", 1) for each in sys.argv[1:])
    run = Path(values.get("resume") or values["run_dir"])
    if values.get("seed") == "13" or run.name in os.environ.get("FAKE_FAILS", "").split(","):
        sys.stdout.write("some line\nError: The loss is NaN.\n\n")
        sys.exit(1)
    if "resume" not in values:
        own = [each for each in sys.argv[1:] if not each.startswith(("run_dir=", "trainer.threads="))]
        write_run(run, config_of(int(values["seed"])), None, own)
        (run / "environment.json").write_text(json.dumps(ENVIRONMENT))
    given = dict(line.split("=", 1) for line in (run / "overrides.txt").read_text().splitlines())
    seed, twin = int(given["seed"]), given["recipe"] == "baseline"
    more = {"seconds": 2.0 + seed, "bytes": {"float32": 4000, "deployed": 4000 if twin else 2048}}
    more["hooks"] = {"prune": {"total": {"times_fewer": 10.0 + seed}}}
    less = (0.05 if twin else 0.0) + (0.1 if "null" in given.values() else 0.0)
    summary = summary_of(0.9 + seed / 100 - less, 0.3, **more)
    (run / "summary.json").write_text(json.dumps(summary))


if __name__ == "__main__":
    main()
