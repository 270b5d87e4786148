"""What the scripts share: arguments, exit codes, and one-line errors for paths that do not exist, however odd."""

import importlib
import os
import signal
from dataclasses import dataclass, field
from typing import Literal

import pytest

from hookline.scripts.command import make_main, parse_options, parse_seeds
from hookline.trainer.errors import UserError
from tests.support.refusals import assert_one_line, assert_refused


@dataclass
class Options:
    run: str
    shares: list[float] | None = None
    layers: str | list[str] = "*"
    count: int = 1
    force: bool = False
    split: Literal["train", "test"] | None = None
    limit: float | None = 0.5
    own: list[str] = field(default_factory=list, init=False)


def test_values_are_parsed_according_to_annotations():
    given = ["run=1e3", "shares=[0.5,1]", "layers=*", "count=3", "force=true", "split=test", "limit=2"]
    assert parse_options(given, Options) == Options("1e3", [0.5, 1], "*", 3, True, "test", 2)
    assert parse_options(["run=a=b", "layers=[a]", "limit=null"], Options) == Options("a=b", layers=["a"], limit=None)
    for arguments, word in (
        ([], "No run"),
        (["run="], "No run"),
        (["rn=a"], "'run'"),
        (["own=[a]"], "'own'"),
        (["run"], "once"),
        (["run=a", "run=b"], "once"),
        (["shares=[0.5"], "is not valid YAML"),
        (["layers=2024-13-45"], "is not valid YAML"),
        (["shares=[0.5,true]"], "Invalid shares"),
        (["shares=[.inf]"], "Invalid shares"),
        (["layers=[1]"], "Invalid layers"),
        (["count=0"], "Invalid count: 0"),
        (["count=true"], "Invalid count: True"),
        (["force=1"], "true or false"),
        (["split=tets"], "'test'"),
        (["limit=-1"], "Invalid limit"),
        (["limit=true"], "Invalid limit"),
    ):
        assert_refused(word, parse_options, arguments, Options)
    assert parse_seeds("[0, 12]") == (0, 12)
    for text in ("1,01", "", "-1", "1,,2"):
        assert_refused("different whole numbers", parse_seeds, text)


def refuse(arguments) -> None:
    raise UserError(f"no {arguments}")


def interrupt(arguments) -> None:
    raise KeyboardInterrupt


def test_exit_codes_for_success_user_errors_and_signals(capsys, monkeypatch):
    assert make_main("usage", list, lambda options: None)(["a"]) == 0
    assert make_main("usage", refuse, print)(["run=a"]) == 2
    assert make_main("usage", list, interrupt)(["run=a"]) == 130
    assert make_main("usage", list, lambda options: os.kill(os.getpid(), signal.SIGTERM))([]) == 143
    assert capsys.readouterr().err == "Error: no ['run=a']\nInterrupted.\nEnded by SIGTERM.\n"
    assert make_main("usage of it", refuse, print)(["run=a", "--help"]) == 0
    assert capsys.readouterr().out == "usage of it\n"
    with pytest.raises(IndexError):  # a bug in the program keeps its traceback
        make_main("usage", list, lambda options: options[0] and None)([])
    assert make_main("usage", lambda arguments: [*arguments, "parsed"], len)(["a", "b"]) == 3
    monkeypatch.setattr("sys.argv", ["script.py", "a", "b"])
    assert make_main("usage", list, len)() == 2


PATHS = ("~no-such-user/x", "a" * 300, "nowhere/at/all")
OPTIONS = {
    "benchmark": ["what=training chart={}/a.png", "what=training out={}/a.json"],
    "compare": ["{}", "{} metrics=[{}]"],
    "evaluate": ["run={}", "model={}"],
    "export": ["run={}"],
    "predict": ["model={}.keras images={}.npy", "model={}.packed.safetensors images={}.npy"],
    "reproduce": ["mnist={}", "targets={}"],
    "sensitivity": ["run={}"],
    "verify": ["run={}"],
}


@pytest.mark.parametrize("script", OPTIONS)
def test_bad_path_is_reported_in_one_line_and_nothing_is_written(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for arguments in OPTIONS[script]:
        for path in PATHS:
            main = importlib.import_module(f"scripts.{script}").main
            assert_one_line(main, arguments.replace("{}", path).split(), path, capsys)
            assert not list(tmp_path.iterdir())
