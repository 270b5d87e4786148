"""Every mistake on the command line is reported in one line, before anything is built, imported or written."""

import json
import re
import shlex

import pytest

from hookline.trainer.config.command import parse_command, typed
from hookline.trainer.config.preflight import preflight
from tests.support.refusals import assert_refused, refusal
from tests.support.workers import ROOT, run_python

MIRRORED = "trainer.strategy=mirrored trainer.batch_size=64"
MISTAKES = {
    "recipes": {
        "": "No recipe was given. Expected recipe=<name>, one of: baseline, bnn, prune.",
        "recipe": "'recipe' cannot be read",
        "recipe=bnn ++recipe=prune": "for several recipes recipe=[first,prune].",
    },
    "sweeps": {
        "recipe=bnn,prune": "lists several values",
        "-m recipe=bnn optimizer.learning_rate=0.1,abc": "learning_rate='abc' received",
        "-m recipe=bnn seed=range(0,9) trainer.batch_size=range(1,9)": "more than 64 jobs",
        "-m recipe=glob(x*)": "matches no value",
    },
    "groups": {
        "+model=cnn": "Expected model=cnn.",
        "hooks=null": "Expected hooks.<name>=null",
        "hooks.progress=off": "or hooks.progress=null to leave it out.",
        "hooks=[center_loss,progress]": "Expected +hooks=[center_loss,progress] to add.",
        "+augment=flop": "Unknown augmentation 'flop'. Did you mean 'flip'?",
        "+data@other=mnist": "cannot be composed",
    },
    "keys": {
        **{f"{sign}trainer.stepz=3": "Did you mean 'trainer.steps'?" for sign in ("", "++", "~")},
        "~trainer.steps": "removes what every run needs",
        "++optimizer.lerning_rate=3": "Unknown argument of optimizer 'lerning_rate'. Did you mean 'learning_rate'?",
        "+optimizer.learning_rate=3": "Either remove + prefix: 'optimizer.learning_rate=3'.",
        "seed=1 seed=2": "'seed' is given 2 times",
        "hydra.run.dir=here": "a value of Hydra itself",
        "hydra/launcher=joblib": "-m with --jobs or --trials, or scripts/submit.py",
        "hooks.mine._target_=hooks.a.B": "To append to your config use +hooks.mine._target_=hooks.a.B:",
    },
    "types": {
        "trainer.epochs=1e3": "'1000.0' of type 'float' could not be converted to Integer full_key: trainer.epochs.",
        "trainer.compile=true": "Expected one of: auto, off, on.",
        "debug=perhaps": "'perhaps' is not a valid bool",
        "plugins=mine": "Error merging override plugins=mine",
        "trainer.epochs=${trainer.batchsize}": "'trainer.batchsize' not found",
    },
    "ranges": {
        "trainer.epochs=0": "Expected a whole number from 1 to 1000000000.",
        "trainer.max_seconds=nan": "Expected a number of at least 0.",
        "\"run_dir=''\"": "run_dir is empty",
        "trainer.class_weights={3:-1}": "Expected a weight of at least 0",
        "\"trainer.class_weights='{été:2}'\"": "for one with letters beyond ASCII, give its number.",
        "trainer.class_sampling={3:1}": "Expected a share above 0 and below 1",
        "trainer.class_sampling=balanced trainer.classes_per_batch=8": "both say which classes a batch holds",
        "trainer.batch_size=64 trainer.accumulation_steps=3": "Expected trainer.batch_size=63 or trainer.batch_size=66",
        "trainer.batch_size=64 trainer.classes_per_batch=4 trainer.accumulation_steps=4": "trainer.classes_per_batch=8",
        "trainer.replicas=2": "trainer.replicas=2 received with trainer.strategy=none",
        "trainer.strategy=multi_worker trainer.replicas=2": "Expected trainer.replicas=null",
        f"{MIRRORED} trainer.replicas=3": "Expected trainer.batch_size=63 or trainer.batch_size=66",
        f"{MIRRORED} trainer.replicas=4 trainer.classes_per_batch=4": "use fewer replicas",
        "optimizer.gradient_accumulation_steps=4": "Use trainer.accumulation_steps=4 instead",
        **{f"optimizer.learning_rate={rate}": "Expected a number above 0" for rate in ("0", "nan")},
        "plugins=[os]": "a module of Python itself",
        "\"plugins=['a b']\"": "there is no module 'a b'",
    },
    "flags": {
        "--resolve": "Expected --cfg job --resolve.",
        "--jobs 2": "Expected -m beside it.",
        "-m --cfg job": "Expected it without -m and --run.",
        "--config-dir /no/such": "--config-dir /no/such does not exist",
        "data.path=a=b": "Expected key=value; put a value with special characters in quotes twice",
    },
}


def message(arguments, tree):
    return refusal(lambda: preflight(parse_command(arguments), tree))


@pytest.mark.parametrize("kind", MISTAKES)
def test_mistake_is_named_in_one_line(kind, tree):
    own = [] if kind in ("recipes", "sweeps") else ["recipe=bnn"]
    for line, words in MISTAKES[kind].items():
        assert words in message([*own, *shlex.split(line)], tree), line


def test_mistake_in_a_config_file_is_reported_in_one_line(tree, tmp_path):
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


def test_changes_to_a_composed_config_are_checked_against_the_schema():
    for change, words in (
        ({"trainer": {"stepz": 1}}, "Key 'stepz' not in 'TrainerConfig' full_key: trainer.stepz"),
        ({"seed": "one"}, "could not be converted to Integer full_key: seed"),
        ({"data": {"path": "???"}}, "data.path has no value"),
    ):
        assert_refused(words, typed, change)


def test_checking_and_explaining_need_neither_tensorflow_nor_numpy():
    code = (
        "import sys\nfrom hookline import train\nfrom hookline.trainer.config.command import parse_command\n"
        "from hookline.trainer.config.preflight import preflight\n"
        "preflight(parse_command(['recipe=bnn']))\n"
        "assert train.main(['recipe=bnn', '--explain', 'optimizer.learning_rate']) == 0\n"
        "assert not {'tensorflow', 'keras', 'numpy'} & set(sys.modules)\n"
    )
    shown = "optimizer.learning_rate = 0.003\n  set by configs/recipe/baseline.yaml:15\n"
    assert run_python("-c", code)[0].startswith(shown)


# Likely mistakes at the real command, with the real configs; TensorFlow, which takes seconds, is not imported.
LIKELY = {
    # names, in every position
    "recpie=bnn": "Unknown key 'recpie'. Did you mean 'recipe'?",
    "recipe=bnn +hooks=[center_loss,bnn_roundng]": "Unknown hook 'bnn_roundng'. Did you mean 'bnn_rounding'?",
    "recipe=bnn lr=0.1": "Unknown key 'lr'. Did you mean 'optimizer.learning_rate'?",
    "recipe=bnn hooks.prune.final_sparsity=0.5": "Expected +hooks=prune to add it first.",
    # values that are names
    "recipe=bnn hooks.bnn_rounding.kernel_quantizer=ste_sgn": "'ste_sgn'. Did you mean 'ste_sign'?",
    "recipe=frozen_mask hooks.prune.schedule=oneshot": "Unknown schedule 'oneshot'. Did you mean 'one_shot'?",
    "recipe=gradient_reversal hooks.gradient_override.backward.name=revers": "Did you mean 'reverse'?",
    "recipe=gan task.loss=hinje": "Unknown loss 'hinje'. Did you mean 'hinge'?",
    # wrong types and values out of range
    "recipe=bnn model.units=[256,abc]": "Expected a list, each a whole number.",
    "recipe=frozen_mask hooks.prune.final_sparsity=1.5": "Expected a number of at least 0 and at most 1",
    "recipe=bnn schedule.warmup_fraction=2": "=2 received. Expected a number of at least 0 and below 1.",
    # paths
    "recipe=bnn data=mnist data.path=nowhere.npz": "data.path 'nowhere.npz' does not exist; expected an npz file,",
    "recipe=baseline data=image_folder data.path=nowhere": "data.path 'nowhere' does not exist; expected a folder.",
    "recipe=baseline data=tfrecord 'data.path=nowhere-*'": "data.path 'nowhere-*' matches no file",
    "recipe=bnn run_dir=used": "run_dir=used exists already.",
    # incompatible values, signs, quotes and flags
    "recipe=bnn trainer.steps=100": "Expected exactly one: add trainer.epochs=null or trainer.steps=null.",
    "recipe=bnn 'optimizer.learning_rate=interval(1e-4, 1e-2)'": "Expected -m --trials <number>",
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


@pytest.mark.full
def test_mistake_is_reported_with_a_remedy_without_importing_tensorflow(tmp_path):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    lines = json.dumps([shlex.split(line) for line in LIKELY])
    shown, _ = run_python("-c", PROGRAM, input=lines, cwd=tmp_path, timeout=300)
    found = [json.loads(line) for line in shown.splitlines()]
    for (line, words), (code, said, imported) in zip(LIKELY.items(), found, strict=True):
        assert (code, said.count("\n"), imported) == (2, 1, False), line
        assert said.startswith("Error: ")
        assert words in said
        for name in re.findall(r"Did you mean '([^']+)'", said):  # a suggestion is one of the listed names
            listed = re.search(r"Expected one of(?: this run's)?: ([^.]+(?:\.[a-z_]+[^.]*)*)\.", said)
            names = [] if listed is None else re.split(r"[ ,]+", listed[1])
            assert listed is None or any(f"{name}.".startswith(f"{each}.") for each in names), said
    assert [path.name for path in tmp_path.rglob("*")] == ["used", "file"]
