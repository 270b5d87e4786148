"""The site's pages, made of the folders' own when MkDocs builds it: `mkdocs build`."""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from hookline.scripts.documentation.techniques import PICTURED, WITHOUT_HOOK, complete_page, task_pages

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


def site_pages(root: Path = ROOT) -> dict[str, str]:
    """Return the Markdown of each page of the site, by its path there."""
    texts = {target: (root / source).read_text(encoding="utf-8") for source, target in PAGES.items()}
    index, *parts = re.split(r"^## (\S+)$", texts[PAGES[CATALOGUE]], flags=re.MULTILINE)
    hooks = dict(zip(parts[::2], parts[1::2], strict=True))
    texts[PAGES[CATALOGUE]] = index
    texts |= {f"hooks/{name}.md": f"# {name}\n{text}" for name, text in hooks.items()}
    sources = {target: source for source, target in PAGES.items()}
    found = {target: _linked(text, sources.get(target, CATALOGUE), target) for target, text in texts.items()}
    found |= {f"hooks/{name}.md": complete_page(name, found[f"hooks/{name}.md"], root) for name in hooks}
    names = rf"(?<= )`({'|'.join([*hooks, *WITHOUT_HOOK])})`(?=[,| ])"
    found["index.md"] = re.sub(
        r"^\| .*", lambda row: re.sub(names, r"[`\1`](hooks/\1.md)", row[0]), found["index.md"], flags=re.MULTILINE
    )
    found |= {f"hooks/{name}.md": text for name, text in task_pages(root)}
    for path in sorted((root / NOTEBOOKS).glob("*.ipynb")):
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
