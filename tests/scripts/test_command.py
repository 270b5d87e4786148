"""What the scripts share: arguments, exit codes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from hookline.scripts.command import make_main, parse_options, run_command
from hookline.trainer.errors import UserError


@dataclass
class Options:
    run: str = ""
    shares: list[float] | None = None
    layers: str = "*"


def test_values_are_read_as_yaml_but_for_texts():
    options = parse_options(["run=1e3", "shares=[0.5,1]", "layers=*"], Options, texts=("run",))
    assert options == Options("1e3", [0.5, 1], "*")
    assert parse_options(["run=a=b"], Options, texts=("run",)).run == "a=b"
    for arguments, word in (
        (["rn=a"], "'run'"),
        (["run"], "once"),
        (["run=a", "run=b"], "once"),
        (["shares=[0.5"], "value"),
    ):
        with pytest.raises(UserError, match=word):
            parse_options(arguments, Options, texts=("run",))


def refuse(arguments) -> None:
    raise UserError(f"no {arguments}")


def interrupt(arguments) -> None:
    raise KeyboardInterrupt


def test_exit_codes_are_those_of_the_door(capsys, monkeypatch):
    assert run_command(["run=a"], "usage", lambda arguments: None) == 0
    assert run_command(["run=a"], "usage", refuse) == 2
    assert run_command(["run=a"], "usage", interrupt) == 130
    assert capsys.readouterr().err == "Error: no ['run=a']\nInterrupted.\n"
    assert run_command(["run=a", "--help"], "usage of it", refuse) == 0
    assert capsys.readouterr().out == "usage of it\n"
    with pytest.raises(IndexError):  # a fault of the program keeps its traceback
        run_command([], "usage", lambda arguments: arguments[0] and None)
    assert make_main("usage", lambda arguments: [*arguments, "parsed"], len)(["a", "b"]) == 3
    assert make_main("usage", list, lambda options: None)(["a"]) == 0
    monkeypatch.setattr("sys.argv", ["script.py", "a", "b"])
    assert make_main("usage", list, len)() == 2


def test_a_traceback_is_shown_where_the_arguments_ask_for_it(monkeypatch, capsys):
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    main = make_main("usage", refuse, print, debug=lambda arguments: "debug=true" in arguments)
    for argument, shown in (("debug=true", True), ("debug=false", False)):
        assert main([argument]) == 2
        assert ("Traceback" in capsys.readouterr().err) is shown
