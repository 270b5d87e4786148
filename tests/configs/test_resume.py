"""resume=<run>: the config is the run's own, and nothing that its file says is executed or believed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from trainer.config.command import parse_command
from trainer.config.preflight import Job, preflight
from trainer.config.resume import config_digest
from trainer.errors import UserError


def jobs(*texts: str, sweep: bool = False) -> list[Job]:
    return preflight(parse_command([*texts, *(["-m"] if sweep else [])]))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", "recipe=bnn", "trainer.epochs=7", "seed=3", "hooks.early_stopping=null")


def make_run(directory: Path, *texts: str) -> Path:
    (job,) = jobs(*texts)
    directory.mkdir()
    (directory / "config.yaml").write_text(OmegaConf.to_yaml(job.config))
    (directory / "overrides.txt").write_text("".join(f"{text}\n" for text in texts))
    return directory


def change(run: Path, **values: Any) -> None:
    path = run / "config.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **values}))


def test_the_config_is_that_of_the_run(run: Path) -> None:
    (job,) = jobs(f"resume={run}")
    stored = yaml.safe_load((run / "config.yaml").read_text())
    assert job.recipe == "bnn"
    assert job.config == {**stored, "resume": str(run)}
    assert job.config["seed"] == 3
    assert "early_stopping" not in job.config["hooks"]


def test_several_recipes_keep_their_name_and_several_runs_go_on_in_a_sweep(run: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", "recipe=[bnn,frozen_mask]", "trainer.epochs=5")
    found = jobs(f"resume={run},{other}", sweep=True)
    assert [job.recipe for job in found] == ["bnn", "bnn+frozen_mask"]
    assert [job.config["trainer"]["epochs"] for job in found] == [7, 5]


def test_the_digest_is_of_what_a_resumed_run_keeps(tmp_path: Path) -> None:
    overrides = ["recipe=bnn", "data=arrays", "data.path=here.npz", "data.classes=4"]
    stored = yaml.safe_load((make_run(tmp_path / "run", *overrides) / "config.yaml").read_text())
    digest = config_digest(stored)
    for free in ({"debug": True}, {"data": {**stored["data"], "path": "there.npz"}}):
        assert config_digest({**stored, **free}) == digest
    for kept in ({"seed": 1}, {"data": {**stored["data"], "classes": 5}}, {"hooks": {}}):
        assert config_digest({**stored, **kept}) != digest
    first, *others = stored["hooks"].items()
    assert config_digest({**stored, "hooks": dict([*others, first])}) != digest  # hooks run in their order


def test_what_leaves_the_bits_alone_may_be_set(run: Path) -> None:
    free = [
        "trainer.max_seconds=60",
        "trainer.threads=2",
        "trainer.placement=host",
        "hooks.progress=null",
        "debug=true",
    ]
    (job,) = jobs(f"resume={run}", *free)
    assert job.config["trainer"]["max_seconds"] == 60
    assert job.config["trainer"]["threads"] == 2
    assert job.config["trainer"]["placement"] == "host"
    assert "progress" not in job.config["hooks"]
    assert job.config["debug"] is True


@pytest.mark.parametrize(
    ("stored", "text", "key"),
    [
        ({"path": "old.npz"}, "data.path=/new/place.npz", "path"),
        ({"path": None}, "data.path=mnist.npz", "path"),
        ({"path": ["a-*", "b-*"]}, "data.path=['c-*']", "path"),
        ({"validation_path": "old"}, "data.validation_path='new-*'", "validation_path"),
        ({"data_dir": None}, "data.data_dir=/new", "data_dir"),
        ({"cache_dir": "old"}, "data.cache_dir=null", "cache_dir"),
        ({"targets": "old/labels.npy"}, "data.targets=new/labels.npy", "targets"),
    ],
)
def test_the_data_may_lie_elsewhere(run: Path, stored: dict[str, Any], text: str, key: str) -> None:
    data = yaml.safe_load((run / "config.yaml").read_text())["data"]
    change(run, data={**data, **stored})
    (job,) = jobs(f"resume={run}", text)
    assert job.config["data"] == {**data, **stored, key: yaml.safe_load(text.partition("=")[2])}


def test_the_same_values_may_be_repeated(run: Path) -> None:
    (job,) = jobs("recipe=bnn", "seed=3", "trainer.epochs=7", f"resume={run}")
    assert job.config["trainer"]["epochs"] == 7


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["seed=4"], ["seed is 3, 4 received", "init_from="]),
        (["data.seed=4"], ["data.seed is 0, 4 received", "of where the data lies, such as data.path"]),
        (["data.path=here"], ["Unknown argument of data 'path'"]),  # these digits lie nowhere
        (["trainer.epochs=8", "trainer.batch_size=32"], ["trainer.epochs is 7, 8", "trainer.batch_size is 64, 32"]),
        (["optimizer.learning_rate=0.1"], ["optimizer.learning_rate is"]),
        (["hooks.bnn_rounding=null"], ["hooks.bnn_rounding is"]),
        (["recipe=baseline"], ["recipe=baseline", "the recipe 'bnn' that it is"]),
        (["model=plain_cnn"], ["model=plain_cnn", "no other recipe, group or hook"]),
        (["+hooks=prune"], ["+hooks=prune"]),
        (["~hooks.bnn_rounding"], ["~hooks.bnn_rounding"]),
        (["trainer.max_second=5"], ["Did you mean 'trainer.max_seconds'?"]),
        (["trainer.max_seconds=-5"], ["trainer.max_seconds=-5"]),
        (["trainer.threads=many"], ["trainer.threads"]),
    ],
)
def test_what_would_change_the_run_is_refused(run: Path, texts: list[str], words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        jobs(f"resume={run}", *texts)
    for word in words:
        assert word in str(error.value)


def test_what_is_no_run_is_refused(tmp_path: Path, run: Path) -> None:
    for path, word in ((tmp_path / "absent", "has no config.yaml"), (tmp_path, "has no config.yaml")):
        with pytest.raises(UserError, match=word):
            jobs(f"resume={path}")
    with pytest.raises(UserError, match="Expected resume=<run directory>"):
        jobs(f"resume=[{run}]")
    for changed in ({"plugins": 5}, {"plugins": "abc"}, {"trainer": 3}, {"hooks": ["ema"]}, {"model": None}):
        change(run, **changed)
        with pytest.raises(UserError, match="is not the config of a run"):
            jobs(f"resume={run}")
        change(run, plugins=[], trainer={}, hooks={}, model={})
    (run / "config.yaml").write_text("- a list\n")
    with pytest.raises(UserError, match="is not the config of a run"):
        jobs(f"resume={run}")
    (run / "config.yaml").write_bytes(b"\xff\x00: {")
    with pytest.raises(UserError, match="has no config.yaml that can be read"):
        jobs(f"resume={run}")


def test_a_run_without_its_overrides_is_refused(run: Path) -> None:
    (run / "overrides.txt").write_text("seed=3\n")
    with pytest.raises(UserError, match="names 0 recipes"):
        jobs(f"resume={run}")
    (run / "overrides.txt").unlink()
    with pytest.raises(UserError, match="has no overrides.txt"):
        jobs(f"resume={run}")


def test_what_a_file_says_is_not_executed(run: Path) -> None:
    change(run, task={"_target_": "os.system", "command": f"touch {run}/owned"})
    with pytest.raises(UserError, match="os.system"):
        jobs(f"resume={run}")
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(f"{text}\nbad: !!python/object/apply:os.system ['touch {run}/owned']\n")
    with pytest.raises(UserError, match="has no config.yaml that can be read"):
        jobs(f"resume={run}")
    assert not (run / "owned").exists()


def test_a_file_does_not_name_the_packages_that_may_be_executed(run: Path) -> None:
    change(run, plugins=["pip"], task={"_target_": "pip.main", "args": ["install", "evil"]})
    with pytest.raises(UserError, match=r"Expected plugins=\[pip\] beside it, if you trust it"):
        jobs(f"resume={run}")


def test_packages_that_the_user_names_again_may_be_used(run: Path) -> None:
    change(run, plugins=["tests"])
    (job,) = jobs(f"resume={run}", "plugins=[tests]")
    assert job.config["plugins"] == ["tests"]


@pytest.mark.parametrize("text", ["${oc.env:HOME}", "${seed}", "a ${oc.decode:'1'} b"])
def test_a_file_refers_to_nothing_outside(run: Path, text: str) -> None:
    change(run, run_dir=text)
    with pytest.raises(UserError, match="holds a reference in run_dir"):
        jobs(f"resume={run}")
