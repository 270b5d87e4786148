"""What the site's page of a technique has beside the catalogue: Python, a picture, recipes and their results."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

WIDE = "---\nhide: [toc]\n---"
"""What gives a page the room of its list of contents."""
IDEA = 2
"""How many paragraphs of a docstring come before the commands: the summary and what follows it."""
HEAD = re.compile(r"^# (?:(Paper|Command|Expected|Your own): )?(.*(?:\n#   .*)*)", re.MULTILINE)
PICTURED = {
    "bnn_rounding": "Forward and backward function of the quantizers, as the code computes them.",
    "prune": "Sparsity over the steps of a run, with the masks updated at every step.",
    "incremental_quantization": "Weights rounded to powers of two with 3 bits, as the code computes them.",
    "quantization_aware_training": "Weights and activations rounded to 3 bits, as the code computes them.",
    "weight_clustering": "Weights, and the centroids that replace them in the forward pass.",
    "gradient_override": "The gradient below a layer y = x, for a gradient of 1 above it, in the range of x.",
    "bernoulli_attention": "The keep-rate penalty, by the mean of the attention map.",
    "ema": "The decay over the first steps, with the warm-up.",
    "bop": "A noisy gradient averaged over steps, and the weight that the average flips.",
    "distillation": "Targets that one set of logits gives at several temperatures.",
    "freeze_layers": "A weight under Adam that freezes, and one whose gradient becomes zero.",
    "frozen_mask": "A weight under Adam that freezes, and one whose gradient becomes zero.",
    "retrieval": "The loss of one triplet.",
    "gan": "The losses by the discriminator's score.",
    "sgan": "The losses by the discriminator's score.",
}
"""Techniques with a picture, which `pictures.py` draws, and what it shows."""
DRAWN = {"center_loss": ("tensorboard_center_loss.png", "Features of a run with the centers of their classes.")}
"""Techniques whose picture is one of the repository's."""
WITHOUT_HOOK = {"retrieval": "retrieval", "gan": "gan", "sgan": "gan"}
"""Recipes that are a technique without being a hook, with a task of their name, and its module."""


class RecipeFile(NamedTuple):
    """What the first lines of a recipe's config say."""

    name: str
    purpose: str
    paper: str
    command: str
    expected: str
    text: str  # the whole file


def recipe_files(root: Path) -> list[RecipeFile]:
    """Return all recipes, in alphabetical order."""
    found = []
    for path in sorted((root / "configs" / "recipe").glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        lines = [(key, re.sub(r"\n#\s+", " ", value)) for key, value in HEAD.findall(text.partition("defaults:")[0])]
        purpose = next(value for key, value in lines if not key and not value.startswith("@"))
        paper, command, expected = (dict(lines).get(key, "") for key in ("Paper", "Command", "Expected"))
        found.append(RecipeFile(path.stem, purpose, paper, command, expected, text))
    return found


def complete_page(name: str, text: str, root: Path) -> str:
    """Return the page of a hook: idea, commands, Python, equation, picture, details, recipes, results, and the rest."""
    head, facts, rest = text.partition("\n\n| | |\n| --- | --- |\n| class |")  # the table of facts
    start, equation, formula = head.partition("\n**Equation**")
    if not facts or not equation:
        return text
    words, _, commands = start.partition("\n\n```\n")
    title, *paragraphs = [each.strip() for each in re.split(r"\n{2,}", words)]
    recipes = [each for each in recipe_files(root) if re.search(rf"^ *- /hooks/{name}\b", each.text, re.MULTILINE)]
    recipes = [each for each in recipes if each.name not in WITHOUT_HOOK]  # they use a hook that is not their point
    parts = [WIDE, title, *paragraphs[:IDEA], f"```\n{commands.rstrip()}", _python(name, text)]
    parts += [f"**Equation**{formula}", _picture(name), *paragraphs[IDEA:], *map(_recipe, recipes)]
    parts += [_results(root, {each.name for each in recipes}, rf"\bhooks\.{name}\.|\+hooks=\S*\b{name}\b")]
    return "\n\n".join(part for part in parts if part) + facts + rest


def _python(name: str, text: str) -> str:
    """Return a trainer with the hook, and the options of the first example that sets some."""
    (cls,) = re.findall(r"^\| class \| \[?(\w+)", text, re.MULTILINE)
    return "\n".join(
        [
            "From Python:\n\n```python",
            "trainer = hookline.Trainer(",
            '    model, loss="sparse_categorical_crossentropy", metrics=["accuracy"],',
            f"    hooks=[hookline.hooks.{cls}({example_options(name, text)})],",
            ")\n```",
        ]
    )


def example_options(name: str, text: str) -> str:
    """Return the options that the page's first command with some gives to the hook, as arguments of its class."""
    fence = re.search(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for command in fence[1].replace("\\\n", " ").splitlines() if fence else []:
        words = [each.partition(f"hooks.{name}.") for each in shlex.split(command)]
        pairs = [rest.partition("=") for before, found, rest in words if found and not before]
        if pairs:
            return ", ".join(f"{key}={_value(value)!r}" for key, _, value in pairs).replace("'", '"')
    return ""


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)  # YAML takes 1e-3 for a text
    except (ValueError, SyntaxError):
        return yaml.safe_load(text)


def _picture(name: str) -> str:
    file, caption = DRAWN.get(name) or (f"{name}.svg", PICTURED.get(name, ""))
    if not caption:
        return ""
    return f"![{caption}]({'../' if name in DRAWN else ''}{file})\n\n*{caption}*"


def _recipe(recipe: RecipeFile) -> str:
    paper = "" if recipe.paper in ("", "none.") else f" Paper: {recipe.paper.rstrip('.')}."
    text = f"**Recipe** `{recipe.name}`: {recipe.purpose}. Expected: {recipe.expected.rstrip('.')}.{paper}"
    return f"{_plain(text)}\n\n```\n{recipe.command}\n```"


def _results(root: Path, recipes: Collection[str], commands: str) -> str:
    """Return the rows of the page of results that come from some recipes, or whose commands match."""
    rows = json.loads((root / "recipes" / "results.json").read_text(encoding="utf-8"))["rows"]
    matching = [row for row in rows if any(re.search(commands, command) for command in row.get("commands", []))]
    names = {row["name"] for row in [*matching, *(row for row in rows if row["recipe"] in recipes)]}
    page = (root / "recipes" / "RESULTS.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    found = [line for line in lines[2:] if line.split("`")[1] in names]
    if not found:
        return ""
    about = "The [page of results](../results.md) has the commands, seeds and conditions."
    return f"**Measured.** {about}\n\n" + "\n".join([*lines[:2], *found])


def task_pages(root: Path) -> Iterator[tuple[str, str]]:
    """Yield name and text of a page for each recipe that is a technique without being a hook."""
    for recipe in recipe_files(root):
        if (name := WITHOUT_HOOK.get(recipe.name)) is None:
            continue
        module = ast.parse((root / "recipes" / f"{name}.py").read_text(encoding="utf-8"))
        (function,) = (each for each in module.body if isinstance(each, ast.FunctionDef) and each.name == recipe.name)
        idea, equation = _plain(ast.get_docstring(module) or ""), ast.get_docstring(function) or ""
        about, _, sections = equation.partition("\nEquation:\n")
        formula, _, pitfalls = sections.partition("\nPitfalls:\n")
        parts = [
            f"{WIDE}\n\n# {recipe.name}\n\n{idea}",
            _recipe(recipe),
            f"`python train.py --help task.{recipe.name}` lists the options. From Python:",
            f'```python\nresult = hookline.run("recipe={recipe.name}")\n```',
            f"**Equation**\n\n```text\n{_dedented(formula)}\n```" if formula else "",
            _picture(recipe.name),
            _plain(about.partition("\n")[2].strip()),
            f"**Pitfalls**\n\n{_dedented(pitfalls)}" if pitfalls else "",
            _results(root, {recipe.name}, rf"\brecipe={recipe.name}\b"),
        ]
        yield recipe.name, "\n\n".join(part for part in parts if part)


def _dedented(text: str) -> str:
    return re.sub(r"^    ", "", text, flags=re.MULTILINE).strip()


def _plain(text: str) -> str:
    """Return free text without what Markdown would take for a tag."""
    return re.sub(r"<(?=\w)", r"\\<", text)
