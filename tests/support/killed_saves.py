"""Kill a save before each of its operations on the file system in turn, and look at what is left.

Run as a file: `python killed_saves.py <directory>`. It cuts the first save and the fourth, by a kill and by a power
cut, which loses contents and names that were not synced. Writes one line of JSON for each cut point. TensorFlow is not
imported, so that a process can fork.
"""

import builtins
import io
import itertools
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np

from hookline.trainer.run.checkpoint import CheckpointStore

KILLED = 9
OPERATIONS = {os: ("replace", "fsync", "mkdir", "unlink", "rmdir", "open"), io: ("open",)}


def tensors(step):
    return {"network/model/kernel": np.full((64, 8), step, np.float32), "hook/mask": np.arange(step, dtype=np.int64)}


def save(directory, step):
    """Save a step as a process that opens the run does, with "best" at every third; return the problems."""
    store = CheckpointStore(directory)
    store.sweep()
    store.save({"last", "best"} if step % 3 == 1 else {"last"}, step, tensors(step), {"run": {"step": step}})
    store.wait()
    return store.problems()


def is_whole(checkpoint):
    expected = tensors(checkpoint.step)
    return (
        checkpoint.state == {"run": {"step": checkpoint.step}}
        and checkpoint.tensors.keys() == expected.keys()
        and all(np.array_equal(checkpoint.tensors[key], value) for key, value in expected.items())
    )


def look(directory):
    store = CheckpointStore(directory)
    found = store.newest()
    tags = store.tags()
    return {
        "step": None if found is None else found.step,
        "whole": found is None or is_whole(found),
        "tags": tags,
        "tagged are whole": all(is_whole(store.load(tag)) for tag in tags),
        "problems": store.problems(),
    }


class Reaper:
    """End this process before its n-th operation, optionally with a power cut."""

    def __init__(self, directory, countdown, *, power):
        self.directory, self.countdown, self.power = directory, countdown, power
        self.contents = set()
        self.names = []

    def arm(self):
        for module, names in OPERATIONS.items():
            for name in names:
                setattr(module, name, self.counted(getattr(module, name)))
        builtins.open = io.open

    def counted(self, function):
        def call(*arguments, **keywords):
            self.countdown -= 1
            if self.countdown == 0:
                self.die()
            before = self.replaced(*arguments) if function is ORIGINAL["replace"] else None
            result = function(*arguments, **keywords)
            if function is ORIGINAL["replace"]:
                self.names.append((str(arguments[0]), str(arguments[1]), before))
            elif function is ORIGINAL["fsync"]:
                self.synced(arguments[0])
            elif function is ORIGINAL["open"] and arguments[1] & os.O_CREAT:
                self.contents.add(os.fstat(result).st_ino)
            return result

        return call

    def replaced(self, source, target):
        del source
        return Path(target).read_bytes() if Path(target).is_file() else None

    def synced(self, descriptor):
        place = os.readlink(f"/proc/self/fd/{descriptor}")
        self.contents.discard(os.fstat(descriptor).st_ino)
        self.names = [each for each in self.names if os.path.dirname(os.path.abspath(each[1])) != place]

    def die(self):
        self.countdown = -1
        if self.power:
            for path in self.directory.rglob("*"):
                if path.is_file() and path.stat().st_ino in self.contents:
                    os.truncate(path, 0)
            for source, target, before in reversed(self.names):
                os.rename(target, source)
                if before is not None:
                    Path(target).write_bytes(before)
        os._exit(KILLED)


ORIGINAL = {"replace": os.replace, "fsync": os.fsync, "open": os.open}


def cut(directory, step, countdown, *, power):
    """Save in a process that is killed at an operation; return whether it got that far."""
    child = os.fork()
    if child == 0:
        Reaper(directory, countdown, power=power).arm()
        save(directory, step)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == KILLED


def main(directory, before, *, power):
    beginning, here = directory / "beginning", directory / "checkpoints"
    beginning.mkdir(parents=True)
    for step in range(1, before + 1):
        save(beginning, step)
    os.fsync = ORIGINAL["fsync"] = lambda descriptor: None  # from here on it is only recorded
    countdown, killed = 0, True
    while killed:
        countdown += 1
        shutil.rmtree(here, ignore_errors=True)
        if before:
            shutil.copytree(beginning, here)
        killed = cut(here, before + 1, countdown, power=power)
        found = look(here)
        problems = save(here, before + 2)
        names = sorted(path.name for path in here.iterdir())
        then = {"problems": problems, **look(here), "names": names}
        case = {"before": before, "power": power, "killed": killed}
        sys.stdout.write(json.dumps({**case, **found, "then": then}) + "\n")


if __name__ == "__main__":
    for saves, cuts_power in itertools.product((0, 3), (False, True)):
        main(Path(sys.argv[1]) / f"{saves}{cuts_power}", saves, power=cuts_power)
