"""Forty likely mistakes at the real door, with the real configs: one line, the right suggestion, exit code 2, no wait.

TensorFlow takes seconds to import, so that it is not imported stands for the time; a long test measures it.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MISTAKES = {
    # names, in every position
    "recipe=bn": "Unknown recipe 'bn'. Did you mean 'bnn'?",
    "recpie=bnn": "Unknown key 'recpie'. Did you mean 'recipe'?",
    "recipe=bnn optimizer=adm": "Unknown optimizer 'adm'. Did you mean 'adam'?",
    "recipe=bnn +hooks=centre_loss": "Unknown hook 'centre_loss'. Did you mean 'center_loss'?",
    "recipe=bnn +hooks=[center_loss,bnn_roundng]": "Unknown hook 'bnn_roundng'. Did you mean 'bnn_rounding'?",
    "recipe=baseline +augment=flp": "Unknown augmentation 'flp'. Did you mean 'flip'?",
    "recipe=bnn trainer.epoch=3": "Unknown key 'trainer.epoch'. Did you mean 'trainer.epochs'?",
    "recipe=bnn trainr.epoch=3": "Unknown key 'trainr.epoch'. Did you mean 'trainer.epochs'?",
    "recipe=bnn optimizer.lerning_rate=3": "argument of optimizer 'lerning_rate'. Did you mean 'learning_rate'?",
    "recipe=bnn hooks.bnn_rounding.clp=1": "Unknown argument of hooks.bnn_rounding 'clp'. Did you mean 'clip'?",
    "recipe=bnn ~hooks.progres": "Unknown hook 'progres'. Did you mean 'progress'?",
    "recipe=bnn hooks.prune.final_sparsity=0.5": "Expected +hooks=prune to add it first.",
    "recipe=bnn --explain optimizer.learning_rat": "Did you mean 'learning_rate'?",
    "--help hooks.prun": "Did you mean 'hooks.prune'?",
    # values that are names
    "recipe=bnn hooks.bnn_rounding.kernel_quantizer=ste_sgn": "'ste_sgn'. Did you mean 'ste_sign'?",
    "recipe=frozen_mask hooks.prune.schedule=oneshot": "Unknown schedule 'oneshot'. Did you mean 'one_shot'?",
    "recipe=frozen_mask hooks.frozen_mask.masks=hok": "Unknown masks 'hok'. Did you mean 'hook'?",
    "recipe=attention hooks.bernoulli_attention.mode=bernouli": "Unknown mode 'bernouli'. Did you mean 'bernoulli'?",
    "recipe=gradient_reversal hooks.gradient_override.backward.name=revers": "Did you mean 'reverse'?",
    "recipe=gan task.loss=hinje": "Unknown loss 'hinje'. Did you mean 'hinge'?",
    "recipe=bnn trainer.strategy=mirorred": "Did you mean 'mirrored'?",
    "recipe=bnn trainer.precision=float61": "Did you mean 'float16'?",
    # wrong types and values out of range
    "recipe=bnn trainer.epochs=abc": "Expected a whole number or null.",
    "recipe=bnn trainer.batch_size=64.5": "Expected a whole number.",
    "recipe=bnn model.units=[256,abc]": "Expected a list, each a whole number.",
    "recipe=bnn trainer.epochs=0": "trainer.epochs=0 received. Expected at least 1.",
    "recipe=frozen_mask hooks.prune.final_sparsity=1.5": "Expected the share of entries to prune, in [0, 1]",
    "recipe=bnn hooks.checkpoint.keep_last=-1": "Expected a whole number of at least 1.",
    "recipe=bnn schedule.warmup_fraction=2": "schedule.warmup_fraction=2 received. Expected a number in [0, 1).",
    "recipe=baseline +augment=flip augment.flip.probability=7": "Expected a number in (0, 1].",
    # paths
    "recipe=bnn data=mnist data.path=nowhere.npz": "data.path 'nowhere.npz' does not exist; expected an npz file.",
    "recipe=baseline data=cluttered data.source=mnist data.path=nowhere.npz": "data.path 'nowhere.npz' does not exist",
    "recipe=baseline data=image_folder data.path=nowhere": "data.path 'nowhere' does not exist; expected a folder.",
    "recipe=baseline data=arrays data.path=nowhere.npy": "data.path 'nowhere.npy' does not exist",
    "recipe=baseline data=tfrecord 'data.path=nowhere-*'": "data.path 'nowhere-*' matches no file",
    "recipe=baseline data=image_folder": "data.path has no value. Expected data.path=<value>.",
    "recipe=bnn run_dir=used": "run_dir=used exists already.",
    "resume=nowhere": "resume=nowhere has no config.yaml that can be read.",
    "recipe=bnn init_from=nowhere": "init_from=nowhere has no checkpoints.",
    "recipe=bnn --config-dir nowhere": "--config-dir nowhere does not exist.",
    "recipe=bnn +hooks.mine._target_=my_hook.Mine": "If you trust it, add plugins=[my_hook].",
    "recipe=bnn plugins=[nowhere_at_all] +hooks.mine._target_=nowhere_at_all.Mine": "no module 'nowhere_at_all'",
    # what does not go together
    "recipe=bnn trainer.steps=100": "Expected exactly one: add trainer.epochs=null or trainer.steps=null.",
    "recipe=bnn trainer.replicas=2": "Expected trainer.strategy=mirrored, or trainer.replicas=null.",
    "recipe=bnn trainer.strategy=multi_worker": "nothing says where the workers are",
    "recipe=bnn trainer.accumulation_steps=3": "use trainer.batch_size=63 or trainer.batch_size=66",
    # signs, quotes and flags
    "recipe=bnn +recipe=frozen_mask": "Expected recipe=[bnn,frozen_mask].",
    "recipe=bnn +trainer.epochs=3": "Expected trainer.epochs=3.",
    "recipe=bnn seed=1,2": "Expected -m to run them one by one",
    "recipe=bnn 'optimizer.learning_rate=interval(1e-4, 1e-2)'": "Expected -m --trials <number>",
    "'recipe=[bnn,frozen_mask'": "cannot be read",
    "recipe=bnn --epochs 3": "unrecognized arguments: --epochs 3. Expected key=value without dashes",
    "recipe=bnn --jobs 2": "Expected -m beside it.",
}
PROGRAM = """
import io, json, sys
from contextlib import redirect_stderr
import train
for line in json.load(sys.stdin):
    with redirect_stderr(io.StringIO()) as errors:
        code = train.main(line)
    print(json.dumps([code, errors.getvalue(), "tensorflow.python" in sys.modules or "keras.src" in sys.modules]))
"""


def tried(lines: list[list[str]], directory: Path) -> list[list[Any]]:
    """Return exit code, what was said, and whether TensorFlow or Keras was imported, for each command line."""
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{PROGRAM}"]
    done = subprocess.run(
        command, input=json.dumps(lines), cwd=directory, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Every mistake, made in a process that has not imported TensorFlow; checks that nothing is written."""
    directory = tmp_path_factory.mktemp("mistakes")
    (directory / "used").mkdir()
    (directory / "used" / "file").write_text("")
    found = tried([shlex.split(line) for line in MISTAKES], directory)
    assert [path.name for path in directory.rglob("*")] == ["used", "file"]
    return dict(zip(MISTAKES, found, strict=True))


def test_there_are_forty() -> None:
    assert len(MISTAKES) >= 40


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line_with_its_remedy_before_tensorflow_is_imported(
    line: str, outcomes: dict[str, list[Any]]
) -> None:
    code, said, imported = outcomes[line]
    assert said.startswith("Error: ")
    assert said.count("\n") == 1
    assert MISTAKES[line] in said
    assert code == 2
    assert not imported


def test_a_suggestion_is_of_the_right_kind(outcomes: dict[str, list[Any]]) -> None:
    for line, (_, said, _) in outcomes.items():
        for name in re.findall(r"Did you mean '([^']+)'", said):
            assert name not in line.split("=")[-1], line
            listed = re.search(r"Expected one of(?: this run's)?: ([^.]+(?:\.[a-z_]+[^.]*)*)\.", said)
            names = [] if listed is None else re.split(r"[ ,]+", listed[1])
            assert listed is None or any(f"{name}.".startswith(f"{each}.") for each in names), said


@pytest.mark.long
@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_shows_within_two_seconds(line: str, tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("")
    command = [sys.executable, str(ROOT / "train.py"), *shlex.split(line)]
    seconds = []
    for _ in range(3):
        start = time.monotonic()
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        seconds.append(time.monotonic() - start)
        assert (done.returncode, done.stdout) == (2, "")
    assert min(seconds) < 2.0
