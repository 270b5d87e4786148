"""What the scripts share: arguments, exit codes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from scripts.command import make_main, parse_options, run_command
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


def test_a_main_parses_and_passes_on_what_the_command_returns(capsys):
    main = make_main("usage", lambda arguments: [*arguments, "parsed"], lambda options: len(options))
    assert main(["a", "b"]) == 3
    assert make_main("usage", list, lambda options: None)(["a"]) == 0
    assert make_main("usage", refuse, print)(["a"]) == 2
    assert make_main("usage of it", refuse, print)(["--help"]) == 0
    assert capsys.readouterr() == ("usage of it\n", "Error: no ['a']\n")


def test_a_main_takes_the_arguments_of_the_process(monkeypatch):
    monkeypatch.setattr("sys.argv", ["script.py", "a", "b"])
    assert make_main("usage", list, len)() == 2


def test_a_traceback_is_shown_where_the_arguments_ask_for_it(monkeypatch, capsys):
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    main = make_main("usage", refuse, print, debug=lambda arguments: "debug=true" in arguments)
    assert main(["debug=true"]) == 2
    assert "Traceback" in capsys.readouterr().err
    assert main(["debug=false"]) == 2
    assert "Traceback" not in capsys.readouterr().err
