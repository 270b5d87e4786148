"""The site's pages, made of the folders' own when MkDocs builds it: `mkdocs build`."""

from __future__ import annotations

import ast
import json
import posixpath
import re
import shlex
import textwrap
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from hookline.scripts.help import header, purpose

ROOT = Path(__file__).resolve().parents[2]
CATALOGUE = "hooks/README.md"
PAGES = {
    "README.md": "index.md",
    "hookline/README.md": "python.md",
    "recipes/README.md": "guide.md",
    "recipes/OWN.md": "own.md",
    "scripts/README.md": "scripts.md",
    "trainer/README.md": "trainer.md",
    CATALOGUE: "hooks/index.md",
    "hookline/MIGRATION.md": "migration.md",
    "hookline/COMPARISON.md": "comparison.md",
    "recipes/RESULTS.md": "results.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Pages of the repository, and where the site has them."""
NOTEBOOKS = "notebooks"
PUBLIC = {
    "Python": ("hookline.Trainer", "hookline.load", "hookline.run", "hookline.RunResult", "hookline.History"),
    "Hooks and objectives of your own": (
        "hookline.trainer.hook.Hook",
        "hookline.trainer.hook.GraphHook",
        "hookline.trainer.hook.HostHook",
        "hookline.trainer.hook.Declaration",
        "hookline.trainer.step.context.StepContext",
        "hookline.trainer.network.Network",
        "hookline.trainer.objective.Objective",
    ),
}
"""What the page of reference shows."""
PICTURES = ".github/pictures/"
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
GROUP = re.compile(r"^\*\*(.+)\*\*$", re.MULTILINE)
HOOK = re.compile(r"^\| \[\w+\]\((\w+\.md)\)", re.MULTILINE)


def site_pages() -> dict[str, str]:
    """Return the Markdown of each page of the site, by its path there."""
    texts = {target: (ROOT / source).read_text(encoding="utf-8") for source, target in PAGES.items()}
    index, *parts = re.split(r"^## (\S+)$", texts[PAGES[CATALOGUE]], flags=re.MULTILINE)
    hooks = dict(zip(parts[::2], parts[1::2], strict=True))
    texts[PAGES[CATALOGUE]] = index
    texts |= {f"hooks/{name}.md": f"# {name}\n{text}" for name, text in hooks.items()}
    sources = {target: source for source, target in PAGES.items()}
    found = {target: _linked(text, sources.get(target, CATALOGUE), target) for target, text in texts.items()}
    found |= {f"hooks/{name}.md": complete_page(name, found[f"hooks/{name}.md"]) for name in hooks}
    names = rf"(?<= )`({'|'.join([*hooks, *WITHOUT_HOOK])})`(?=[,| ])"
    found["index.md"] = re.sub(
        r"^\| .*", lambda row: re.sub(names, r"[`\1`](hooks/\1.md)", row[0]), found["index.md"], flags=re.MULTILINE
    )
    found |= {f"hooks/{name}.md": text for name, text in task_pages()}
    for path in sorted((ROOT / NOTEBOOKS).glob("*.ipynb")):
        cells = [(each["cell_type"], "".join(each["source"])) for each in json.loads(path.read_text("utf-8"))["cells"]]
        shown = [text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in cells]
        found[f"{NOTEBOOKS}/{path.stem}.md"] = "\n\n".join(shown)
    parts = ["\n".join([f"**{title}**\n", *(f"::: {name}\n" for name in names)]) for title, names in PUBLIC.items()]
    return found | {"reference.md": "\n".join(["# Reference\n", *parts])}


def _linked(text: str, source: str, target: str) -> str:
    """Return a page with its links as the site has them; one to code keeps its text alone."""

    def link(match: re.Match[str]) -> str:
        words, address = match.groups()
        if address.startswith("http"):
            return match[0]
        path, _, anchor = address.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path)) if path else source
        if path == CATALOGUE and anchor:
            place, anchor = f"hooks/{anchor}.md", ""
        elif path.startswith(PICTURES):
            place = path.removeprefix(PICTURES)
        elif (place := PAGES.get(path, "")) == "":
            return words
        relative = posixpath.relpath(place, posixpath.dirname(target) or ".")
        return f"[{words}]({relative}{'#' if anchor else ''}{anchor})"

    return LINK.sub(link, text)


def navigation(pages: dict[str, str]) -> list[dict[str, Any]]:
    """Return the site's contents, with the hooks by the groups of the catalogue."""
    _, *groups = GROUP.split(pages[PAGES[CATALOGUE]])
    hooks: list[Any] = [PAGES[CATALOGUE]]
    for title, table in zip(groups[::2], groups[1::2], strict=True):
        others = [f"{name}.md" for name in WITHOUT_HOOK] if title == "Techniques" else []
        hooks.append({title: [f"hooks/{page}" for page in [*HOOK.findall(table), *others]]})
    notebooks = [page for page in pages if page.startswith(f"{NOTEBOOKS}/")]
    return [
        {"Start": "index.md"},
        {"Python": ["python.md", *notebooks, "reference.md"]},
        {"Guide by technique": "guide.md"},
        {"Hooks": hooks},
        {"Results": "results.md"},
        {"Bring your own": "own.md"},
        {"Ship, sweep, measure": "scripts.md"},
        {"How it runs": "trainer.md"},
        {"Coming from others": ["migration.md", "comparison.md"]},
        {"Contributing": "contributing.md"},
    ]


def on_config(config: Any) -> Any:
    """Lay out the contents."""
    config["nav"] = navigation(site_pages())
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to those that MkDocs found."""
    from mkdocs.structure.files import File

    for place, text in site_pages().items():
        files.append(File.generated(config, place, content=text))
    from hookline.scripts.documentation.pictures import draw  # TensorFlow

    for name in PICTURED:
        files.append(File.generated(config, f"hooks/{name}.svg", content=draw(name)))
    return files


WIDE = "---\nhide: [toc]\n---"
"""What gives a page the room of its list of contents."""
IDEA = 2
"""How many paragraphs of a docstring come before the commands: the summary and what follows it."""
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


def recipe_files() -> list[Path]:
    """Return the configs of all recipes, in alphabetical order."""
    return sorted((ROOT / "configs" / "recipe").glob("*.yaml"))


def complete_page(name: str, text: str) -> str:
    """Return the page of a hook: idea, commands, Python, equation, picture, details, recipes, results, and the rest."""
    head, facts, rest = text.partition("\n\n| | |\n| --- | --- |\n| class |")  # the table of facts
    start, equation, formula = head.partition("\n**Equation**")
    if not facts or not equation:
        return text
    words, _, commands = start.partition("\n\n```\n")
    title, *paragraphs = [each.strip() for each in re.split(r"\n{2,}", words)]
    recipes = [each for each in recipe_files() if each.stem not in WITHOUT_HOOK]  # whose hook is not their point
    recipes = [each for each in recipes if re.search(rf"^ *- /hooks/{name}\b", each.read_text("utf-8"), re.MULTILINE)]
    parts = [WIDE, title, *paragraphs[:IDEA], f"```\n{commands.rstrip()}", _python(name, text)]
    parts += [f"**Equation**{formula}", _picture(name), *paragraphs[IDEA:], *map(_recipe, recipes)]
    parts += [_results({each.stem for each in recipes}, rf"\bhooks\.{name}\.|\+hooks=\S*\b{name}\b")]
    return "\n\n".join(part for part in parts if part) + facts + rest


def _python(name: str, text: str) -> str:
    """Return a trainer with the hook, and the options of the first example that sets some."""
    (cls,) = re.findall(r"^\| class \| \[?(\w+)", text, re.MULTILINE)
    return f"""From Python:

```python
trainer = hookline.Trainer(
    model, loss="sparse_categorical_crossentropy", metrics=["accuracy"],
    hooks=[hookline.hooks.{cls}({example_options(name, text)})],
)
```"""


def example_options(name: str, text: str) -> str:
    """Return the options that the page's first command with some gives to the hook, as arguments of its class."""
    fence = re.search(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for command in fence[1].replace("\\\n", " ").splitlines() if fence else []:
        words = [each.partition(f"hooks.{name}.") for each in shlex.split(command)]
        pairs = [rest.partition("=") for before, found, rest in words if found and not before]
        if pairs:
            given: Any = OmegaConf.to_container(OmegaConf.from_dotlist(["=".join(pair[::2]) for pair in pairs]))
            return ", ".join(f"{key}={value!r}" for key, value in given.items()).replace("'", '"')
    return ""


def _picture(name: str) -> str:
    file, caption = DRAWN.get(name) or (f"{name}.svg", PICTURED.get(name, ""))
    if not caption:
        return ""
    return f"![{caption}]({'../' if name in DRAWN else ''}{file})\n\n*{caption}*"


def _recipe(path: Path) -> str:
    about = header(path)
    paper = "" if about.get("paper", "none.") == "none." else f" Paper: {about['paper'].rstrip('.')}."
    text = f"**Recipe** `{path.stem}`: {purpose(path)}. Expected: {about.get('expected', '').rstrip('.')}.{paper}"
    return f"{_plain(text)}\n\n```\n{about.get('command', '')}\n```"


def _results(recipes: Collection[str], commands: str) -> str:
    """Return the rows of the page of results that come from some recipes, or whose commands match."""
    rows = json.loads((ROOT / "recipes" / "results.json").read_text(encoding="utf-8"))["rows"]
    matching = [row for row in rows if any(re.search(commands, command) for command in row.get("commands", []))]
    names = {row["name"] for row in [*matching, *(row for row in rows if row["recipe"] in recipes)]}
    page = (ROOT / "recipes" / "RESULTS.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    found = [line for line in lines[2:] if line.split("`")[1] in names]
    if not found:
        return ""
    about = "The [page of results](../results.md) has the commands, seeds and conditions."
    return f"**Measured.** {about}\n\n" + "\n".join([*lines[:2], *found])


def task_pages() -> Iterator[tuple[str, str]]:
    """Yield name and text of a page for each recipe that is a technique without being a hook."""
    for path in recipe_files():
        if (name := WITHOUT_HOOK.get(recipe := path.stem)) is None:
            continue
        module = ast.parse((ROOT / "recipes" / f"{name}.py").read_text(encoding="utf-8"))
        (function,) = (each for each in module.body if isinstance(each, ast.FunctionDef) and each.name == recipe)
        idea, equation = _plain(ast.get_docstring(module) or ""), ast.get_docstring(function) or ""
        about, _, sections = equation.partition("\nEquation:\n")
        formula, _, pitfalls = sections.partition("\nPitfalls:\n")
        parts = [
            f"{WIDE}\n\n# {recipe}\n\n{idea}",
            _recipe(path),
            f"`python train.py --help task.{recipe}` lists the options. From Python:",
            f'```python\nresult = hookline.run("recipe={recipe}")\n```',
            f"**Equation**\n\n```text\n{textwrap.dedent(formula).strip()}\n```" if formula else "",
            _picture(recipe),
            _plain(about.partition("\n")[2].strip()),
            f"**Pitfalls**\n\n{textwrap.dedent(pitfalls).strip()}" if pitfalls else "",
            _results({recipe}, rf"\brecipe={recipe}\b"),
        ]
        yield recipe, "\n\n".join(part for part in parts if part)


def _plain(text: str) -> str:
    """Return free text without what Markdown would take for a tag."""
    return re.sub(r"<(?=\w)", r"\\<", text)
