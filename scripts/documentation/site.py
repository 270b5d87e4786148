"""The site's pages, generated from those of the folders when MkDocs builds the site: `mkdocs build`."""

from __future__ import annotations

import ast
import json
import posixpath
import re
import shlex
import textwrap
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from hookline.scripts.documentation.description import GROUPS, Description, describe_hooks, make_overview, make_parts
from hookline.scripts.documentation.pictures import PICTURES, draw
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
"""Pages of the repository, with their paths on the site."""
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
"""Names on the reference page, by section."""
DOCS = ".github/pictures/"
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
WIDE = "---\nhide: [toc]\n---"
"""Front matter that widens a page by hiding its table of contents."""
DRAWN = {"center_loss": ("tensorboard_center_loss.png", "Features of a run with the centers of their classes.")}
"""Techniques with a picture from the repository."""
WITHOUT_HOOK = {"retrieval": "retrieval", "gan": "gan", "sgan": "gan"}
"""Recipes of techniques that are not hooks, each with a task of the same name, and the module of that task."""
RECIPES = sorted((ROOT / "configs" / "recipe").glob("*.yaml"))


def site_pages(hooks: Sequence[Description]) -> dict[str, str]:
    """Return the Markdown of each page of the site, by its path there."""
    texts = {source: (ROOT / source).read_text(encoding="utf-8") for source in PAGES}
    texts[CATALOGUE] = f"{make_overview(hooks)}\n"
    found = {PAGES[source]: _linked(text, source, PAGES[source]) for source, text in texts.items()}
    names = rf"(?<= )`({'|'.join([*(hook.name for hook in hooks), *WITHOUT_HOOK])})`(?=[,| ])"
    found["index.md"] = re.sub(
        r"^\| .*", lambda row: re.sub(names, r"[`\1`](hooks/\1.md)", row[0]), found["index.md"], flags=re.MULTILINE
    )
    found |= {f"hooks/{hook.name}.md": _hook_page(hook) for hook in hooks}
    found |= {f"hooks/{path.stem}.md": _task_page(path) for path in RECIPES if path.stem in WITHOUT_HOOK}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = [(each["cell_type"], "".join(each["source"])) for each in json.loads(path.read_text("utf-8"))["cells"]]
        shown = [text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in cells]
        found[f"notebooks/{path.stem}.md"] = "\n\n".join(shown)
    parts = ["\n".join([f"**{title}**\n", *(f"::: {name}\n" for name in names)]) for title, names in PUBLIC.items()]
    return found | {"reference.md": "\n".join(["# Reference\n", *parts])}


def _linked(text: str, source: str, target: str) -> str:
    """Return a page with its links adapted to the site; a link to anything else, such as code, becomes its text."""

    def link(match: re.Match[str]) -> str:
        words, address = match.groups()
        if address.startswith("http"):
            return match[0]
        path, _, anchor = address.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path)) if path else source
        if path == CATALOGUE and anchor:
            place, anchor = f"hooks/{anchor}.md", ""
        elif path.startswith(DOCS):
            place = path.removeprefix(DOCS)
        elif (place := PAGES.get(path, "")) == "":
            return words
        relative = posixpath.relpath(place, posixpath.dirname(target) or ".")
        return f"[{words}]({relative}{'#' if anchor else ''}{anchor})"

    return LINK.sub(link, text)


def add_hooks(nav: list[dict[str, Any]], hooks: Sequence[Description]) -> None:
    """Add the pages of the hooks to the navigation, by the groups of the catalogue."""
    pages: list[Any] = [PAGES[CATALOGUE]]
    for group, title in GROUPS.items():
        names = [hook.name for hook in hooks if hook.docstring.sections["Group"] == group]
        names += WITHOUT_HOOK if group == "technique" else []
        pages.append({title: [f"hooks/{name}.md" for name in names]})
    (entry,) = [each for each in nav if "Hooks" in each]
    entry["Hooks"] = pages


def on_config(config: Any) -> Any:
    """Complete the navigation."""
    add_hooks(config["nav"], describe_hooks())
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages and pictures to the files that MkDocs found."""
    from mkdocs.structure.files import File

    for place, text in site_pages(describe_hooks()).items():
        files.append(File.generated(config, place, content=text))
    for name in PICTURES:
        files.append(File.generated(config, f"hooks/{name}.svg", content=draw(name)))
    return files


def _hook_page(hook: Description) -> str:
    """Return the page of a hook; that of a technique also has Python code, a picture, recipes and results."""
    parts = {name: _linked(text, CATALOGUE, f"hooks/{hook.name}.md") for name, text in make_parts(hook).items()}
    if not parts["equation"]:
        return "\n\n".join([f"# {hook.name}", *filter(None, parts.values())])
    recipes = [each for each in RECIPES if each.stem not in WITHOUT_HOOK]  # others are not about a hook
    uses = re.compile(rf"^ *- /hooks/{hook.name}\b", re.MULTILINE)
    recipes = [each for each in recipes if uses.search(each.read_text("utf-8"))]
    idea, _, details = parts.pop("body").partition("\n\n")
    pieces = [WIDE, f"# {hook.name}", parts.pop("summary"), idea, parts.pop("example"), _python(hook)]
    pieces += [parts.pop("equation"), _picture(hook.name), details, *map(_recipe, recipes)]
    pieces += [_results({each.stem for each in recipes}, rf"\bhooks\.{hook.name}\.|\+hooks=\S*\b{hook.name}\b")]
    return "\n\n".join(filter(None, [*pieces, *parts.values()]))


def _python(hook: Description) -> str:
    """Return Python code with the hook, and its options from the first example command that sets any."""
    given: dict[str, Any] = {}
    for command in hook.docstring.sections["Example"].replace("\\\n", " ").splitlines():
        own = [text for text in shlex.split(command) if text.startswith(f"hooks.{hook.name}.")]
        if own and not given:
            node: Any = OmegaConf.to_container(OmegaConf.from_dotlist(own))
            given = node["hooks"][hook.name]
    options = ", ".join(f"{key}={value!r}" for key, value in given.items()).replace("'", '"')
    return f"""From Python:

```python
trainer = hookline.Trainer(
    model, loss="sparse_categorical_crossentropy", metrics=["accuracy"],
    hooks=[hookline.hooks.{hook.hook_class.__name__}({options})],
)
```"""


def _picture(name: str) -> str:
    file, caption = DRAWN.get(name) or (f"{name}.svg", PICTURES[name][0] if name in PICTURES else "")
    if not caption:
        return ""
    return f"![{caption}]({'../' if name in DRAWN else ''}{file})\n\n*{caption}*"


def _recipe(path: Path) -> str:
    about = header(path)
    paper = "" if about.get("paper", "none.") == "none." else f" Paper: {about['paper'].rstrip('.')}."
    text = f"**Recipe** `{path.stem}`: {purpose(path)}. Expected: {about.get('expected', '').rstrip('.')}.{paper}"
    return f"{_plain(text)}\n\n```\n{about.get('command', '')}\n```"


def _results(recipes: Collection[str], commands: str) -> str:
    """Return the rows of the results page that belong to given recipes or have a matching command."""
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


def _task_page(path: Path) -> str:
    """Return the page of the recipe of a technique that is not a hook."""
    recipe = path.stem
    module = ast.parse((ROOT / "recipes" / f"{WITHOUT_HOOK[recipe]}.py").read_text(encoding="utf-8"))
    (function,) = (each for each in module.body if isinstance(each, ast.FunctionDef) and each.name == recipe)
    about, _, sections = (ast.get_docstring(function) or "").partition("\nEquation:\n")
    formula, _, pitfalls = sections.partition("\nPitfalls:\n")
    parts = [
        f"{WIDE}\n\n# {recipe}\n\n{_plain(ast.get_docstring(module) or '')}",
        _recipe(path),
        f"`python train.py --help task.{recipe}` lists the options. From Python:",
        f'```python\nresult = hookline.run("recipe={recipe}")\n```',
        f"**Equation**\n\n```text\n{textwrap.dedent(formula).strip()}\n```" if formula else "",
        _picture(recipe),
        _plain(about.partition("\n")[2].strip()),
        f"**Pitfalls**\n\n{textwrap.dedent(pitfalls).strip()}" if pitfalls else "",
        _results({recipe}, rf"\brecipe={recipe}\b"),
    ]
    return "\n\n".join(filter(None, parts))


def _plain(text: str) -> str:
    """Escape what Markdown would take for a tag in free text."""
    return re.sub(r"<(?=\w)", r"\\<", text)
