"""Which checkpoint each tag means: `index.json`, and what the manifests say where it is missing or damaged."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainer.run.checkpoint_directory import LAST, checkpoint_names, step_of
from trainer.run.checkpoint_disk import DamagedError, read_json, replace_synced, to_json, write_synced
from trainer.run.checkpoint_manifest import Manifest, read_manifest

INDEX = "index.json"


@dataclass(frozen=True)
class Index:
    """Hold what the tags mean.

    Attributes:
        tags: name of a checkpoint by tag.
        kept: names of the checkpoints that are or were "last" and stay, from the oldest to the newest.
        number: of the newest checkpoint that it knows of.
    """

    tags: dict[str, str] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    number: int = 0

    @property
    def names(self) -> set[str]:
        """Return the names of all checkpoints that stay."""
        return {*self.tags.values(), *self.kept}

    def with_checkpoint(self, manifest: Manifest) -> Index:
        """Return the index after a checkpoint was written. It takes the place of one of the same step.

        Args:
            manifest: of the checkpoint.
        """
        name, kept = manifest.path.name, self.kept
        if LAST in manifest.tags:
            kept = (*(each for each in kept if step_of(each) != manifest.step), name)
        return Index({**self.tags, **dict.fromkeys(manifest.tags, name)}, kept, manifest.number)

    def only(self, names: set[str]) -> Index:
        """Return the index without checkpoints that are not there.

        Args:
            names: of those that are.
        """
        tags = {tag: name for tag, name in self.tags.items() if name in names}
        return replace(self, tags=tags, kept=tuple(name for name in self.kept if name in names))


def read_index(directory: Path) -> Index | None:
    """Return what `index.json` says; None where there is none.

    Args:
        directory: of the checkpoints.

    Raises:
        DamagedError: it is no index.
    """
    path = directory / INDEX
    if not path.exists():
        return None
    content = read_json(path)
    if not _is_index(content):
        raise DamagedError(f"{path} is damaged: it is not what was written.")
    return Index(content["tags"], tuple(content["kept"]), content["number"])


def read_manifests(directory: Path) -> list[Manifest]:
    """Return the manifests that can be read, from the oldest checkpoint to the newest.

    Args:
        directory: of the checkpoints.

    Raises:
        UserError: one is of another version of the format.
    """
    found = []
    for name in sorted(checkpoint_names(directory)):
        with suppress(DamagedError):
            found.append(read_manifest(directory / name))
    return sorted(found, key=lambda manifest: manifest.number)


def write_index(directory: Path, index: Index) -> None:
    """Replace `index.json` at once.

    Args:
        directory: of the checkpoints.
        index: to write.
    """
    content = {"tags": dict(sorted(index.tags.items())), "kept": list(index.kept), "number": index.number}
    temporary = directory / f".{INDEX}.tmp"
    write_synced(temporary, to_json(content, INDEX))
    replace_synced(temporary, directory / INDEX)


def complete_index(index: Index | None, manifests: Sequence[Manifest], names: set[str]) -> Index:
    """Return an index that names nothing that is missing, and everything that was written after it.

    A kill between a checkpoint and the index leaves a checkpoint that the index does not know yet. Where there is no
    index, the manifests say all.

    Args:
        index: as read; None where there is none.
        manifests: the readable ones, from the oldest to the newest.
        names: of the directories that are there, readable or not.
    """
    found = Index() if index is None else index.only(names)
    lost = set() if index is None else index.tags.keys() - found.tags.keys()
    again = {tag: manifest.path.name for manifest in manifests for tag in manifest.tags if tag in lost}
    found = replace(found, tags={**found.tags, **again})
    for manifest in manifests:
        if manifest.number > found.number:
            found = found.with_checkpoint(manifest)
    return found


def _is_index(content: Any) -> bool:
    if not isinstance(content, dict) or type(content.get("number")) is not int:
        return False
    tags, kept = content.get("tags"), content.get("kept")
    if not isinstance(tags, dict) or not isinstance(kept, list):
        return False
    return all(isinstance(name, str) and step_of(name) >= 0 for name in (*tags.values(), *kept))
