"""Draw the packages: two products on one engine, in the layers that pyproject.toml has."""

import ast
import re
import textwrap
from collections.abc import Sequence
from html import escape

from fewmore.cli import GROUPS
from sections.recorded import ROOT

WIDTH, MARGIN, GAP = 960, 16, 10  # pixels
PADDING, LINE, LETTER = 12, 18, 7.7
PHOTOS, RESEARCH, ENGINE = "#dbeafe", "#fde8c8", "#e6f0dc"
COLORS = {"service": PHOTOS, "classifier": PHOTOS, "research": RESEARCH}
LAYER = re.compile(r'^ {4}"([a-z_ |]+)",$', re.MULTILINE)

Box = tuple[str, str, str]  # title, text, color


def drawing() -> str:
    """Return the drawing as SVG."""
    parts: list[str] = []
    top = MARGIN
    for row in (_commands(), *_packages()):
        width = (WIDTH - 2 * MARGIN - GAP * (len(row) - 1)) // len(row)
        wrapped = [textwrap.wrap(text, int((width - 2 * PADDING) / LETTER)) for _, text, _ in row]
        height = 2 * PADDING + LINE * (1 + max(map(len, wrapped)))
        for place, ((title, _, color), lines) in enumerate(zip(row, wrapped, strict=True)):
            left = MARGIN + place * (width + GAP)
            parts += _box(title, lines, color, (left, top, width, height))
        top += height + GAP
    bottom = top - GAP + MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{bottom}" '
        f'viewBox="0 0 {WIDTH} {bottom}" font-family="sans-serif" font-size="14" role="img">'
    )
    title = "<title>The packages of fewmore: two products on one engine</title>"
    background = f'<rect width="{WIDTH}" height="{bottom}" fill="#ffffff"/>'
    return "\n".join([head, title, background, *parts, "</svg>"]) + "\n"


def _commands() -> list[Box]:
    """Return what a user types for each product."""
    titles = {"With your own photos": PHOTOS, "For research": RESEARCH}
    return [
        (group, "fewmore " + ", ".join(one.__name__ for one in GROUPS[group]), color)
        for group, color in titles.items()
    ]


def _packages() -> list[list[Box]]:
    """Return the packages, a row a layer; the command line is what the first row shows."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    layers = text.partition("layers = [\n")[2].partition("]")[0]
    rows = [layer.split(" | ") for layer in LAYER.findall(layers) if layer != "cli"]
    return [[(name, _sentence(name), COLORS.get(name, ENGINE)) for name in row] for row in rows]


def _sentence(name: str) -> str:
    """Return the first sentence of a package's or a module's docstring."""
    source = ROOT / "src" / "fewmore"
    path = source / f"{name}.py"
    path = path if path.exists() else source / name / "__init__.py"
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return re.split(r"\.(?=\s|$)", " ".join(docstring.split("\n\n")[0].split()))[0]


def _box(
    title: str, lines: Sequence[str], color: str, place: tuple[int, int, int, int]
) -> list[str]:
    left, top, width, height = place
    bold = ' font-weight="bold"'
    texts = [
        f'<text x="{left + PADDING}" y="{top + PADDING + LINE * number + 13}" fill="#1f2933"'
        f"{bold if number == 0 else ''}>{escape(line)}</text>"
        for number, line in enumerate((title, *lines))
    ]
    return [
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" rx="8" fill="{color}"/>',
        *texts,
    ]
