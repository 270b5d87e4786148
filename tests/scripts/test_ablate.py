"""The ablation command, which removes a recipe's hooks in turn: its variants, its jobs, its table."""

from pathlib import Path

from hookline import train
from hookline.scripts import ablate
from hookline.scripts.ablate import _reasons, variants_of
from hookline.scripts.sweep import run
from tests.support.refusals import assert_one_line

FAKE = Path(__file__).resolve().parents[1] / "support" / "fake_measured.py"
NEEDED = "The hook 'frozen_mask' follows the masks of 'prune'"


def test_each_variant_removes_one_technique_hook_and_its_overrides():
    variants = variants_of(["recipe=frozen_mask", "hooks.prune.final_sparsity=0.9", "+hooks=ema"])
    assert list(variants) == ["whole", "without prune", "without frozen_mask", "without ema"]
    assert variants["without prune"] == ["recipe=frozen_mask", "+hooks=ema", "hooks.prune=null"]
    (job,) = train.check(variants["without ema"])
    assert "ema" not in job.config["hooks"]
    assert {"prune", "nan_guard", "tensorboard"} <= set(job.config["hooks"])
    own = ["recipe=baseline", "+hooks.mine._target_=hookline.hooks.ema.Ema", "+hooks.mine.decay=0.9"]
    assert variants_of(own)["without mine"] == ["recipe=baseline"]


def test_variant_that_cannot_run_gets_the_reason():
    small = ["model.units=[8]", "trainer.epochs=1", "trainer.compile=off", "hooks.tensorboard=null", "seed=0"]
    variants = variants_of(["recipe=frozen_mask", *small])
    monitor = "trainer.monitor=${hooks.bnn_rounding.kernel_quantizer}"
    variants["config"] = ["recipe=bnn", monitor, "hooks.bnn_rounding=null"]
    reasons = _reasons({name: overrides for name, overrides in variants.items() if name != "whole"})
    assert reasons.keys() == {"without prune", "config"}
    assert reasons["without prune"].startswith(NEEDED)
    assert "kernel_quantizer" in reasons["config"]


def test_table_compares_variants_with_whole_recipe_and_runs_are_reused(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(run, "TRAIN", FAKE)
    monkeypatch.setattr(ablate, "reasons_against", lambda variants: {"without prune": f"{NEEDED}."})
    assert ablate.main(["recipe=frozen_mask", f"out={tmp_path}/out", "seeds=0,2,13"]) == 1
    said = capfd.readouterr().out
    rows = [" ".join(line.split()) for line in said.splitlines()]
    assert any(row.startswith("whole 2 of 3 ") for row in rows)
    assert any(row.startswith("without frozen_mask 2 of 3 ") for row in rows)
    assert "Difference to hooks=whole, at the seeds that both have" in rows
    assert "without frozen_mask -0.1000 ± 0.0000, better in 0 of 2" in rows
    assert f"without prune: cannot run. {NEEDED}.\n" in said
    assert "job 3: failed (exit code 1), recipe=frozen_mask seed=13" in said
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*/summary.json")}
    assert not any("without_prune" in str(path) for path in made)
    assert ablate.main(["recipe=frozen_mask", f"out={tmp_path}/out", "seeds=0,2"]) == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*/summary.json")} == made


def test_mistake_is_reported_in_one_line_and_nothing_is_written(capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ablate, "reasons_against", lambda variants: dict.fromkeys(variants, "No such data."))
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").touch()  # a run, which a sweep in its directory would hide
    for arguments, word in (
        (["recipe=bnn", "out=run"], "out=run holds files"),
        (["recipe=bnn", "seed=1"], "seeds=0,1,2"),
        (["recipe=baseline"], "no technique hook"),
        (["recipe=bnn"], "No such data."),  # the whole recipe cannot run
    ):
        assert_one_line(ablate.main, arguments, word, capfd)
        assert list(tmp_path.iterdir()) == [run]
