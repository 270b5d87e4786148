"""resume=<run> uses the run's own config; nothing in its file is trusted or executed."""

import pytest
import yaml
from omegaconf import OmegaConf

from hookline.trainer.config.command import parse_command
from hookline.trainer.config.preflight import preflight
from hookline.trainer.config.stored import config_digest
from tests.support.refusals import assert_refused, refusal


def jobs(*texts, sweep=False):
    return preflight(parse_command([*texts, *(["-m"] if sweep else [])]))


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", "recipe=bnn", "trainer.epochs=7", "seed=3", "hooks.early_stopping=null")


def make_run(directory, *texts):
    (job,) = jobs(*texts)
    directory.mkdir()
    (directory / "config.yaml").write_text(OmegaConf.to_yaml(job.config))
    (directory / "overrides.txt").write_text("".join(f"{text}\n" for text in texts))
    return directory


def change(run, **values):
    path = run / "config.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **values}))


def test_resume_uses_the_config_of_the_run(run, tmp_path):
    stored = yaml.safe_load((run / "config.yaml").read_text())
    for again in ([], ["recipe=bnn", "seed=3", "trainer.epochs=7"]):  # the same values may be repeated
        (job,) = jobs(*again, f"resume={run}")
        assert job.recipe == "bnn"
        assert job.config == {**stored, "resume": str(run)}
    assert job.config["seed"] == 3
    assert "early_stopping" not in job.config["hooks"]
    other = make_run(tmp_path / "other", "recipe=[bnn,frozen_mask]", "trainer.epochs=5")
    found = jobs(f"resume={run},{other}", sweep=True)
    assert [job.recipe for job in found] == ["bnn", "bnn+frozen_mask"]
    assert [job.config["trainer"]["epochs"] for job in found] == [7, 5]


def test_digest_covers_only_settings_fixed_on_resume(tmp_path):
    overrides = ["recipe=bnn", "data=arrays", "data.path=here.npz", "data.classes=4"]
    stored = yaml.safe_load((make_run(tmp_path / "run", *overrides) / "config.yaml").read_text())
    digest = config_digest(stored)
    for free in ({"debug": True}, {"data": {**stored["data"], "path": "there.npz"}}):
        assert config_digest({**stored, **free}) == digest
    for kept in ({"seed": 1}, {"data": {**stored["data"], "classes": 5}}, {"hooks": {}}):
        assert config_digest({**stored, **kept}) != digest
    first, *others = stored["hooks"].items()
    assert config_digest({**stored, "hooks": dict([*others, first])}) != digest  # the order of hooks counts


def test_settings_without_effect_on_bits_and_data_paths_may_change(run):
    (job,) = jobs(f"resume={run}", "trainer.threads=2", "hooks.progress=null", "debug=true")
    assert (job.config["trainer"]["threads"], job.config["debug"]) == (2, True)
    assert "progress" not in job.config["hooks"]
    data = yaml.safe_load((run / "config.yaml").read_text())["data"]
    for stored, text in (
        ({"path": "old.npz"}, "data.path=/new/place.npz"),
        ({"path": ["a-*", "b-*"]}, "data.path=['c-*']"),
        ({"validation_path": "old"}, "data.validation_path='new-*'"),
        ({"data_dir": None}, "data.data_dir=/new"),
        ({"targets": "old/labels.npy"}, "data.targets=new/labels.npy"),
    ):
        change(run, data={**data, **stored})
        (job,) = jobs(f"resume={run}", text)
        assert job.config["data"] == {**data, **dict.fromkeys(stored, yaml.safe_load(text.partition("=")[2]))}


def test_settings_that_would_change_the_run_are_refused(run):
    for texts, words in (
        (["seed=4"], "seed is 3, 4 received"),
        (["data.seed=4"], "data.seed is 0, 4 received"),
        (["data.path=here"], "Unknown argument of data 'path'"),  # the digits have no path
        (["trainer.epochs=8", "trainer.batch_size=32"], "trainer.batch_size is 64, 32"),
        (["hooks.bnn_rounding=null"], "hooks.bnn_rounding is"),
        (["recipe=baseline"], "a resumed run keeps its recipe 'bnn'"),
        (["model=plain_cnn"], "no other recipe, group or hook"),
        (["+hooks=prune"], "+hooks=prune"),
        (["~hooks.bnn_rounding"], "~hooks.bnn_rounding"),
        (["trainer.max_second=5"], "Did you mean 'trainer.max_seconds'?"),
        (["trainer.max_seconds=-5"], "trainer.max_seconds=-5"),
    ):
        assert words in refusal(jobs, f"resume={run}", *texts), texts


def test_directory_that_is_not_a_run_is_refused(tmp_path, run):
    for given, words in ((tmp_path / "absent", "does not exist"), (f"[{run}]", "does not exist")):
        assert_refused(words, jobs, f"resume={given}")
    good = (run / "config.yaml").read_text()
    for changed in ({"plugins": 5}, {"plugins": "abc"}, {"trainer": 3}, {"hooks": ["ema"]}, {"model": None}):
        change(run, **changed)
        assert_refused("is not the config of a run", jobs, f"resume={run}")
        (run / "config.yaml").write_text(good)
    for content, words in (
        ("- a list\n", "is not the config of a run"),
        ("\udcff: {", "that can be read"),
        (f"{good}\na: &a [x, x]\nb: [*a, *a]\n", "it holds an anchor"),
        (f"{good}\na: {'[' * 1000}\n", "that can be read"),
    ):
        (run / "config.yaml").write_bytes(content.encode("utf-8", "surrogateescape"))
        assert_refused(words, jobs, f"resume={run}")
    (run / "config.yaml").write_text(good)
    (run / "overrides.txt").write_text("seed=3\n")
    assert_refused("names 0 recipes", jobs, f"resume={run}")
    (run / "overrides.txt").unlink()
    assert_refused(r"has no overrides\.txt", jobs, f"resume={run}")


def test_stored_plugins_must_be_named_again_to_be_executed(run):
    change(run, plugins=["pip"], task={"_target_": "pip.main", "args": ["install", "evil"]})
    assert_refused(r"on its own. If you trust it, add plugins=\[pip\]", jobs, f"resume={run}")
    change(run, plugins=["tests"], task={"_target_": "hookline.recipes.classification.classification"})
    (job,) = jobs(f"resume={run}", "plugins=[tests]")  # the user names it again
    assert job.config["plugins"] == ["tests"]


def test_stored_config_with_interpolations_is_refused(run):
    for text in ("${oc.env:HOME}", "${seed}", "a ${oc.decode:'1'} b"):
        change(run, run_dir=text)
        assert_refused("holds a reference in run_dir", jobs, f"resume={run}")
