"""The run directory: created once, never overwritten, named by recipe and time, locked while a process trains in it."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from hookline.trainer.config.overrides import resume_override
from hookline.trainer.config.parts import __version__, plugin_versions
from hookline.trainer.errors import UserError, user_path
from hookline.trainer.files import check_folders, open_lock

ENVIRONMENT = "environment.json"
PACKAGES = ("tensorflow", "keras", "numpy", "hydra-core", "omegaconf", "tensorboard")


def choose_directory(run_dir: str | None, recipe: str, now: datetime) -> Path:
    """Return the path of a new run directory, without creating it."""
    if run_dir is not None:
        path = user_path(run_dir, "run_dir")
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            run, resume = (path / "config.yaml").is_file(), resume_override(run_dir)
            more = f" To continue the run in it: {resume}, or fit(..., resume=True) in Python." if run else ""
            raise UserError(f"run_dir={run_dir} exists already. Expected a new one: a run is never overwritten.{more}")
    else:
        path = base = Path("runs") / recipe / now.strftime("%Y-%m-%d_%H-%M-%S")
        numbers = itertools.count(1)
        while path.exists():
            path = base.with_name(f"{base.name}_{next(numbers)}")
    parent = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserError(f"The run directory {path} cannot be made: {parent} is not writable. Give another run_dir=.")
    return path


WEIGHTS = (".keras", ".h5", ".safetensors")
"""Endings of files that hold weights."""


def check_initial(init_from: str) -> None:
    """Refuse an `init_from` that is neither a run nor a file of weights."""
    given = user_path(init_from, "init_from")
    if given.is_file() and given.suffix not in WEIGHTS:
        raise UserError(f"init_from={init_from} is a file. Expected a run directory, or one of: {', '.join(WEIGHTS)}.")
    if not given.is_file():
        initial_checkpoints(init_from)


def initial_checkpoints(init_from: str) -> Path:
    """Return the directory with the checkpoints of the run that provides the initial weights."""
    given = user_path(init_from, "init_from")
    path = given / "checkpoints"
    if not path.is_dir():
        raise UserError(
            f"init_from={init_from} {'has no checkpoints' if given.exists() else 'does not exist'}. Expected the "
            f"directory of a run, or a file of weights: {', '.join(WEIGHTS)}."
        )
    check_folders(given, "init_from")
    return path


def make_directory(
    path: Path, config: Mapping[str, Any], overrides: Sequence[str], choose: Callable[[], Path] | None = None
) -> Path:
    """Create the run directory with config.yaml, overrides.txt and environment.json atomically, and return its path."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        (partial / "config.yaml").write_text(config_text(config), encoding="utf-8")
        (partial / "overrides.txt").write_text("".join(f"{each}\n" for each in overrides), encoding="utf-8")
        (partial / ENVIRONMENT).write_text(json.dumps(environment(), indent=2) + "\n")
        while True:
            try:
                os.rename(partial, path)  # replaces an empty directory
                return path
            except OSError as error:
                if choose is None or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                path = choose()  # another process has created it since it was chosen
    except OSError as error:
        raise UserError(f"The run directory {path} cannot be made: {error.strerror}. Give another run_dir=.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def config_text(config: Mapping[str, Any]) -> str:
    """Return the contents of `config.yaml`."""
    return OmegaConf.to_yaml(dict(config))


def environment() -> dict[str, Any]:
    """Return the facts that a result may depend on: versions, threads, CPU, the project's commit."""
    import tensorflow as tf  # scripts that only read runs do not need it

    return {
        "python": platform.python_version(),
        "packages": {"hookline": __version__, **{name: version(name) for name in PACKAGES}},
        "plugins": plugin_versions(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "cpu_flags": cpu_flags(),
        "intra_op_threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "inter_op_threads": tf.config.threading.get_inter_op_parallelism_threads(),
        "gpus": [device.name for device in tf.config.list_physical_devices("GPU")],
        "one_dnn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "default"),
        "git_commit": _git_commit(),
    }


def cpu_flags() -> list[str]:
    """Return the instruction sets that change floating-point results, if the system reports them."""
    return [flag for flag in _cpu_info("flags").split() if flag.startswith(("avx", "fma", "amx", "sse4"))]


def usable_cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # macOS has none
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def cpu_name() -> str:
    """Return the name of the processor."""
    return _cpu_info("model name") or platform.processor() or platform.machine()


def _cpu_info(key: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def _git_commit() -> str | None:
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():  # installed: a surrounding repository is somebody else's
        return None
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


LOCK = ".lock"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the run directory for this process. The operating system releases the lock even if the process is killed."""
    try:
        descriptor = open_lock(directory / LOCK)
    except OSError as error:
        raise UserError(f"{directory} cannot be written: {error.strerror}. Expected your own run directory.") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
            raise UserError(f"{directory} is in use: the process {holder} trains in it. Wait, or end it.") from error
        with suppress(OSError):  # fails on a full disk; the process number is only for a message
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)
