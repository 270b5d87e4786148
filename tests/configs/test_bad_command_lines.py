"""Every mistake on the command line ends in one line that names it; nothing is built, imported or written before."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hookline.trainer.config.command import parse_command
from hookline.trainer.config.compose import typed
from hookline.trainer.config.preflight import preflight
from hookline.trainer.errors import UserError

MIRRORED = "trainer.strategy=mirrored trainer.batch_size=64"
MISTAKES = {
    "recipes": {
        "": "No recipe was given. Expected recipe=<name>, one of: baseline, bnn, prune.",
        "recipe=[bnn,prun]": "Unknown recipe 'prun'. Did you mean 'prune'? Expected one of: baseline, bnn, prune.",
        "recipe": "'recipe' cannot be read",
        "recipe=bnn ++recipe=prune": "Expected recipe=[bnn,prune].",
        "recipe=bnn recipe=prune": "'recipe' is given 2 times",
    },
    "sweeps": {
        "recipe=bnn,prune": "lists several values",
        "-m recipe=bnn optimizer.learning_rate=0.1,abc": "learning_rate=abc received",
        "-m recipe=bnn seed=range(0,9) trainer.batch_size=range(1,9)": "more than 64 jobs",
        "-m recipe=glob(x*)": "matches no value",
    },
    "groups": {
        "+model=cnn": "Expected model=cnn.",
        "hooks=null": "Expected hooks.<name>=null",
        "hooks=[center_loss,progress]": "Expected +hooks=[center_loss,progress] to add.",
        "+augment=flop": "Unknown augmentation 'flop'. Did you mean 'flip'?",
        "+data@other=mnist": "cannot be composed",
    },
    "keys": {
        **{f"{sign}trainer.stepz=3": "Did you mean 'trainer.steps'?" for sign in ("", "++", "~")},
        "~trainer.steps": "removes what every run needs",
        "++optimizer.lerning_rate=3": "Unknown argument of optimizer 'lerning_rate'. Did you mean 'learning_rate'?",
        "+optimizer.learning_rate=3": "Expected optimizer.learning_rate=3.",
        "seed=1 seed=2": "'seed' is given 2 times",
        "'hooks.bnn_rounding.quantizer={_target_: mine.Net}'": "If you trust it, add plugins=[mine].",
        "hydra.run.dir=here": "a value of Hydra itself",
        "~hooks.chekpoint": "Unknown hook 'chekpoint'. Did you mean 'checkpoint'?",
        "hooks.mine._target_=hooks.a.B": "Expected +hooks.mine._target_=hooks.a.B.",
    },
    "types": {
        "trainer.epochs=1e3": "Write trainer.epochs=1000.",
        "trainer.compile=true": "Expected one of: auto, on, off.",
        "debug=1": "Expected true or false.",
        "plugins=mine": "Write plugins=[mine].",
        "hooks.bnn_rounding.skip=3": "Expected a list or a text or null.",
        "trainer.epochs=${trainer.batchsize}": "'trainer.batchsize' not found",
    },
    "ranges": {
        "trainer.epochs=0": "Expected at least 1.",
        "trainer.max_seconds=nan": "Expected a finite number.",
        "\"run_dir=''\"": "run_dir is empty",
        "trainer.class_weights={3:-1}": "Expected a weight of at least 0",
        "trainer.class_sampling={3:1}": "Expected a share above 0 and below 1",
        "trainer.class_sampling=balanced trainer.classes_per_batch=8": "both say which classes a batch holds",
        "trainer.batch_size=64 trainer.accumulation_steps=3": "use trainer.batch_size=63 or trainer.batch_size=66",
        "trainer.batch_size=64 trainer.classes_per_batch=4 trainer.accumulation_steps=4": "trainer.classes_per_batch=8",
        f"{MIRRORED} trainer.replicas=3": "use trainer.batch_size=63 or trainer.batch_size=66",
        f"{MIRRORED} trainer.replicas=4 trainer.classes_per_batch=4": "use fewer replicas",
        "optimizer.gradient_accumulation_steps=4": "Expected trainer.accumulation_steps=4 in its place",
        **{f"optimizer.learning_rate={rate}": "Expected a number above 0" for rate in ("0", "nan")},
        "plugins=[os]": "a module of Python itself",
        "\"plugins=['a b']\"": "Expected names of packages",
    },
    "flags": {
        "--steps 3": "unrecognized arguments: --steps 3",
        "--resolve": "Expected --cfg job --resolve.",
        "--jobs 2": "Expected -m beside it.",
        "-m jobs=2": "Expected -m --jobs 2.",
        "-m --cfg job": "Expected it without -m and --run.",
        "--config-dir /no/such": "--config-dir /no/such does not exist",
        "data.path=a=b": "Expected key=value; put a value with special characters in quotes twice",
    },
}


def message(arguments, tree):
    with pytest.raises(UserError) as caught:
        preflight(parse_command(arguments), tree)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_is_one_line_that_names_it(kind, tree):
    own = [] if kind in ("recipes", "sweeps") else ["recipe=bnn"]
    for line, words in MISTAKES[kind].items():
        assert words in message([*own, *shlex.split(line)], tree), line


def test_a_mistake_in_a_config_file_is_one_line(tree, tmp_path):
    for name, text, words in (
        ("recipe/wrong", "trainer: {epochs: 3}\n", "must begin with '# @package _global_'"),
        ("recipe/wrong", "# @package _global_\ntrainer: {epoch: 3}\n", "Key 'epoch' not in 'TrainerConfig'"),
        ("recipe/wrong", "# @package _global_\ntrainer: {epochs: 3\n", "wrong.yaml, line 3"),
        ("hooks/wrong", "wrong: {every: 3}\n", "hooks.wrong has no _target_"),
    ):
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        chosen = ["recipe=wrong"] if name.startswith("recipe") else ["recipe=bnn", "+hooks=wrong"]
        assert words in message([*chosen, "--config-dir", str(tmp_path)], tree)


def test_what_was_added_to_a_composed_config_is_checked_by_the_schema():
    for change, words in (
        ({"trainer": {"stepz": 1}}, r"Key 'stepz' not in 'TrainerConfig' \(trainer.stepz\)"),
        ({"seed": "one"}, r"could not be converted to Integer \(seed\)"),
        ({"data": {"path": "???"}}, "data.path has no value"),
    ):
        with pytest.raises(UserError, match=words):
            typed(change)


def test_checking_and_explaining_need_neither_tensorflow_nor_numpy():
    code = (
        "import sys\nfrom hookline import train\nfrom hookline.trainer.config.command import parse_command\n"
        "from hookline.trainer.config.preflight import preflight\n"
        "preflight(parse_command(['recipe=bnn']))\n"
        "assert train.main(['recipe=bnn', '--explain', 'optimizer.learning_rate']) == 0\n"
        "assert not {'tensorflow', 'keras', 'numpy'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("optimizer.learning_rate = 0.003\n  set by configs/recipe/baseline.yaml:15\n")
