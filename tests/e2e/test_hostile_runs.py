"""A run directory from an untrusted source: every command ends with one line, and writes nothing elsewhere."""

import os
import shutil
import time
from pathlib import Path

import pytest

from hookline import train
from hookline.scripts import compare, evaluate, export, plan, predict, sensitivity, verify
from tests.support.command import run_small

OWN = ("recipe=baseline", "trainer.epochs=1", "model.units=[16,16]", "trainer.compile=off")
MASKS = ("hooks.frozen_mask.masks=zeros",)
READING = {
    "resume": lambda run: train.main([f"resume={run}"]),
    "explain": lambda run: train.main([f"resume={run}", "--explain", "seed"]),
    "plan": lambda run: plan.main([f"resume={run}"]),
    "evaluate": lambda run: evaluate.main([f"run={run}"]),
    "export": lambda run: export.main([f"run={run}"]),
    "predict": lambda run: predict.main([f"model={run}", "images=/dev/null"]),
    "compare": lambda run: compare.main([str(run)]),
    "sensitivity": lambda run: sensitivity.main([f"run={run}"]),
}
FOLLOWING = {
    **READING,
    "verify": lambda run: verify.main([f"run={run}"]),
    "replay": lambda run: verify.main([f"run={run}", "replay=1"]),
    "init_from": lambda run: train.main([*OWN, f"init_from={run}", f"run_dir={run}_new"]),
    "masks": lambda run: train.main(
        [*OWN, "+hooks=frozen_mask", *MASKS, f"hooks.frozen_mask.path={run}", f"run_dir={run}_new"]
    ),
}
BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a run that was killed before it wrote its summary."""
    run = tmp_path_factory.mktemp("hostile") / "run"
    run_small("baseline", "trainer.epochs=1", run_dir=run)
    (run / "summary.json").unlink()
    return run


@pytest.fixture
def run(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "run"))


@pytest.fixture
def victim(tmp_path):
    """Return a folder of the user's, in which nothing may change."""
    (folder := tmp_path / "home").mkdir()
    (folder / "file").write_text("precious")
    return folder


def is_whole(victim):
    return [(each.name, each.read_text()) for each in victim.iterdir()] == [("file", "precious")]


CONFIGS = {
    "link": lambda path, victim: path.symlink_to(victim / "file"),
    "pipe": lambda path, victim: os.mkfifo(path),
    "aliases": lambda path, victim: path.write_text(f"{BOMB}model: {{}}\ntrainer: {{}}\nhooks: {{}}\n"),
}


def refused(capfd, command, run):
    start = time.monotonic()
    assert command(run) == train.WRONG
    assert time.monotonic() - start < 20  # it takes a second on an idle machine
    said = capfd.readouterr().err.splitlines()
    lines = [line for line in said if line.startswith("Error: ")]
    assert len(lines) == 1, said
    assert not any("Traceback" in line for line in said)
    return lines[0]


@pytest.mark.parametrize("make", CONFIGS.values(), ids=CONFIGS)
def test_forged_config_is_refused_in_one_line(make, run, victim, capfd):
    (run / "config.yaml").unlink()
    make(run / "config.yaml", victim)
    for command in READING.values():
        assert str(run) in refused(capfd, command, run)
    assert verify.main([f"run={run}"]) == 1
    assert "config.yaml" in capfd.readouterr().out
    assert is_whole(victim)


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard", "pictures", "export"])
def test_linked_folder_is_refused_by_every_command(name, run, victim, capfd):
    shutil.rmtree(run / name, ignore_errors=True)
    (run / name).symlink_to(victim)
    for command in FOLLOWING.values():
        assert f"contains a link to a folder: {run / name}" in refused(capfd, command, run)
    assert is_whole(victim)
    assert not run.with_name("run_new").exists()


@pytest.mark.parametrize(("name", "kind"), [(".lock", "link"), (".lock", "pipe"), ("metrics.jsonl", "link")])
def test_run_refuses_to_write_through_a_link_or_pipe(name, kind, run, victim, capfd):
    (run / name).unlink()
    CONFIGS[kind](run / name, victim)
    assert "it is " in refused(capfd, FOLLOWING["resume"], run)
    assert is_whole(victim)


def test_junk_and_links_under_temporary_names_do_no_harm(run, victim, capfd):
    names = ["summary.json", "metrics.jsonl", "checkpoints/index.json", "pictures/filters_dense_1.png"]
    checkpoint = next((run / "checkpoints").glob("step_*")).name
    for name in (*names, f"checkpoints/{checkpoint}"):
        path = run / name
        for temporary in ("{}.tmp", ".{}.tmp", f".{{}}.{os.getpid()}.tmp", "{}.partial"):
            path.with_name(temporary.format(path.name)).symlink_to(victim / "file")
    (run / "summary.json").symlink_to(victim / "file")
    (run / "environment.json").write_text('{"packages": ' + "[" * 20000)
    with (run / "metrics.jsonl").open("a") as file:
        file.write("[" * 20000 + "\n" + "x" * 10**7)
    with pytest.warns(UserWarning, match="environment.json cannot be read"):
        assert train.main([f"resume={run}"]) == train.DONE
    assert is_whole(victim)
    assert not (run / "summary.json").is_symlink()
    assert (run / "metrics.jsonl").stat().st_size < 10**5
    capfd.readouterr()
