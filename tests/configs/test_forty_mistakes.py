"""Forty likely mistakes at the real door, with the real configs: one line, the right suggestion, exit code 2, no wait.

TensorFlow takes seconds to import, so that it is not imported stands for the time.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MISTAKES = {
    # names, in every position
    "recipe=bn": "Unknown recipe 'bn'. Did you mean 'bnn'?",
    "recpie=bnn": "Unknown key 'recpie'. Did you mean 'recipe'?",
    "recipe=bnn optimizer=adm": "Unknown optimizer 'adm'. Did you mean 'adam'?",
    "recipe=bnn +hooks=[center_loss,bnn_roundng]": "Unknown hook 'bnn_roundng'. Did you mean 'bnn_rounding'?",
    "recipe=bnn lr=0.1": "Unknown key 'lr'. Did you mean 'optimizer.learning_rate'?",
    "recipe=bnn optimizer.lr=0.1": "Unknown argument of optimizer 'lr'. Did you mean 'learning_rate'?",
    "recipe=bnn trainr.epoch=3": "Unknown key 'trainr.epoch'. Did you mean 'trainer.epochs'?",
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
    "recipe=bnn +hooks.mine._target_=my_hook.Mine": "If you trust it, add plugins=[my_hook].",
    "recipe=bnn plugins=[nowhere_at_all] +hooks.mine._target_=nowhere_at_all.Mine": "no module 'nowhere_at_all'",
    # what does not go together, signs, quotes and flags
    "recipe=bnn trainer.steps=100": "Expected exactly one: add trainer.epochs=null or trainer.steps=null.",
    "recipe=bnn trainer.replicas=2": "Expected trainer.strategy=mirrored, or trainer.replicas=null.",
    "recipe=bnn trainer.strategy=multi_worker": "nothing says where the workers are",
    "recipe=bnn 'optimizer.learning_rate=interval(1e-4, 1e-2)'": "Expected -m --trials <number>",
    "'recipe=[bnn,frozen_mask'": "cannot be read",
    "recipe=bnn --epochs 3": "unrecognized arguments: --epochs 3. Expected key=value without dashes",
}
PROGRAM = f"""
import io, json, sys
from contextlib import redirect_stderr
sys.path.insert(0, {str(ROOT)!r})
from hookline import train
for line in json.load(sys.stdin):
    with redirect_stderr(io.StringIO()) as errors:
        code = train.main(line)
    print(json.dumps([code, errors.getvalue(), "tensorflow.python" in sys.modules or "keras.src" in sys.modules]))
"""


def test_a_mistake_is_one_line_with_its_remedy_without_tensorflow(tmp_path):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    lines = json.dumps([shlex.split(line) for line in MISTAKES])
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, input=lines, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for (line, words), (code, said, imported) in zip(MISTAKES.items(), found, strict=True):
        assert (code, said.count("\n"), imported) == (2, 1, False), line
        assert said.startswith("Error: ")
        assert words in said
        for name in re.findall(r"Did you mean '([^']+)'", said):  # a suggestion is one of what the message lists
            listed = re.search(r"Expected one of(?: this run's)?: ([^.]+(?:\.[a-z_]+[^.]*)*)\.", said)
            names = [] if listed is None else re.split(r"[ ,]+", listed[1])
            assert listed is None or any(f"{name}.".startswith(f"{each}.") for each in names), said
    assert [path.name for path in tmp_path.rglob("*")] == ["used", "file"]
