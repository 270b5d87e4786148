"""TensorBoard's projector: embeddings of hooks and objectives, with the class and the image of each example."""

from __future__ import annotations

import colorsys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format
from tensorboard.plugins.projector.projector_config_pb2 import EmbeddingInfo, ProjectorConfig

from hookline.hooks.monitors.pictures import encode_picture, file_name, is_due, write_files
from hookline.trainer.errors import check_integer
from hookline.trainer.hook import HostHook, Report, Run
from hookline.trainer.objective import Embedding, in_rows, sheet

DIRECTORY_NAME = "tensorboard/train"  # TensorBoard looks for the config where it has found events
CONFIG_NAME = "projector_config.pbtxt"
MOST_EXAMPLES = 5_000  # with more, the projector becomes slow
FEWEST_DIMENSIONS = 3  # with fewer, it draws nothing


class Projector(HostHook):
    """Write embeddings for TensorBoard's "Projector" tab at the final test. Requires the hook `tensorboard`.

    The files are next to the training events: `projector_config.pbtxt`, and for each embedding its vectors
    (`<name>.tsv`), the labels of the examples (`<name>_labels.tsv`) and a picture of all images (`<name>_images.png`),
    in which gray images are tinted by class. If there are more than 5,000 examples, 5,000 evenly spaced ones are shown.
    Vectors with fewer than three dimensions are padded with zeros.

    Group: monitor

    State:
        evaluations: number of evaluations so far.

    Cost: Only when embeddings are due, by default at the final test, and only if a hook or an objective has some.

    Pitfalls:
        tests/hooks/monitors/test_projector.py: TensorBoard draws nothing if a vector is not finite or has fewer than
            three dimensions: the former are left out, the latter padded with zeros.

    Example:
        python train.py recipe=center_loss hooks.projector.every=10
    """

    def __init__(self, *, every: int = 0) -> None:
        """Set how often to write.

        Args:
            every: evaluations between two sets during training, from the first evaluation on; each set replaces the
                previous one. 0: only at the test.
        """
        self._every = check_integer("every", every, minimum=0)
        self._evaluations = 0

    def state_dict(self) -> dict[str, Any]:
        return {"evaluations": self._evaluations}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._evaluations = int(state["evaluations"])

    def on_evaluation_end(self, run: Run, report: Report) -> None:
        if report.split == "test" or is_due(self._every, self._evaluations):
            write_embeddings(run.views.shown(report).embeddings, run.directory / DIRECTORY_NAME)
        self._evaluations += 1


def write_embeddings(embeddings: Mapping[str, Embedding], folder: Path) -> None:
    """Write embeddings and the config that lists them; create the folder if there are any."""
    config = ProjectorConfig()
    files: dict[str, bytes] = {}
    for name, embedding in embeddings.items():
        shown = _shown_examples(embedding)
        if len(shown.vectors):
            info = config.embeddings.add(tensor_name=name, tensor_shape=shown.vectors.shape)
            files |= _embedding_files(file_name(name), shown, info)
    if files:
        write_files({**files, CONFIG_NAME: text_format.MessageToString(config).encode()}, folder)


def _shown_examples(embedding: Embedding) -> Embedding:
    """Return the examples with finite vectors, at most `MOST_EXAMPLES`, padded to at least `FEWEST_DIMENSIONS`."""
    missing = max(0, FEWEST_DIMENSIONS - embedding.vectors.shape[1])
    vectors = np.pad(embedding.vectors, [(0, 0), (0, missing)])
    rows = np.flatnonzero(np.isfinite(vectors).all(axis=1))
    if len(rows) > MOST_EXAMPLES:
        rows = rows[np.linspace(0, len(rows) - 1, MOST_EXAMPLES).round().astype(np.int64)]
    labels = {column: np.asarray(values)[rows] for column, values in embedding.labels.items()}
    return Embedding(vectors[rows], labels, None if embedding.images is None else embedding.images[rows])


def _embedding_files(name: str, embedding: Embedding, info: EmbeddingInfo) -> dict[str, bytes]:
    """Return the files of one embedding by name, and enter them in the config."""
    info.tensor_path = f"{name}.tsv"
    files = {info.tensor_path: _tsv([[f"{value:.6g}" for value in row] for row in embedding.vectors.tolist()])}
    if embedding.labels:
        info.metadata_path = f"{name}_labels.tsv"
        columns = [[" ".join(str(value).split()) for value in each.tolist()] for each in embedding.labels.values()]
        header = [list(embedding.labels)] if len(columns) > 1 else []  # the projector expects none for one column
        files[info.metadata_path] = _tsv([*header, *zip(*columns, strict=True)])
    if embedding.images is not None:
        height, width = embedding.images.shape[1:3]
        info.sprite.image_path = f"{name}_images.png"
        info.sprite.single_image_dim.extend([width, height])
        files[info.sprite.image_path] = encode_picture(name, sprite_picture(embedding.images, embedding.labels))
    return files


def _tsv(rows: Iterable[Sequence[str]]) -> bytes:
    return "".join("\t".join(row) + "\n" for row in rows).encode()


COLORS = np.array([colorsys.hsv_to_rgb(0.618 * number % 1.0, 0.7, 1.0) for number in range(20)], np.float32)
"""Colors of classes: hues far apart."""


def sprite_picture(images: np.ndarray, labels: Mapping[str, np.ndarray] | None = None) -> np.ndarray:
    """Return one picture of all images, row by row, scaled to [0, 1]; gray images are tinted by their first label."""
    low, high = float(images.min()), float(images.max())
    images = (images - low) / ((high - low) or 1.0)
    if images.shape[-1] == 1 and labels:
        classes = np.unique(next(iter(labels.values())), return_inverse=True)[1]
        images = images * COLORS[classes % len(COLORS)][:, np.newaxis, np.newaxis]
    return sheet(in_rows(images), gap=0)
