"""The projector's files, as TensorBoard itself reads them."""

import numpy as np
import pytest
from google.protobuf import text_format
from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

from hookline.hooks.monitors.projector import MOST_EXAMPLES, Projector, write_embeddings
from hookline.trainer.objective import Embedding
from hookline.trainer.run.control import Report

VECTORS = np.array([[0.5, -1.25e-7], [3.0, 1e6], [0.1, 2.0]], np.float32)
IMAGES = np.stack([np.full((4, 6, 1), value) for value in (-1.0, 0.0, 1.0)])
EMBEDDING = Embedding(VECTORS, {"class": np.array([0, 2, 1])}, IMAGES)


def test_nonfinite_rows_and_excess_examples_are_left_out(tmp_path) -> None:
    vectors = np.arange(2 * 7000, dtype=np.float64).reshape(7000, 2)
    vectors[3] = np.nan
    many = Embedding(vectors, {"class": np.arange(7000)})
    write_embeddings({"many": many, "none": Embedding(np.full((2, 2), np.inf))}, tmp_path)
    (info,) = text_format.Parse((tmp_path / "projector_config.pbtxt").read_text(), ProjectorConfig()).embeddings
    shown, labels = (np.loadtxt(tmp_path / path) for path in (info.tensor_path, info.metadata_path))
    assert len(shown) == len(labels) == MOST_EXAMPLES
    assert not shown[:, 2].any()  # two dimensions padded to three
    np.testing.assert_array_equal(shown[:, 0], 2 * labels)
    assert 3 not in labels
    assert (labels[0], labels[-1]) == (0, 6999)
    write_embeddings({"empty": Embedding(np.zeros((0, 2)))}, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_embeddings_are_written_at_the_test_or_every_nth_evaluation(make_run, tmp_path) -> None:
    asked = []
    run = make_run(views={"embeddings": lambda step, split: asked.append((step, split)) or {"a": EMBEDDING}})
    reports = [Report(10, "validation", {}), Report(20, "validation", {}), Report(20, "test", {})]
    hook, often, resumed = Projector(), Projector(every=2), Projector(every=2)
    for report in reports:
        hook.on_evaluation_end(run, report)
        assert (run.directory / "tensorboard" / "train").exists() == (report.split == "test")
    often.on_evaluation_end(run, reports[0])
    resumed.load_state_dict(often.state_dict())
    resumed.on_evaluation_end(run, reports[1])
    assert asked == [(20, "test"), (10, "validation")]
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="File exists"):
        write_embeddings({"a": EMBEDDING}, tmp_path / "file")
