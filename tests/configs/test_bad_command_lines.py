"""Every mistake on the command line ends in one line that says what was received, what exists and how to mend it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainer.config.command import parse_command
from trainer.config.compose import typed
from trainer.config.preflight import preflight
from trainer.errors import UserError

ROOT_KEYS = (
    "augment, data, debug, hooks, init_from, model, optimizer, plugins, recipe, resume, run_dir, schedule, seed, task, "
    "trainer"
)
TRAINER_KEYS = (
    "trainer.accumulation_steps, trainer.allow_slow_precision, trainer.batch_size, trainer.class_sampling, "
    "trainer.class_weights, "
    "trainer.classes_per_batch, trainer.compile, trainer.epochs, "
    "trainer.evaluate_every_epochs, trainer.evaluation_batch_size, trainer.max_seconds, trainer.monitor, "
    "trainer.monitor_mode, "
    "trainer.placement, trainer.precision, trainer.replicas, trainer.report_every_steps, trainer.steps, "
    "trainer.strategy, trainer.threads, trainer.worker_timeout"
)
HOOKS = "bnn_rounding, center_loss, checkpoint, progress"
BNN_ARGUMENTS = "clip, layers, quantizer, scale, skip"
ADAM_ARGUMENTS = (
    "amsgrad, beta_1, beta_2, clipnorm, clipvalue, ema_momentum, ema_overwrite_frequency, epsilon, global_clipnorm, "
    "gradient_accumulation_steps, learning_rate, loss_scale_factor, use_ema, weight_decay"
)
WITHOUT_FLAG = "Expected key=value without dashes, or a flag; see python train.py --help."
QUOTES = "Expected key=value; a value with special characters stands in quotes twice: \"key='a=b'\"."

RECIPES = {
    "": "No recipe was given. Expected recipe=<name>, one of: baseline, bnn, prune. See python train.py --help.",
    "recipe=[]": "No recipe was given. Expected recipe=<name>, one of: baseline, bnn, prune. "
    "See python train.py --help.",
    "recipe=bn": "Unknown recipe 'bn'. Did you mean 'bnn'? Expected one of: baseline, bnn, prune.",
    "recipe=[bnn,prun]": "Unknown recipe 'prun'. Did you mean 'prune'? Expected one of: baseline, bnn, prune.",
    "recipe=3": "Unknown recipe '3'. Expected one of: baseline, bnn, prune.",
    "recipe=null": "'recipe=null' leaves nothing to build. Expected recipe=<name>; see python train.py --help.",
    "recipe=": "'recipe=' has no value. Expected recipe=<value>.",
    "recipe": "'recipe' cannot be read. Expected key=value, such as recipe=<name>; see --help.",
    "~recipe": "'~recipe' removes a whole group. Expected recipe=<name>; see python train.py --help.",
    "+recipe=bnn": "'+recipe=bnn' adds to a group that takes one choice. Expected recipe=bnn.",
    "recipe=bnn +recipe=prune": "'+recipe=prune' would be ignored. Expected recipe=[bnn,prune].",
    "recipe=bnn ++recipe=prune": "'++recipe=prune' would be ignored. Expected recipe=[bnn,prune].",
    "recipe=bnn recipe=prune": "'recipe' is given 2 times. Expected it once. For several, write recipe=[first,second].",
    "recpie=bnn": f"Unknown key 'recpie'. Did you mean 'recipe'? Expected one of: {ROOT_KEYS}.",
}
GROUPS = {
    "model=mpl": "Unknown model 'mpl'. Did you mean 'mlp'? Expected one of: cnn, mlp.",
    "optimizer=adm": "Unknown optimizer 'adm'. Did you mean 'adam'? "
    "Expected one of: adagrad, adam, adamw, lion, nadam, rmsprop, sgd.",
    "model=null": "'model=null' leaves nothing to build. Expected model=<name> to choose another.",
    "~model": "'~model' removes a whole group. Expected model=<name> to choose another.",
    "+model=cnn": "'+model=cnn' adds to a group that takes one choice. Expected model=cnn.",
    "hooks=null": "'hooks=null' leaves nothing to build. Expected hooks.<name>=null to remove one hook.",
    "hooks=center_loss": "'hooks=center_loss' would replace all hooks. Expected +hooks=center_loss to add.",
    "hooks=[center_loss,progress]": "'hooks=[center_loss,progress]' would replace all hooks. "
    "Expected +hooks=[center_loss,progress] to add.",
    "~hooks": "'~hooks' removes a whole group. Expected hooks.<name>=null to remove one hook.",
    "+hooks=centre_loss": f"Unknown hook 'centre_loss'. Did you mean 'center_loss'? Expected one of: {HOOKS}.",
    "+hooks=center_loss +hooks=progress": "'+hooks' is given 2 times. Expected it once. "
    "For several, write +hooks=[first,second].",
    "+hooks=default": f"Unknown hook 'default'. Expected one of: {HOOKS}.",
    "+hookz=center_loss": f"Unknown key 'hookz'. Did you mean 'hooks'? Expected one of: {ROOT_KEYS}.",
    "+data@other=mnist": "The config cannot be composed: In 'data/mnist': ConfigKeyError raised while "
    "composing config: Key 'other' not in 'TrainConfig'.",
    "data@other=mnist": "The config cannot be composed: Could not override 'data@other'.",
}
KEYS = {
    **{
        f"{sign}trainer.stepz=3": f"Unknown key 'trainer.stepz'. Did you mean 'trainer.steps'? "
        f"Expected one of: {TRAINER_KEYS}."
        for sign in ("", "+", "++", "~")
    },
    "trainer={stepz: 3}": f"Unknown key 'trainer.stepz'. Did you mean 'trainer.steps'? "
    f"Expected one of: {TRAINER_KEYS}.",
    "~trainer.steps": "'~trainer.steps' removes what every run needs. "
    "Expected ~hooks.<name>, or trainer.steps=<value>.",
    "epochs=3": f"Unknown key 'epochs'. Did you mean 'trainer.epochs'? Expected one of: {ROOT_KEYS}.",
    "lr=3": f"Unknown key 'lr'. Expected one of: {ROOT_KEYS}.",
    "optimzer.learning_rate=3": "Unknown key 'optimzer.learning_rate'. Did you mean 'optimizer.learning_rate'? "
    f"Expected one of: {ROOT_KEYS}.",
    "+optimzer._target_=a.B": "Unknown key 'optimzer._target_'. Did you mean 'optimizer._target_'? "
    f"Expected one of: {ROOT_KEYS}.",
    "++optimizer.lerning_rate=3": "Unknown argument of optimizer 'lerning_rate'. Did you mean 'learning_rate'? "
    f"Expected one of: {ADAM_ARGUMENTS}.",
    "+optimizer.learning_rate=3": "'+optimizer.learning_rate=3' adds what exists already. "
    "Expected optimizer.learning_rate=3.",
    "data.path=a.npz": "Unknown argument of data 'path'. Expected one of: test_fraction.",
    "seed=1 seed=2": "'seed' is given 2 times. Expected it once.",
    "hydra.run.dir=here": "'hydra.run.dir=here' sets a value of Hydra itself, which a run does not use. "
    "Expected a key of this project, such as run_dir=<path>; see python train.py --help.",
}
HOOK_KEYS = {
    "hooks.bnn_rounding.clp=1": f"Unknown argument of hooks.bnn_rounding 'clp'. Did you mean 'clip'? "
    f"Expected one of: {BNN_ARGUMENTS}.",
    "+hooks.bnn_rounding.clp=1": f"Unknown argument of hooks.bnn_rounding 'clp'. Did you mean 'clip'? "
    f"Expected one of: {BNN_ARGUMENTS}.",
    "hooks.bnn_rounding.quantiser={_target_: hooks.a.B}": "Unknown argument of hooks.bnn_rounding 'quantiser'. "
    f"Did you mean 'quantizer'? Expected one of: {BNN_ARGUMENTS}.",
    "hooks.bnn_rounding.skip.7=last": "Unknown key 'hooks.bnn_rounding.skip.7'. "
    "Expected one of: hooks.bnn_rounding.skip.0, hooks.bnn_rounding.skip.1.",
    "hooks.center_loss.weight=0.5": "The hook 'center_loss' is not part of this run. "
    "Expected +hooks=center_loss to add it first.",
    "hooks.chekpoint=null": "Unknown hook 'chekpoint'. Did you mean 'checkpoint'? "
    "Expected one of this run's: bnn_rounding, checkpoint, progress.",
    "~hooks.chekpoint": "Unknown hook 'chekpoint'. Did you mean 'checkpoint'? "
    "Expected one of this run's: bnn_rounding, checkpoint, progress.",
    "~hooks.checkpoint.every": "'~hooks.checkpoint.every' removes what every run needs. "
    "Expected ~hooks.<name>, or hooks.checkpoint.every=<value>.",
    "hooks.checkpoint=3": "hooks.checkpoint=3 received. "
    "Expected a value for one of its keys, or hooks.checkpoint=null to remove it.",
    "+hooks.mine.every=3": "Unknown hook 'mine'. Expected one of this run's: bnn_rounding, checkpoint, progress.",
    "+hooks._target_=a.B": "Unknown hook '_target_'. Expected one of this run's: bnn_rounding, checkpoint, progress.",
    "hooks.mine._target_=hooks.a.B": "'hooks.mine._target_=hooks.a.B' sets what does not exist yet. "
    "Expected +hooks.mine._target_=hooks.a.B.",
    "model._target_=recipes.a.b model.width=3": "'model.width=3' sets what does not exist yet. "
    "Expected +model.width=3.",
    "+model._target_=recipes.a.b": "'+model._target_=recipes.a.b' adds what exists already. "
    "Expected model._target_=recipes.a.b.",
}
PRESENT = "+augment=[crop,flip]"
AUGMENT_KEYS = {
    "+augment=flop": "Unknown augmentation 'flop'. Did you mean 'flip'? Expected one of: both, crop, flip.",
    "augment=flip": "'augment=flip' would replace all augmentations. Expected +augment=flip to add.",
    "augment=null": "'augment=null' leaves nothing to build. Expected augment.<name>=null to remove one augmentation.",
    "~augment": "'~augment' removes a whole group. Expected augment.<name>=null to remove one augmentation.",
    "+augment=crop +augment=flip": "'+augment' is given 2 times. Expected it once. "
    "For several, write +augment=[first,second].",
    "+augmnet=crop": f"Unknown key 'augmnet'. Did you mean 'augment'? Expected one of: {ROOT_KEYS}.",
    "augment.crop.padding=2": "The augmentation 'crop' is not part of this run. "
    "Expected +augment=crop to add it first.",
    "augment.mine.padding=2": "Unknown augmentation 'mine'. Expected +augment=<name> to add one.",
    f"{PRESENT} augment.crp=null": "Unknown augmentation 'crp'. Did you mean 'crop'? "
    "Expected one of this run's: crop, flip.",
    f"{PRESENT} ~augment.crp": "Unknown augmentation 'crp'. Did you mean 'crop'? "
    "Expected one of this run's: crop, flip.",
    f"{PRESENT} augment.crop.paddin=2": "Unknown argument of augment.crop 'paddin'. Did you mean 'padding'? "
    "Expected one of: border, padding.",
    f"{PRESENT} ~augment.crop.padding": "'~augment.crop.padding' removes what every run needs. "
    "Expected ~augment.<name>, or augment.crop.padding=<value>.",
    f"{PRESENT} augment.crop=3": "augment.crop=3 received. "
    "Expected a value for one of its keys, or augment.crop=null to remove it.",
    f"{PRESENT} augment.crop.padding=abc": "augment.crop.padding=abc received. Expected a number or null.",
    f"{PRESENT} augment.mine._target_=recipes.a.B": "'augment.mine._target_=recipes.a.B' sets what does not exist yet. "
    "Expected +augment.mine._target_=recipes.a.B.",
}
TYPES = {
    "trainer.epochs=abc": "trainer.epochs=abc received. Expected a whole number or null.",
    "trainer.epochs=1e3": "trainer.epochs=1000.0 received. Expected a whole number or null. Write trainer.epochs=1000.",
    "trainer.epochs=1.5": "trainer.epochs=1.5 received. Expected a whole number or null.",
    "trainer.epochs=true": "trainer.epochs=true received. Expected a whole number or null.",
    "trainer.steps={a: 1}": "trainer.steps={a:1} received. Expected a whole number or null.",
    "trainer.batch_size=null": "trainer.batch_size=null received. Expected a whole number.",
    "trainer.compile=true": "trainer.compile=true received. Expected one of: auto, on, off.",
    "debug=1": "debug=1 received. Expected true or false.",
    "plugins=mine": "plugins=mine received. Expected a list, each a text. Write plugins=[mine].",
    "run_dir=3": "run_dir=3 received. Expected a text or null.",
    "optimizer.learning_rate=": "'optimizer.learning_rate=' has no value. Expected optimizer.learning_rate=<value>.",
    "optimizer.learning_rate=abc": "optimizer.learning_rate=abc received. Expected a number or null.",
    "optimizer.amsgrad=1": "optimizer.amsgrad=1 received. Expected true or false or null.",
    "hooks.bnn_rounding.clip=abc": "hooks.bnn_rounding.clip=abc received. Expected a number or null.",
    "hooks.bnn_rounding.skip=3": "hooks.bnn_rounding.skip=3 received. Expected a list or a text or null.",
    "hooks.bnn_rounding.quantizer=true": "hooks.bnn_rounding.quantizer=true received. "
    "Expected a text or a number or a list or a mapping or null.",
    "model.units=abc model.activation=true": "model.activation=true received. "
    "Expected a text or a number or a list or a mapping or null.",
    "trainer.epochs=${trainer.batchsize}": "The config is wrong: Interpolation key 'trainer.batchsize' not found "
    "(trainer.epochs).",
}
RANGES = {
    "trainer.epochs=0": "trainer.epochs=0 received. Expected at least 1.",
    "trainer.batch_size=-1": "trainer.batch_size=-1 received. Expected at least 1.",
    "seed=-1": "seed=-1 received. Expected at least 0.",
    "seed=2147483648": "seed=2147483648 received. Expected at most 2147483647.",
    "trainer.compile=of": "trainer.compile=of received. Did you mean 'off'? Expected one of: auto, on, off.",
    "trainer.precision=flaot16": "trainer.precision=flaot16 received. Did you mean 'float16'? Expected one of: "
    "float32, float16, bfloat16.",
    "trainer.monitor_mode=maximum": "trainer.monitor_mode=maximum received. Did you mean 'max'? "
    "Expected one of: max, min.",
    "trainer.class_weights=balancd": "trainer.class_weights=balancd received. Did you mean 'balanced'? Expected null, "
    "balanced, or for each class a weight of at least 0, such as {0:2.0}.",
    "trainer.class_weights={3:-1}": "trainer.class_weights={3:-1} received. Expected a weight of at least 0, such as "
    "{0:2.0}.",
    "trainer.class_weights=[1,2]": "trainer.class_weights=[1,2] received. Expected null, balanced, or for each class a "
    "weight of at least 0, such as {0:2.0}.",
    "trainer.class_sampling={3:1}": "trainer.class_sampling={3:1} received. Expected a share above 0 and below 1, such "
    "as {0:0.5}.",
    "trainer.class_sampling={3:0}": "trainer.class_sampling={3:0} received. Expected a share above 0 and below 1, such "
    "as {0:0.5}.",
    "trainer.class_sampling=balanced trainer.classes_per_batch=8": "trainer.class_sampling=balanced and "
    "trainer.classes_per_batch=8 received: both say which classes a batch holds. Expected one, the other null.",
    "trainer.class_weights=balanced trainer.classes_per_batch=8": "trainer.class_weights=balanced received with "
    "trainer.classes_per_batch=8, which changes how often classes come: the weights would correct it a second time. "
    "Expected one of them, or weights by class.",
    "trainer.classes_per_batch=1": "trainer.classes_per_batch=1 received. Expected at least 2.",
    "trainer.batch_size=64 trainer.classes_per_batch=10": "trainer.batch_size=64 is no multiple of "
    "trainer.classes_per_batch=10. Expected equally many examples of each class: use trainer.batch_size=60 or "
    "trainer.batch_size=70, or another number of classes.",
    "trainer.batch_size=4 trainer.classes_per_batch=10": "trainer.batch_size=4 is no multiple of "
    "trainer.classes_per_batch=10. Expected equally many examples of each class: use trainer.batch_size=10, "
    "or another number of classes.",
    "trainer.accumulation_steps=0": "trainer.accumulation_steps=0 received. Expected at least 1.",
    "trainer.batch_size=64 trainer.accumulation_steps=3": "trainer.batch_size=64 is no multiple of "
    "trainer.accumulation_steps=3. Expected as many examples in each micro batch: use trainer.batch_size=63 or "
    "trainer.batch_size=66, or another number of steps.",
    "trainer.batch_size=2 trainer.accumulation_steps=3": "trainer.batch_size=2 is no multiple of "
    "trainer.accumulation_steps=3. Expected as many examples in each micro batch: use trainer.batch_size=3, "
    "or another number of steps.",
    **{
        f"trainer.batch_size=64 trainer.classes_per_batch={classes} trainer.accumulation_steps=4": "trainer."
        f"accumulation_steps=4 received with trainer.classes_per_batch={classes}. Expected whole classes, and at least "
        "two of them, in each micro batch: use fewer steps, or trainer.classes_per_batch=8 or another multiple of 4."
        for classes in (4, 2)
    },
    "trainer.replicas=0": "trainer.replicas=0 received. Expected at least 1.",
    "trainer.strategy=mirrored trainer.batch_size=64 trainer.replicas=3": "trainer.batch_size=64 is no multiple of "
    "trainer.replicas=3. Expected an equal part of the batch for each: use trainer.batch_size=63 or "
    "trainer.batch_size=66, or another number of replicas.",
    "trainer.strategy=mirrored trainer.batch_size=64 trainer.replicas=4 trainer.accumulation_steps=32": "trainer."
    "batch_size=64 is no multiple of trainer.replicas=4 times trainer.accumulation_steps=32. Expected an equal part of "
    "the batch for each: use trainer.batch_size=128, or another number of replicas.",
    "trainer.strategy=mirrored trainer.batch_size=64 trainer.replicas=4 trainer.classes_per_batch=4": "trainer."
    "replicas=4 received with trainer.classes_per_batch=4. Expected whole classes, and at least two of them, for each "
    "part of the batch: use fewer replicas, or trainer.classes_per_batch=8 or another multiple of 4.",
    "optimizer.gradient_accumulation_steps=4": "optimizer.gradient_accumulation_steps=4 received: hooks would update "
    "with every batch, the optimizer would not. Expected trainer.accumulation_steps=4 in its place, with the whole "
    "batch as trainer.batch_size.",
    "trainer.epochs=null": "Neither trainer.epochs nor trainer.steps is set. Expected one, such as trainer.epochs=20.",
    "trainer.steps=100": "trainer.epochs=60 and trainer.steps=100 are both set. "
    "Expected exactly one: add trainer.epochs=null or trainer.steps=null.",
    **{
        f"optimizer.learning_rate={value}": f"optimizer.learning_rate={value} received. "
        "Expected a number above 0, such as 0.001."
        for value in ("0", "-0.1", "nan", "inf", "null")
    },
    **{
        f"trainer.{name}={value}": f"trainer.{name}={value} received. Expected a finite number."
        for name in ("max_seconds", "worker_timeout")
        for value in ("nan", "inf")
    },
    **{
        f"trainer.{name}={limit + 1}": f"trainer.{name}={limit + 1} received. Expected at most {limit}."
        for name, limit in {"epochs": 10**9, "steps": 10**12, "threads": 4096}.items()
    },
    "plugins=[os]": "plugins holds 'os', a module of Python itself. Expected a package of your own.",
    "plugins=['a b']": "plugins holds 'a b'. Expected names of packages, such as plugins=[my_package].",
}
FLAGS = {
    "--steps 3": f"unrecognized arguments: --steps 3. {WITHOUT_FLAG}",
    "--cfg jobs": f"argument --cfg/-c: invalid choice: 'jobs' (choose from 'job', 'hydra', 'all'). {WITHOUT_FLAG}",
    "--resolve": "--resolve and --package show nothing alone. Expected --cfg job --resolve.",
    "--jobs 2": "--jobs belongs to a sweep. Expected -m beside it.",
    "--sweep there": "--sweep belongs to a sweep. Expected -m beside it.",
    "-m --jobs 0": "--jobs 0 received. Expected a whole number of at least 1.",
    "-m --jobs two": "--jobs two received. Expected a whole number of at least 1.",
    "-m --trials -3": "--trials -3 received. Expected a whole number of at least 1.",
    "-m --trials 1.5": "--trials 1.5 received. Expected a whole number of at least 1.",
    "-m --sweep": f"argument --sweep: expected one argument. {WITHOUT_FLAG}",
    "-m jobs=2": "'jobs=2' received. Expected -m --jobs 2.",
    "sweep=there": "'sweep=there' received. Expected -m --sweep there.",
    "-m --cfg job": "--cfg shows something and trains nothing. Expected it without -m and --run.",
    "--config-dir /no/such": "--config-dir /no/such does not exist. Expected a directory of configs.",
    "--config-name other": "--config-name other does not exist. Expected one of: train.",
    "data.path=a=b": f"'data.path=a=b' cannot be read (mismatched input '=' expecting <EOF>). {QUOTES}",
    "=3": f"'=3' cannot be read (the key is missing). {QUOTES}",
    "a[0]=3": f"'a[0]=3' cannot be read. {QUOTES}",
}
SWEEPS = {
    "recipe=bnn,prune": "'recipe=bnn,prune' lists several values. "
    "Expected -m to run them one by one, or a list: recipe=[bnn,prune].",
    "-m recipe=bnn,prun": "Unknown recipe 'prun'. Did you mean 'prune'? Expected one of: baseline, bnn, prune.",
    "-m recipe=bnn optimizer.learning_rate=0.1,abc": "optimizer.learning_rate=abc received. Expected a number or null.",
    "-m recipe=bnn seed=range(1,3,0)": "'seed=range(1,3,0)' cannot be listed: range() arg 3 must not be zero. "
    "Expected values such as seed=1,2,3.",
    "-m recipe=bnn seed=range(0,65)": "The sweep has more than 64 jobs. Expected at most that many: sweep in parts.",
    "-m recipe=bnn seed=range(0,9) trainer.batch_size=range(1,9)": "The sweep has more than 64 jobs. "
    "Expected at most that many: sweep in parts.",
    "-m recipe=bnn seed=interval(0,1)": "'seed=interval(0,1)' is an interval. "
    "Expected values that can be listed, such as seed=1,2,3, or --trials <number> to search it.",
    "-m recipe=glob(x*)": "'recipe=glob(x*)' stands for no value. Expected at least one.",
}
WITH_RECIPE = {**GROUPS, **KEYS, **HOOK_KEYS, **AUGMENT_KEYS, **TYPES, **RANGES, **FLAGS}


def message(arguments: list[str], tree: Path) -> str:
    with pytest.raises(UserError) as caught:
        preflight(parse_command(arguments), tree)
    return str(caught.value)


@pytest.mark.parametrize("line", RECIPES)
def test_recipe_mistakes_are_named(line: str, tree: Path) -> None:
    assert message(line.split(), tree) == RECIPES[line]


@pytest.mark.parametrize("line", SWEEPS)
def test_sweep_mistakes_are_named(line: str, tree: Path) -> None:
    assert message(line.split(), tree) == SWEEPS[line]


@pytest.mark.parametrize("line", WITH_RECIPE)
def test_mistakes_are_named(line: str, tree: Path) -> None:
    text = WITH_RECIPE[line]
    if line in FLAGS and not line.startswith(("--config", "data", "=3", "a[0]")):
        with pytest.raises(UserError) as caught:
            parse_command(["recipe=bnn", *line.split()])
        assert str(caught.value) == text
    else:
        arguments = [line] if any(sign in line for sign in "{'") and "model" not in line else line.split()
        assert message(["recipe=bnn", *arguments], tree) == text


def test_every_message_is_one_line() -> None:
    assert all("\n" not in text for text in {**RECIPES, **SWEEPS, **WITH_RECIPE}.values())


def test_targets_outside_the_allowed_places_are_refused_before_anything_is_imported(tree: Path) -> None:
    arguments = ["recipe=bnn", "+hooks.x={_target_: os.system, command: ls}"]
    assert message(arguments, tree) == "_target_=os.system is not allowed: it builds no part of a run."
    nested = ["recipe=bnn", "hooks.bnn_rounding.quantizer={_target_: mine.Net}"]
    assert message(nested, tree) == (
        "_target_=mine.Net is not allowed. Expected an import path within one of: recipes, hooks, trainer, keras. "
        "If you trust it, add plugins=[mine]."
    )


def test_a_recipe_file_without_its_package_line_is_explained(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "broken.yaml").write_text("trainer: {epochs: 3}\n")
    text = message(["recipe=broken", "--config-dir", str(tmp_path)], tree)
    assert "A recipe file must begin with '# @package _global_'" in text
    assert "\n" not in text


def test_a_typo_in_a_config_file_is_an_error(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "broken.yaml").write_text("# @package _global_\ntrainer: {epoch: 3}\n")
    text = message(["recipe=broken", "--config-dir", str(tmp_path)], tree)
    assert "Key 'epoch' not in 'TrainerConfig'" in text


def test_a_hook_file_without_a_target_is_an_error(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks" / "empty.yaml").write_text("empty: {every: 3}\n")
    assert message(["recipe=bnn", "+hooks=empty", "--config-dir", str(tmp_path)], tree) == (
        "hooks.empty has no _target_. Expected hooks.empty._target_=<import path of what it builds>."
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"sead": 1}, "The config is wrong: Key 'sead' not in 'TrainConfig' (sead)."),
        (
            {"trainer": {"stepz": 1}},
            "The config is wrong: Key 'stepz' not in 'TrainerConfig' (trainer.stepz).",
        ),
        (
            {"seed": "one"},
            "The config is wrong: Value 'one' of type 'str' could not be converted to Integer (seed).",
        ),
        ({"data": {"path": "???"}}, "data.path has no value. Expected data.path=<value>."),
    ],
)
def test_what_was_added_to_the_composed_config_is_checked_against_a_fresh_schema(
    change: dict[str, Any], text: str
) -> None:
    with pytest.raises(UserError) as caught:
        typed(change)
    assert str(caught.value) == text


def test_nothing_is_created(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    message(["recipe=bnn", "trainer.stepz=3"], tree)
    message(["recipe=bnn", "run_dir=made", "trainer.epochs=0"], tree)
    preflight(parse_command(["recipe=bnn", "run_dir=made"]), tree)
    assert list(tmp_path.iterdir()) == []


def test_checking_needs_neither_tensorflow_nor_keras() -> None:
    code = (
        "import sys\n"
        "from trainer.config.command import parse_command\n"
        "from trainer.config.preflight import preflight\n"
        "preflight(parse_command(['recipe=bnn']))\n"
        "assert not {'tensorflow', 'keras', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).resolve().parents[2])
