"""The catalogue of hooks: the description of each hook, and the page generated from them."""

import shlex

import pytest

from hookline import hooks
from hookline.scripts.catalogue import PAGE
from hookline.scripts.documentation.description import describe_hooks, find_gaps, make_page
from hookline.trainer.config.command import parse_command
from hookline.trainer.config.preflight import preflight_each

DEFAULTS = [
    *("fused_batch_norm", "nan_guard", "randomness_guard", "advisor", "progress", "tensorboard", "pictures"),
    *("projector", "metrics_jsonl", "checkpoint", "early_stopping", "final_table"),
]


@pytest.fixture(scope="module")
def described():
    return describe_hooks()


def test_catalogue_page_is_up_to_date_and_covers_every_hook(described):
    assert [gap for hook in described for gap in find_gaps(hook)] == []
    assert PAGE.read_text() == make_page(described), "run python scripts/catalogue.py"
    names = {path.stem for path in hooks.CONFIG_DIRECTORY.glob("*.yaml")} - {"default"}
    assert {hook.name for hook in described} == names
    assert {hook.name for hook in described if hook.is_default} == set(DEFAULTS)


def test_every_example_composes_and_concerns_its_hook(described):
    sections = {hook.name: hook.docstring.sections["Example"].replace("\\\n", "") for hook in described}
    examples = [(name, shlex.split(command)) for name, text in sections.items() for command in text.splitlines()]
    assert {tuple(words[:2]) for _, words in examples} == {("python", "train.py")}
    examples = [(name, words) for name, words in examples if "-m" not in words]  # a search composes its own jobs
    jobs = preflight_each(parse_command([]), [words[2:] for _, words in examples])
    for (name, words), job in zip(examples, jobs, strict=True):
        assert (name in job.config["hooks"]) is not (f"hooks.{name}=null" in words), words
