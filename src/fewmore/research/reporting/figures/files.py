"""Save figures as PNG, SVG and PDF, or as SVG text for a page."""

import io
import re
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from fewmore.research.reporting.figures.style import STYLE

FORMATS = (".png", ".svg", ".pdf")
FIGURE_MARK = "fewmore"  # in each figure; a file without it belongs to the user
# Without a date, so that the same figure gives the same bytes.
METADATA: dict[str, dict[str, Any]] = {
    ".png": {"Software": FIGURE_MARK},
    ".svg": {"Creator": FIGURE_MARK, "Date": None},
    ".pdf": {"Creator": FIGURE_MARK, "CreationDate": None},
}


def save(figure: Figure, path: Path) -> list[Path]:
    """Write .png and .svg files, or the one format that the path ends in; return the paths."""
    path = path.expanduser()
    targets = [path]
    if path.suffix.lower() not in FORMATS:
        targets = [path.with_name(path.name + suffix) for suffix in (".png", ".svg")]
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        for target in targets:
            figure.savefig(
                target,
                dpi=200,
                bbox_inches="tight",
                pad_inches=0.1,
                facecolor="white",
                metadata=METADATA[target.suffix.lower()],
            )
    return targets


def save_all(figure: Figure, path: Path) -> None:
    """Write the figure in all formats, for a paper and for a page."""
    for suffix in FORMATS:
        save(figure, path.with_name(path.name + suffix))


def to_svg(figure: Figure) -> str:
    """Return the figure as an <svg> element for a page, without background or size."""
    text = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(
            text,
            format="svg",
            dpi=200,  # of images within the figure
            transparent=True,
            bbox_inches="tight",
            pad_inches=0.05,
            metadata=METADATA[".svg"],
        )
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    end_of_tag = svg.index(">")
    return re.sub(r' (width|height)="[^"]*"', "", svg[:end_of_tag]) + svg[end_of_tag:]
