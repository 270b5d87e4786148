"""The test of documented commands finds what is wrong on a page, and tells where it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.documentation import Block, Command, DocumentationError, Part, parts, read_page
from tests.support.documented import NOT_RUN, reason_not_to_run, shortened
from tests.support.documented_runs import TRACEBACK, _judge, check_page, not_shown, run_here

PAGE = "some/README.md"


def fence(*lines: str, language: str = "") -> str:
    return "\n".join(["# Title", "", f"```{language}", *lines, "```", ""])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def wrong(text: str, place: Path) -> str:
    (failure,) = check_page(list(read_page(PAGE, text)), place)
    return failure


def test_commands_are_read_whole_with_their_lines_and_without_comments() -> None:
    text = fence("a b   # first", "", "c \\", "    d 'x # y' \\", "    e  # third", "# only a comment", language="sh")
    assert list(read_page(PAGE, text)) == [Command(PAGE, 4, "a b"), Command(PAGE, 6, "c d 'x # y' e")]
    assert list(read_page(PAGE, "Text:\n\n    a b\n\n- item\n\n    not a command\n")) == [Command(PAGE, 3, "a b")]
    assert list(read_page(PAGE, fence("batch(step)   a drawing"))) == []
    assert list(read_page(PAGE, fence("graph", language="mermaid"))) == []


def test_what_a_page_shows_below_a_command_is_its_output() -> None:
    (command,) = read_page(PAGE, fence("$ a b", "  one", "two ...", language="console"))
    assert command == Command(PAGE, 4, "a b", ("  one", "two ..."))
    assert not_shown("zero\none\nx\ntwo 2.5 s\n", command.output) is None
    assert not_shown("two 2.5 s\none\n", command.output) == "two ...", "in another order"
    assert not_shown("one\n", command.output) == "two ..."


def test_a_loop_over_words_gives_its_commands_once_for_each() -> None:
    lines = ("a $seed", "for seed in 0 12; do", "    b x=$seed ${seed}_1 $seeds", "    c $other", "done", "d")
    texts = [(each.line, each.text) for each in read_page(PAGE, fence(*lines))]
    rounds = [[(6, f"b x={seed} {seed}_1 $seeds"), (7, "c $other")] for seed in (0, 12)]
    assert texts == [(4, "a $seed"), *rounds[0], *rounds[1], (9, "d")]
    for wrong_lines in (lines[:4], [*lines[:2], *lines[1:]]):
        with pytest.raises(DocumentationError, match="loop"):
            list(read_page(PAGE, fence(*wrong_lines)))


def test_a_block_of_python_has_the_name_that_its_first_line_gives_it() -> None:
    (block,) = read_page(PAGE, fence("# my_hooks.py", "x = 1", language="python"))
    assert isinstance(block, Block)
    assert (block.file_name, block.place) == ("my_hooks.py", f"{PAGE}:4")


def test_a_line_of_shell_is_taken_apart() -> None:
    command = Command(PAGE, 1, "")
    assert parts(command, "A=1 B='2 3' python x.py 'k=tag(a, b)' && sh y.sh > z.txt") == [
        Part(("python", "x.py", "k=tag(a, b)"), (("A", "1"), ("B", "2 3"))),
        Part(("sh", "y.sh"), (), "&&", "z.txt"),
    ]
    for text in ("a || b", "a & b", "a (b", "a 'b"):
        with pytest.raises(DocumentationError, match=f"{PAGE}:1"):
            parts(command, text)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("python train.py recipe=bn", "UserError: Unknown recipe 'bn'. Did you mean 'bnn'?"),
        ("python train.py recipe=bnn hooks.early_stoping=null", "Did you mean 'early_stopping'?"),
        ("python train.py -m recipe=bnn,baselin seed=1,2", "Did you mean 'baseline'?"),
        ("python train.py -m --sweep runs/sweeps/none", "runs/sweeps/none is no sweep yet"),
        ("python train.py recipe=bnn --jobs 2", "--jobs belongs to a sweep"),
        ("python train.py resume=runs/none", "runs/none has no config.yaml"),
        ("srun python train.py recipe=bnn trainer.strategy=multi", "trainer.strategy=multi received. Expected one of"),
        ("python scripts/export.py run=runs/bnn/<date_time> formt=packed", "Did you mean 'format'?"),
        ("python scripts/exprt.py run=runs/bnn/<date_time>", "No module named 'scripts.exprt'"),
        ("python scripts/launch.py workers=0 recipe=bnn", "workers=0 received"),
        ("python scripts/submit.py recipe=bnn,bn seed=0", "Did you mean 'bnn'?"),
        ("python scripts/ablate.py recipe=frozen_mas", "Did you mean 'frozen_mask'?"),
        ("python scripts/check_gradients.py recipe=bn", "Did you mean 'bnn'?"),
        ("python scripts/plan.py recipe=bnn --mermaidd", "--mermaidd"),
        ("python train.py recipe=bnn plugins=[their_hooks]", "there is no module 'their_hooks'"),
        ("python -m pytest tests/unit/test_none.py", "there is no tests/unit/test_none.py"),
        ("python -m pip install '.[serch]'", "there is no extra 'serch'"),
        ("python -m black .", "'python -m black' is no program that is known here"),
        ("tensorboard --logdri runs", "tensorboard --logdri is not known here"),
        ("sh scripts/none.sh", "CalledProcessError"),
        ("make all", "'make all' is no program that is known here"),
        ("train.py recipe=bnn", "'train.py recipe=bnn' is no program that is known here"),
        ("python train.py recipe=bnn run_dir=<place>", "nothing stands for <place>"),
    ],
)
def test_a_wrong_command_is_told_with_its_place(command: str, told: str, place: Path) -> None:
    failure = wrong(fence(command), place)
    assert failure.startswith(f"{PAGE}:4: {command}\n  ")
    assert told in failure


def test_a_run_that_a_command_above_makes_may_be_gone_on_with(place: Path) -> None:
    text = fence("python train.py recipe=bnn run_dir=runs/mine", "python train.py resume=runs/mine")
    assert check_page(list(read_page(PAGE, text)), place) == []


def test_of_several_commands_the_wrong_ones_are_told(place: Path) -> None:
    text = fence("python train.py recipe=bnn seed=1", "python train.py recipe=bnn sed=1", "python train.py recipe=gann")
    failures = check_page(list(read_page(PAGE, text)), place)
    assert [failure.partition(": ")[0] for failure in failures] == [f"{PAGE}:5", f"{PAGE}:6"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (fence("x = (", language="python"), "SyntaxError"),
        (fence("a: [", language="yaml"), "ParserError"),
        (fence("a = ", language="toml"), "TOMLDecodeError"),
        (fence("{a}", language="json"), "JSONDecodeError"),
    ],
)
def test_a_block_that_cannot_be_read_is_told(text: str, told: str, place: Path) -> None:
    assert told in wrong(text, place)


@pytest.mark.parametrize("text", [fence("x", language="ruby"), "```\npython train.py\n"])
def test_a_fence_of_an_unknown_kind_is_an_error(text: str) -> None:
    with pytest.raises(DocumentationError, match=f"{PAGE}:"):
        list(read_page(PAGE, text))


def test_what_fails_when_it_runs_is_told_with_its_last_lines(place: Path) -> None:
    text = fence("# mine.py", "width = heigth", language="python") + fence(
        "python scripts/compare.py runs/none", "python scripts/compare.py --help"
    )
    count, failures = run_here(list(read_page(PAGE, text)), place)
    assert count == 3
    assert [failure.partition("\n")[0] for failure in failures] == [
        f"{PAGE}:4: a block of python",
        f"{PAGE}:10: python scripts/compare.py runs/none",
    ]
    assert "NameError: name 'heigth' is not defined" in failures[0]
    assert "exit code 2; it ends with\n    Error: " in failures[1]


def test_a_traceback_and_an_output_that_differs_are_told() -> None:
    command = Command(PAGE, 1, "a", ("accuracy 0.9",))
    with pytest.raises(DocumentationError, match="exit code 0; it ends with"):
        _judge(command, "a", 0, f"{TRACEBACK}\n", ())
    with pytest.raises(DocumentationError, match="lacks the line that is shown: accuracy 0.9"):
        _judge(command, "a", 0, "accuracy 0.8\n", command.output)
    _judge(command, "a", 0, "  accuracy   0.9\n", command.output)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("train.py recipe=bnn trainer.epochs=30", "train.py recipe=bnn trainer.epochs=null trainer.steps=2"),
        ("train.py recipe=bnn --cfg job --resolve", "train.py recipe=bnn --cfg job --resolve"),
        ("train.py resume=runs/a", "train.py resume=runs/a"),
        ("train.py -m --sweep runs/a", "train.py -m --sweep runs/a"),
        (
            "train.py -m recipe=bnn --trials 20 model.units=[2],[3] seed=1,2,3",
            "train.py -m recipe=bnn --trials 2 model.units=[2],[3] seed=1,2 trainer.epochs=null trainer.steps=2",
        ),
        (
            "train.py recipe=frozen_mask trainer.epochs=30 hooks.prune.end_epoch=8",
            "train.py recipe=frozen_mask trainer.epochs=30 hooks.prune.end_epoch=8 trainer.max_seconds=0",
        ),
        (
            "train.py recipe=bnn data=mnist",
            "train.py recipe=bnn data=mnist data.path=mnist.npz data.validation_size=100 trainer.epochs=null "
            "trainer.steps=2",
        ),
        ("scripts/kill_runs.py out=kills kills=100", "scripts/kill_runs.py out=kills kills=1 recipes=[bnn]"),
        ("scripts/export.py run=runs/a", "scripts/export.py run=runs/a"),
        ("scripts/export.py run=runs/a codebook=5", "scripts/export.py run=runs/a codebook=5 tolerance=1"),
        ("scripts/reproduce.py only=bnn mnist=mnist.npz", "scripts/reproduce.py only=bnn mnist=mnist.npz --list"),
        ("scripts/reproduce.py --render", "scripts/reproduce.py --render"),
    ],
)
def test_what_is_run_is_short(words: str, expected: str) -> None:
    assert shortened(Part((".venv/bin/python", *words.split()))).words == ("python", *expected.split())


def test_what_is_not_run_has_a_reason() -> None:
    assert all(len(reason) > 10 for reason in NOT_RUN.values())
    assert reason_not_to_run(Part(("srun", "python", "train.py"))) == NOT_RUN["srun",]
    assert reason_not_to_run(Part((".venv/bin/python", "-m", "pytest"))) == NOT_RUN["python", "-m", "pytest"]
    assert reason_not_to_run(Part(("python", "train.py"))) is None
    assert reason_not_to_run(Part(("make",))) is None, "it is run, and so found"
