"""Strict readers of the two languages for drawings: what they do not know, they refuse."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field

DOT_TOKEN = re.compile(r'\s*(?:(->|[{}\[\];,=])|("(?:[^"\\\n]|\\.)*")|([A-Za-z_]\w*|\d+))')
DOT_SHAPES = {"parallelogram", "cylinder", "box"}
DOT_STYLES = {"filled", "rounded,filled", "filled,bold", "dashed"}
DOT_ATTRIBUTES = {"label", "shape", "style", "fillcolor", "fontname", "fontsize"}
MERMAID_SHAPES = {"[/": "/]", "[(": ")]", "[[": "]]", "[": "]", "(": ")"}
MERMAID_RESERVED = {
    "end",
    "graph",
    "flowchart",
    "subgraph",
    "style",
    "class",
    "classDef",
    "click",
    "default",
    "linkStyle",
}
MERMAID_TEXT = r'"((?:[^"\n<>&`\\#;]|#\d+;|<br/>)*)"'
MERMAID_BOX = re.compile(rf"([A-Za-z]\w*)(\[/|\[\(|\[\[|\[|\(){MERMAID_TEXT}(/\]|\)\]|\]\]|\]|\)):::(\w+)")
MERMAID_FRAME = re.compile(rf"subgraph ([A-Za-z]\w*)\[{MERMAID_TEXT}\]")
MERMAID_ARROW = re.compile(rf"([A-Za-z]\w*) (-->|-\.->)(?:\|{MERMAID_TEXT}\|)? ([A-Za-z]\w*)")
MERMAID_CLASS = re.compile(r"classDef (\w+) fill:#[0-9a-f]{6},stroke:#[0-9a-f]{6},color:#[0-9a-f]{6}")


@dataclass
class Drawing:
    """Hold what a drawing says.

    Attributes:
        boxes: the lines of each label, by key.
        arrows: start, end, label, and whether it only orders.
        frames: titles by key.
        inside: keys of the boxes of each frame, those of inner frames left out.
    """

    boxes: dict[str, list[str]] = field(default_factory=dict)
    arrows: list[tuple[str, str, str, bool]] = field(default_factory=list)
    frames: dict[str, str] = field(default_factory=dict)
    inside: dict[str, list[str]] = field(default_factory=dict)

    def add_box(self, key: str, lines: list[str], frames: list[str]) -> None:
        """Add a box to the innermost frame."""
        assert key not in self.boxes, f"{key} comes twice"
        self.boxes[key] = lines
        if frames:
            self.inside[frames[-1]].append(key)

    def add_frame(self, key: str, title: str) -> None:
        """Add a frame."""
        assert key not in self.frames
        assert key not in self.boxes
        self.frames[key], self.inside[key] = title, []

    def check(self) -> Drawing:
        """Return itself, once every arrow goes from a box to a box."""
        for start, end, _, _ in self.arrows:
            assert {start, end} <= self.boxes.keys(), (start, end)
        return self


def read_mermaid(text: str) -> Drawing:
    """Read a flowchart, line by line."""
    first, *lines = text.rstrip("\n").split("\n")
    assert first == "flowchart TB"
    drawing, open_frames, kinds, classes = Drawing(), [], set(), set()
    for line in (line.strip() for line in lines):
        if found := MERMAID_BOX.fullmatch(line):
            key, left, label, right, kind = found.groups()
            assert MERMAID_SHAPES[left] == right, line
            assert key not in MERMAID_RESERVED
            drawing.add_box(key, _mermaid_lines(label), open_frames)
            kinds.add(kind)
        elif found := MERMAID_FRAME.fullmatch(line):
            drawing.add_frame(found[1], "\n".join(_mermaid_lines(found[2])))
            open_frames.append(found[1])
        elif found := MERMAID_ARROW.fullmatch(line):
            start, arrow, label, end = found.groups()
            drawing.arrows.append((start, end, "".join(_mermaid_lines(label or "")), arrow == "-.->"))
        elif found := MERMAID_CLASS.fullmatch(line):
            classes.add(found[1])
        else:
            assert line == "end", f"not understood: {line}"
            open_frames.pop()
    assert not open_frames
    assert kinds <= classes
    return drawing.check()


def _mermaid_lines(label: str) -> list[str]:
    lines = label.split("<br/>")
    return [re.sub(r"#(\d+);", lambda found: chr(int(found[1])), line) for line in lines]


def read_dot(text: str) -> Drawing:
    """Read a digraph, token by token."""
    reader = _DotReader(text)
    assert reader.take() == "digraph"
    reader.take()
    reader.expect("{")
    reader.statements([])
    assert not reader.tokens
    return reader.drawing.check()


class _DotReader:
    def __init__(self, text: str) -> None:
        self.drawing = Drawing()
        self.tokens: list[str] = []
        position = 0
        while position < len(text.rstrip()):
            found = DOT_TOKEN.match(text, position)
            assert found, f"not understood: {text[position : position + 40]!r}"
            self.tokens.append(found[0].strip())
            position = found.end()
        self.tokens.reverse()

    def take(self) -> str:
        return self.tokens.pop()

    def expect(self, token: str) -> None:
        assert (found := self.take()) == token, f"{found} in the place of {token}"

    def statements(self, frames: list[str]) -> None:
        while (token := self.take()) != "}":
            if token == "subgraph":
                key = self.take().removeprefix("cluster_")
                self.drawing.add_frame(key, "")
                self.expect("{")
                self.statements([*frames, key])
                continue
            self.statement(token, frames)
            self.expect(";")

    def statement(self, token: str, frames: list[str]) -> None:
        following = self.tokens[-1]
        if token in ("graph", "node", "edge"):
            self.attributes()
        elif following == "=":
            self.take()
            assert token == "label"
            self.drawing.frames[frames[-1]] = "\n".join(_dot_lines(self.take()))
        elif following == "->":
            self.take()
            end = self.take()
            attributes = self.attributes() if self.tokens[-1] == "[" else {}
            label = "".join(_dot_lines(attributes.get("label", '""')))
            self.drawing.arrows.append((token, end, label, attributes.get("style") == "dashed"))
        else:
            attributes = self.attributes()
            assert attributes["shape"] in DOT_SHAPES
            self.drawing.add_box(token, _dot_lines(attributes["label"]), frames)

    def attributes(self) -> dict[str, str]:
        found: dict[str, str] = {}
        self.expect("[")
        while True:
            key = self.take()
            assert key in DOT_ATTRIBUTES, key
            assert key not in found
            self.expect("=")
            found[key] = self.take()
            if key == "style":
                assert found[key].strip('"') in DOT_STYLES
            if (token := self.take()) == "]":
                return found
            assert token == ","


def _dot_lines(label: str) -> list[str]:
    assert label[0] == label[-1] == '"'
    lines = [""]
    for found in re.finditer(r"\\(.)|([^\\])", label[1:-1]):
        assert found[1] in (None, "n", "\\", '"'), f"an escape of Graphviz: {found[0]}"
        if found[1] == "n":
            lines.append("")
        else:
            lines[-1] += found[1] or found[2]
    return [html.unescape(line) for line in lines]
