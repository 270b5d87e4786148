"""Exports that are measured: made by scripts/export.py, judged by scripts/evaluate.py, each made once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.reproduction.targets import Export
from trainer.comparison.stored_run import number
from trainer.errors import UserError
from trainer.files import read_json
from trainer.inference.container import PACKED, SPARSE, read_container
from trainer.inference.sparse_file import NETWORK

SCRIPTS = Path(__file__).resolve().parents[1]


def export_path(run: Path, export: Export) -> Path:
    """Return where the export of a run lies.

    Args:
        run: its directory.
        export: what is exported.
    """
    return run / "export" / f"{export.name}{export.ending}"


def evaluation_path(run: Path, export: Export) -> Path:
    """Return where the evaluation of an export lies.

    Args:
        run: its directory.
        export: what is exported.
    """
    return run / "evaluation" / export.name / "evaluation.json"


def make_export(run: Path, export: Export, scripts: Path = SCRIPTS) -> None:
    """Write and evaluate the export of a run, where it is not there.

    Args:
        run: directory of a complete run.
        export: what is exported.
        scripts: folder with export.py and evaluate.py.

    Raises:
        UserError: one of the two failed; with the line that it said.
    """
    path = export_path(run, export)
    if not path.exists():
        _call(scripts / "export.py", f"run={run}", *export.options, f"output={path}", "overwrite=true")
    if not evaluation_path(run, export).exists():
        _call(scripts / "evaluate.py", f"model={path}", f"name={export.name}")


def _call(script: Path, *arguments: str) -> None:
    # In a session of its own: Ctrl-C on the terminal reaches the caller alone, which ends after this.
    command: Sequence[str] = [sys.executable, str(script), *arguments]
    found = subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True)
    if found.returncode:
        lines = [line for line in found.stderr.splitlines() if line.strip()] or ["it said nothing"]
        raise UserError(f"{script.name} ended with exit code {found.returncode}: {lines[-1].removeprefix('Error: ')}")


def read_export(run: Path, export: Export, value: str) -> float | None:
    """Return a measure of an export; None where there is none that can be read.

    Args:
        run: its directory.
        export: what is exported.
        value: "bytes" of the weights, or "accuracy" on the test split.
    """
    try:
        if value == "bytes":
            return data_bytes(export_path(run, export))
        content = read_json(evaluation_path(run, export))
        return number(content["overall"]["accuracy"])
    except (OSError, UserError, ValueError, KeyError, TypeError):
        return None


def data_bytes(path: Path) -> int:
    """Return the bytes of the weights in a packed or sparse file, without its description of the network.

    Args:
        path: of the file, with the ending of its format.

    Raises:
        UserError: it cannot be read, or is not what was written.
    """
    _, arrays = read_container(path, SPARSE if ".sparse." in path.name else PACKED)
    return sum(array.nbytes for name, array in arrays.items() if name != NETWORK)
