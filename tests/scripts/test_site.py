"""The site: every page is there, and every link between them leads somewhere."""

from __future__ import annotations

import posixpath

from hookline.scripts.documentation.site import LINK, PICTURES, ROOT, navigation, site_pages
from hookline.scripts.documentation.techniques import PICTURED


def test_every_hook_has_a_page_in_the_contents_and_every_link_a_target():
    pages = site_pages()
    hooks = {path.stem for path in (ROOT / "configs" / "hooks").glob("*.yaml")} - {"default"}
    contents = str(navigation(pages))
    assert [name for name in hooks if f"'hooks/{name}.md'" not in contents] == []
    assert [page for page in pages if f"'{page}'" not in contents] == []
    known = {*pages, *(path.name for path in (ROOT / PICTURES).iterdir()), *(f"hooks/{name}.svg" for name in PICTURED)}
    links = [
        (page, posixpath.normpath(posixpath.join(posixpath.dirname(page), address.partition("#")[0])))
        for page, text in pages.items()
        for _, address in LINK.findall(text)
        if not address.startswith(("http", "#"))
    ]
    assert len(links) > 40
    assert [link for link in links if link[1] not in known] == []
