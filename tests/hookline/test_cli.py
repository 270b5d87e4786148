"""The console command: every subcommand is a script, mistakes take one line, and help needs no TensorFlow."""

import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser

import hookline
from hookline import cli
from hookline.scripts.sweep.open import resumed_path
from hookline.trainer import errors
from hookline.trainer.config import parts
from hookline.trainer.config.command import parse_command
from hookline.trainer.errors import UserError, as_typed
from tests.support.refusals import assert_one_line
from tests.support.workers import ROOT, run_python

PROJECT_ONLY = {"benchmark", "catalogue", "kill_runs", "reproduce"}
"""Scripts for developing the project itself, which are not installed."""
FRAMEWORKS = "{'tensorflow', 'keras', 'jax', 'torch', 'sklearn', 'matplotlib'}"


def in_a_process(code, *arguments, cwd):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return run_python("-P", "-c", code, *arguments, cwd=cwd, env=environment, timeout=120)[0]


def test_every_user_script_has_a_subcommand():
    scripts = {path.stem for path in (ROOT / "scripts").glob("*.py") if "\nmain = " in path.read_text()}
    scripts |= {path.stem for path in (ROOT / "scripts").glob("*.py") if "\ndef main(" in path.read_text()}
    named = {module.rpartition(".")[2] for module, _ in cli.SUBCOMMANDS.values()}
    assert named == scripts - PROJECT_ONLY | {"train"}


def test_importing_is_quick_and_imports_no_framework(tmp_path):
    code = f"""
import sys, time
began = time.process_time()
import hookline
took = time.process_time() - began
assert took < 0.2, took
assert {{"RunResult", "run"}} <= set(dir(hookline))
assert not {FRAMEWORKS} & set(sys.modules)
assert len([name for name in sys.modules if name.startswith("hookline")]) == 1
assert "Prune" in dir(hookline.hooks)
assert hookline.hooks.catalogue
assert hookline.__version__
assert not {FRAMEWORKS} & set(sys.modules)
"""
    in_a_process(code, cwd=tmp_path)


def test_help_of_every_subcommand_imports_no_framework(tmp_path):
    code = f"""
import sys
from hookline import cli
for name in sorted(cli.SUBCOMMANDS, key=lambda name: name != "train"):
    print("==", name, flush=True)
    assert cli.main([name, "--help"]) == 0
    assert name != "train" or not {{"numpy", "hydra", "omegaconf", "yaml"}} & set(sys.modules)
assert not {FRAMEWORKS} & set(sys.modules), {FRAMEWORKS} & set(sys.modules)
"""
    found = in_a_process(code, cwd=tmp_path)
    parts = {part.split()[0]: part for part in found.split("== ")[1:]}
    assert set(parts) == set(cli.SUBCOMMANDS)
    for name, text in parts.items():
        assert len(text.splitlines()) > 4, name
    assert not list(tmp_path.iterdir())


def test_top_level_help_and_version(capsys, monkeypatch):
    for arguments in ([], ["--help"], ["-h"], ["help"]):
        assert cli.main(arguments) == 0
        lines = capsys.readouterr().out.partition("Commands\n")[2].partition("\n\n")[0].splitlines()
        assert [line.split()[0] for line in lines] == list(cli.SUBCOMMANDS)
    assert cli.main(["--version"]) == 0
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert capsys.readouterr().out == f"hookline {declared}\n" == f"hookline {hookline.__version__}\n"
    monkeypatch.setattr(parts, "IS_CLONE", False)
    assert parts.own_version() == metadata.version("hookline")


MISTAKES = {
    "trian recipe=bnn": "Unknown command 'trian'. Did you mean 'train'?",
    "check_gradients": "Did you mean 'check-gradients'?",
    "recipe=bnn": "Expected a command first: hookline train recipe=bnn.",
    "--verison": "Unknown option '--verison'.",
    "resume": "No run was given. Expected its directory",
    "resume nowhere": "resume=nowhere",
    "train recipe=bn": "Did you mean 'bnn'?",
    "export": "No run was given.",
    "--completion bsh": "Did you mean 'bash'?",
}


def test_mistake_exits_with_code_2_and_one_line(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments, said in MISTAKES.items():
        assert_one_line(cli.main, arguments.split(), said, capsys)


def test_resume_quotes_any_directory_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    odd = ("runs/\\' back\\slash end\\", "{l\u00e9on: [1]}")
    for name in ("runs/first", "runs/a b", "runs/it's", "runs/a=b,c", "runs/[x]", "runs/back\\", *odd):
        (tmp_path / name).mkdir(parents=True)
        override, other = cli.resume_arguments([name, "trainer.max_seconds=null"])
        assert other == "trainer.max_seconds=null"
        (parsed,) = OverridesParser.create().parse_overrides([override])
        assert (parsed.key_or_group, str(parsed.value())) == ("resume", name)
        assert parse_command([override]).overrides == (override,)
        assert cli.resume_arguments([override]) == [override]
    assert resumed_path(cli.resume_arguments(["runs/a b"])) == "runs/a b"
    assert resumed_path(["resume=null"]) is None


def test_messages_name_commands_as_users_type_them(monkeypatch):
    texts = {
        "Resume with: python train.py resume=runs/a": "Resume with: hookline train resume=runs/a",
        "python scripts/check_gradients.py recipe=x": "hookline check-gradients recipe=x",
        "with all that train.py takes": "with all that hookline train takes",
        "runs/train.py and my_scripts/export.py stay": "runs/train.py and my_scripts/export.py stay",
        "python -m pip install -e '.[onnx]', in a clone of this project.": "python -m pip install 'hookline[onnx]'.",
    }
    assert all(as_typed(text) == text for text in texts), "in a clone"
    here = Path(sys.executable).parent
    with monkeypatch.context() as patch:  # an environment that is not active
        patch.setenv("PATH", "")
        patch.chdir(here.parents[1])
        place = here.relative_to(here.parents[1])
        assert as_typed("Resume: python train.py resume=x") == f"Resume: {place / 'python'} train.py resume=x"
        assert as_typed("tensorboard --logdir runs") == f"{place / 'tensorboard'} --logdir runs"
        assert as_typed("python -m pip install x") == f"{place / 'python'} -m pip install x"
        assert as_typed("my_python train.py and python stay") == "my_python train.py and python stay"
    monkeypatch.setattr(errors, "IS_CLONE", False)
    assert [as_typed(text) for text in texts] == list(texts.values())
    assert str(UserError("See python train.py --help.")) == "See hookline train --help."


COMPLETE = """
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
compopt() { :; }
_hookline
echo "${COMPREPLY[*]}"
"""


def test_bash_completes_commands_and_names():
    script = cli.completion_text(["bash"]) + COMPLETE
    for words, expected in {
        "pl": "plan",
        "train rec": "recipe=",
        "train recipe = bn": "bnn",
        "train data = digi": "digits",
        "train +hooks = pru": "prune",
        "train seed = 1": "",
    }.items():
        command = ["bash", "-c", script, "bash", "hookline", *words.split()]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert (done.stdout.strip(), done.stderr) == (expected, "")
