"""A directory for documented commands, with what they speak of: data, runs, files of the reader's own."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from tests.support.documentation import DocumentationError
from tests.support.images import write_images

ROOT = Path(__file__).resolve().parents[2]
DATE = r"(?:<date_time>|\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)"
RUN = re.compile(rf"runs/(\w+)/{DATE}")
STAND_IN = "stand_in"
FILLED = {
    "data.path=<folder>": "data.path=clothing",
    "cifar10=<folder>": "cifar10=photos",
    "images=<folder>": "images=photos",
    "environments=<folder>": "environments=environments",
    "out=<new directory>": "out=new_directory",
    "+hooks=<name> hooks.<name>.<key>=<value>": "+hooks=ema hooks.ema.decay=0.9",
    "hooks.<name>=null": "hooks.progress=null",
    " /shared/": " shared/",
}
"""What commands leave to the reader, and what stands for it."""
IMAGES = {"photos": 12, "clothing": 40}
"""In each class of a folder: a quarter of the second, less its other splits, fills a batch."""


@dataclass
class Workplace:
    directory: Path
    make_run: Callable[[str, Path], None]
    made: set[str] = field(default_factory=set)

    def fill(self, command):
        """Return the text of a command with angle brackets filled in, and make the runs that it names."""
        text = command.text
        for printed, ours in FILLED.items():
            text = text.replace(printed, ours)
        for recipe in dict.fromkeys(RUN.findall(text)):
            if recipe not in self.made:
                self.made.add(recipe)
                self.make_run(recipe, self.directory / "runs" / recipe / STAND_IN)
        text = RUN.sub(rf"runs/\1/{STAND_IN}", text)
        if left := re.findall(r"<[\w ]+>", text):
            raise DocumentationError(f"{command.place}: {command.text}\n  nothing stands for {left[0]}")
        return text


def make_files(directory):
    """Write what readers bring themselves: MNIST's file, two folders of images, a file of resources."""
    np.savez(directory / "new_patients.npz")  # a block of code writes it, where blocks are run
    write_mnist(directory / "mnist.npz", train=6000)  # of which data with MNIST's digits hold 5,000 out
    for folder, images in IMAGES.items():
        write_images(directory / folder, images=images, classes=10)
    shutil.copy(ROOT / "scripts" / "slurm.yaml", directory / "my.yaml")
    for folder in ("environments", "shared"):
        (directory / folder).mkdir()


def write_mnist(path, train=500, test=200):
    """Write a file such as MNIST's, with digits of 8 x 8 pixels made as large as its own, again and again."""
    bunch = load_digits()
    rows = np.arange(train + test) % len(bunch.images)
    images = np.pad(np.kron(bunch.images * 15, np.ones((3, 3))), ((0, 0), (2, 2), (2, 2))).astype(np.uint8)
    arrays = {"x": images[rows], "y": bunch.target[rows].astype(np.uint8)}
    np.savez(
        path,
        **{f"{name}_train": array[:train] for name, array in arrays.items()},
        **{f"{name}_test": array[train:] for name, array in arrays.items()},
    )
