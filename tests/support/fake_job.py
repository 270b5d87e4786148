"""Stand in for train.py in a sweep: write what a run writes, and end as its seed says; milliseconds instead of seconds.

The seed decides: 13 is refused, 14 leaves nothing, 15 waits for a signal and for being resumed, 16 starts a process,
waits and ignores signals, 17 fails until FIXED is set, 18 is out of time until it is resumed,
19 kills itself.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path


def say(text):
    """Print a line, at once if the process was started so that it does."""
    sys.stdout.write(f"{text}\n")


def finish(run, status, seed, **more):
    summary = {
        "recipe": "bnn",
        "status": status,
        "best": {"monitor": "metric/accuracy", "value": seed / 10, "values": {"metric/accuracy": seed / 10}},
        "test": {"metric/accuracy": 0.5},
        "bytes": {"float32": 4096, "deployed": 1024},
        "seconds": 1.25,
        **more,
    }
    whole = run / f"summary.{os.getpid()}"  # as a run writes it: the other worker of a run may read it now
    whole.write_text(json.dumps(summary))
    whole.replace(run / "summary.json")


def wait(run, seed):
    def end(number, frame):
        say(f"heard {number}")
        if seed == 16:
            return
        finish(run, "interrupted", seed)
        sys.exit(128 + number)

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    if seed == 16:
        left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        say(f"left {left.pid}")
    (run / "ready").touch()
    say("waiting")
    for _ in range(1200):
        time.sleep(0.05)
        if (run / "summary.json").exists():
            sys.exit(128 + signal.SIGTERM)  # the first worker of this run has saved: the others end with it
    sys.exit("nobody has sent a signal")


def seed_in(config):
    found = re.search(r"^seed: (\d+)$", config, re.MULTILINE)
    return int(found[1] if found else json.loads(config)["seed"])


def main():
    values = dict(each.split("=", 1) for each in sys.argv[1:] if "=" in each)
    resumed = "resume" in values
    run = Path(values.get("resume") or values["run_dir"])
    if not resumed:
        while values.get("trainer.strategy") == "multi_worker" and len(list(run.parent.glob("*.log"))) < 2:
            time.sleep(0.05)  # the workers of a run meet before its directory is made
        run.mkdir(parents=True, exist_ok=values.get("trainer.strategy") == "multi_worker")
        (run / "config.yaml").write_text(json.dumps(values))
    config = (run / "config.yaml").read_text()
    meets = resumed and "multi_worker" in config
    while meets and any("resume=" not in log.read_text() for log in run.parent.glob("*.log")):
        time.sleep(0.05)  # as they meet above; or one would complete the run before the other starts
    seed = seed_in(config)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    say(f"arguments {sys.argv[1:]}\ngpus {visible}\npid {os.getpid()}\nparent {os.getppid()}")
    if seed == 13 or (seed == 17 and "FIXED" not in os.environ):
        finish(run, "failed", seed)
        say("Error: The data is not there.\nthe end")
        sys.exit(2)
    if (seed == 15 and not resumed) or seed == 16:
        wait(run, seed)
    if seed == 18 and not resumed:
        finish(run, "paused", seed)
    elif seed == 19:
        os.kill(os.getpid(), signal.SIGKILL)
    elif seed != 14:
        finish(run, "completed", seed)


if __name__ == "__main__":
    main()
