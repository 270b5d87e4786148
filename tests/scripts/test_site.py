"""The documentation site: every page exists, and every link between pages has a target."""

import posixpath
import re

import pytest
import yaml

import hookline
from hookline.scripts.documentation.description import describe_hooks
from hookline.scripts.documentation.pictures import PICTURES
from hookline.scripts.documentation.site import DOCS, LINK, ROOT, add_hooks, site_pages
from tests.support.workers import run_python


def laid_out():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    add_hooks(nav, describe_hooks())
    return site_pages(describe_hooks()), nav


def test_every_hook_is_in_the_contents_and_every_link_has_a_target():
    pages, nav = laid_out()
    hooks = {path.stem for path in (ROOT / "configs" / "hooks").glob("*.yaml")} - {"default"}
    contents = str(nav)
    assert [name for name in hooks if f"'hooks/{name}.md'" not in contents] == []
    assert [page for page in pages if f"'{page}'" not in contents] == []
    known = {*pages, *(path.name for path in (ROOT / DOCS).iterdir()), *(f"hooks/{name}.svg" for name in PICTURES)}
    links = [
        (page, posixpath.normpath(posixpath.join(posixpath.dirname(page), address.partition("#")[0])))
        for page, text in pages.items()
        for _, address in LINK.findall(text)
        if not address.startswith(("http", "#"))
    ]
    assert len(links) > 40
    assert [link for link in links if link[1] not in known] == []


def test_site_builds_without_warnings_and_loads_nothing_external(tmp_path):
    pytest.importorskip("mkdocstrings", reason="the site needs the extra [docs]")
    pytest.importorskip("material", reason="the site needs the extra [docs]")
    run_python("-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path)
    assert "fit" in (tmp_path / "reference" / "index.html").read_text()
    for page in tmp_path.rglob("*.html"):
        text = page.read_text()
        assert 'src="http' not in text, page
        assert 'rel="stylesheet" href="http' not in text, page


def test_every_technique_page_has_an_equation_a_command_and_a_program():
    pages, nav = laid_out()
    techniques = next(each["Techniques"] for each in nav[3]["Hooks"][1:] if "Techniques" in each)
    assert len(techniques) > 12
    for page in techniques:
        text = pages[page]
        assert "**Equation**" in text, page
        assert "python train.py recipe=" in text, page
        calls = re.findall(r"hooks=\[(hookline\.hooks\.\w+\(.*\))\],", text)
        assert [eval(call, {"hookline": hookline}) for call in calls] or "hookline.run(" in text, page  # noqa: S307 - our own pages
    assert "`larq_tutorial_cnn`" in pages["hooks/bnn_rounding.md"], "what it reaches"
