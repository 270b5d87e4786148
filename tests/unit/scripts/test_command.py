"""What the scripts share: arguments, exit codes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from scripts.command import parse_options, run_command
from trainer.errors import UserError


@dataclass
class Options:
    run: str = ""
    shares: list[float] | None = None
    layers: str = "*"


def test_values_are_read_as_yaml_but_for_texts():
    options = parse_options(["run=1e3", "shares=[0.5,1]", "layers=*"], Options, texts=("run",))
    assert options == Options("1e3", [0.5, 1], "*")
    assert parse_options([], Options, texts=()) == Options()
    assert parse_options(["run=a=b"], Options, texts=("run",)).run == "a=b"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rn=a"], "Unknown option 'rn'. Did you mean 'run'? Expected one of: layers, run, shares."),
        (["run"], "'run' received. Expected run=<value>, once."),
        (["run=a", "run=b"], "'run=b' received. Expected run=<value>, once."),
        (["shares=[0.5"], "'shares=[0.5' is no value. Expected such as shares=<value>; see --help."),
    ],
)
def test_a_wrong_argument_is_one_line(arguments: list[str], message: str):
    with pytest.raises(UserError) as caught:
        parse_options(arguments, Options, texts=("run",))
    assert str(caught.value) == message


def refuse(arguments) -> None:
    raise UserError(f"no {arguments}")


def interrupt(arguments) -> None:
    raise KeyboardInterrupt


def test_exit_codes_are_those_of_the_door(capsys):
    assert run_command(["run=a"], "usage", lambda arguments: None) == 0
    assert run_command(["run=a"], "usage", refuse) == 2
    assert run_command(["run=a"], "usage", interrupt) == 130
    assert capsys.readouterr().err == "Error: no ['run=a']\nInterrupted.\n"


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_runs_nothing(flag: str, capsys):
    assert run_command(["run=a", flag], "usage of it", refuse) == 0
    assert capsys.readouterr().out == "usage of it\n"


def test_a_fault_of_the_program_keeps_its_traceback():
    with pytest.raises(IndexError):
        run_command([], "usage", lambda arguments: arguments[0] and None)
