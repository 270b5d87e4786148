"""Plant known faults in a scratch copy of the project, one at a time, and report which of them the tests detect.

    python tests/faults/plant.py --out faults.jsonl                  # every fault against the default tests
    python tests/faults/plant.py --out faults.jsonl --full           # those that survived against the full tests, too
    python tests/faults/plant.py --out faults.jsonl --near           # only the tests of the module and of its folder
    python tests/faults/plant.py --out faults.jsonl --only prune     # faults whose name or file contains "prune"

A fault is tried first on the test files that import its module and on the folder that mirrors its own, then on all of
the tier. Recorded faults are not tried again: an interrupted run resumes with the same command.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = pathlib.Path(__file__).resolve().parent
NEAR = "near"
KILLED, SURVIVED, BROKEN = "killed", "survived", "broken"
TESTS_FAILED, NO_TESTS = 1, 5
DEFAULT, FULL = "not long and not full", "not long"
NEAR_LIMIT, TIER_LIMIT = 900, 3600  # seconds; a fault that makes a test hang is detected, too
NEAR_FILES = 15


@dataclasses.dataclass(frozen=True)
class Fault:
    """One planted fault: `text`, which occurs once in `file`, becomes `replace`; `harm` is what a user would suffer."""

    name: str
    file: str
    text: str
    replace: str
    harm: str

    @property
    def key(self) -> str:
        """Identify the fault by its content, so that an edited fault is tried again."""
        return hashlib.sha256("\0".join((self.file, self.text, self.replace)).encode()).hexdigest()[:16]

    def planted(self, source: str) -> str:
        """Return the source with the fault; raise a ValueError unless the text occurs exactly once."""
        if source.count(self.text) != 1:
            raise ValueError(
                f"{self.name}: its text occurs {source.count(self.text)} times in {self.file}, expected once"
            )
        return source.replace(self.text, self.replace)


def read_faults(folder: pathlib.Path = FOLDER) -> list[Fault]:
    """Read every `*.yaml` of the folder."""
    entries = [entry for path in sorted(folder.glob("*.yaml")) for entry in yaml.safe_load(path.read_text())]
    return [Fault(**entry) for entry in entries]


def near_files(fault: Fault, root: pathlib.Path) -> list[str]:
    """Name the test files that import the module, those that name it most often first, then those of its folder."""
    module = fault.file.removesuffix(".py").replace("/", ".")
    parent, _, stem = module.rpartition(".")
    found: dict[str, int] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        text = path.read_text()
        hits = text.count(module) + text.count(f"{parent} import {stem}")
        if hits or path.stem == f"test_{stem}":
            found[str(path.relative_to(root))] = hits + 10 * (path.stem == f"test_{stem}")
    near = sorted(found, key=lambda name: -found[name])[:NEAR_FILES]
    mirrored = next(each for each in (root / "tests" / fault.file).parents if each.is_dir())
    folders = [mirrored, *([root / "tests/configs"] if fault.file.startswith("trainer/config") else [])]
    rest = [str(path.relative_to(root)) for each in folders for path in sorted(each.glob("test_*.py"))]
    return near + [name for name in rest if name not in near]


def run_tests(root: pathlib.Path, arguments: list[str], limit: float) -> tuple[str, str]:
    """Run pytest until the first failure; return the outcome and the test that failed."""
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *arguments]
    try:
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return KILLED, f"no end after {limit:.0f} s"
    if done.returncode in (0, NO_TESTS):
        return SURVIVED, ""
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if done.returncode == TESTS_FAILED or failed:
        return KILLED, failed[0][:200] if failed else ""
    return BROKEN, (done.stdout + done.stderr)[-500:]


def try_fault(fault: Fault, root: pathlib.Path, tier: str, *, near_only: bool) -> dict[str, object]:
    """Plant the fault, run the tests, put the file back."""
    path = root / fault.file
    source = path.read_text()
    started = time.monotonic()
    near = near_files(fault, root)
    try:
        path.write_text(fault.planted(source))
        outcome, by = run_tests(root, [*near, "-m", tier], NEAR_LIMIT) if near else (SURVIVED, "")
        where = NEAR
        if outcome == SURVIVED and not near_only:
            where = tier
            outcome, by = run_tests(root, ["-n", "auto", "--dist", "worksteal", "-m", tier], TIER_LIMIT)
    finally:
        path.write_text(source)
    seconds = round(time.monotonic() - started, 1)
    return {"name": fault.name, "key": fault.key, "where": where, "outcome": outcome, "by": by, "seconds": seconds}


def recorded(out: pathlib.Path) -> dict[str, dict[str, object]]:
    """Read what an earlier run recorded, by the fault's key; the last entry counts."""
    lines = out.read_text().splitlines() if out.exists() else []
    return {entry["key"]: entry for entry in map(json.loads, lines)}


def copy_project(folder: pathlib.Path) -> pathlib.Path:
    """Copy what git would commit, so that nothing is planted in the working tree."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listed, cwd=ROOT, text=True).splitlines():
        if (ROOT / name).is_symlink() or (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)  # the packages are links in hookline/
    return folder


def main() -> None:
    """Try each fault that is not yet recorded."""
    parser = argparse.ArgumentParser(description="Plant known faults and say which of them the tests notice.")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="JSON lines, one a fault")
    parser.add_argument("--only", default="", help="faults whose name or file contains this")
    parser.add_argument("--part", default="0/1", help="this process' share, as 0/2 and 1/2 for two processes")
    parser.add_argument("--full", action="store_true", help="the full tier in place of the default one")
    parser.add_argument("--near", action="store_true", help="only the tests of the module and of its folder")
    options = parser.parse_args()
    faults = [fault for fault in read_faults() if options.only in fault.name or options.only in fault.file]
    index, parts = map(int, options.part.split("/"))
    tier = FULL if options.full else DEFAULT
    with tempfile.TemporaryDirectory(prefix="faults_") as folder:
        root = copy_project(pathlib.Path(folder))
        for fault in faults[index::parts]:
            done = recorded(options.out).get(fault.key)
            if done and (done["outcome"] != SURVIVED or options.near or done["where"] in (tier, FULL)):
                continue
            entry = try_fault(fault, root, tier, near_only=options.near)
            with options.out.open("a") as file:
                file.write(json.dumps(entry) + "\n")
            print(f"{entry['outcome']:9} {entry['where']:5} {entry['seconds']:7} s  {fault.name}", flush=True)


if __name__ == "__main__":
    main()
