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
RESERVED = {*["end", "graph", "flowchart", "subgraph", "style", "class", "classDef", "click", "default", "linkStyle"]}
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
        assert key not in self.boxes, f"{key} comes twice"
        self.boxes[key] = lines
        if frames:
            self.inside[frames[-1]].append(key)

    def add_frame(self, key: str, title: str) -> None:
        assert key not in {**self.frames, **self.boxes}
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
            assert key not in RESERVED
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
    return [re.sub(r"#(\d+);", lambda found: chr(int(found[1])), line) for line in label.split("<br/>")]


def read_dot(text: str) -> Drawing:
    """Read a digraph, token by token."""
    tokens: list[str] = []
    position = 0
    while position < len(text.rstrip()):
        found = DOT_TOKEN.match(text, position)
        assert found, f"not understood: {text[position : position + 40]!r}"
        tokens.append(found[0].strip())
        position = found.end()
    tokens.reverse()
    assert (tokens.pop(), tokens.pop() and tokens.pop()) == ("digraph", "{")
    drawing = Drawing()
    _dot_statements(tokens, drawing, [])
    assert not tokens
    return drawing.check()


def _dot_statements(tokens: list[str], drawing: Drawing, frames: list[str]) -> None:
    while (token := tokens.pop()) != "}":
        if token == "subgraph":
            key = tokens.pop().removeprefix("cluster_")
            drawing.add_frame(key, "")
            assert tokens.pop() == "{"
            _dot_statements(tokens, drawing, [*frames, key])
            continue
        if token in ("graph", "node", "edge"):
            _dot_attributes(tokens)
        elif tokens[-1] == "=":
            assert (token, tokens.pop()) == ("label", "=")
            drawing.frames[frames[-1]] = "\n".join(_dot_lines(tokens.pop()))
        elif tokens[-1] == "->":
            end = (tokens.pop(), tokens.pop())[1]
            attributes = _dot_attributes(tokens) if tokens[-1] == "[" else {}
            label = "".join(_dot_lines(attributes.get("label", '""')))
            drawing.arrows.append((token, end, label, attributes.get("style") == "dashed"))
        else:
            attributes = _dot_attributes(tokens)
            assert attributes["shape"] in DOT_SHAPES
            drawing.add_box(token, _dot_lines(attributes["label"]), frames)
        assert tokens.pop() == ";"


def _dot_attributes(tokens: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    assert tokens.pop() == "["
    while True:
        key = tokens.pop()
        assert key in DOT_ATTRIBUTES - found.keys(), key
        assert tokens.pop() == "="
        found[key] = tokens.pop()
        assert key != "style" or found[key].strip('"') in DOT_STYLES
        if (token := tokens.pop()) == "]":
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
