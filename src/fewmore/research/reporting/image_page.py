"""Write a page of thumbnails with captions that needs no other file, no network and no script."""

import base64
import io
from collections.abc import Container, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from PIL import Image

from fewmore.classifier.inputs import LabeledImages
from fewmore.data.decode import decode_image
from fewmore.errors import ConfigError, FewmoreError
from fewmore.io import write_bytes

THUMBNAIL = 160  # pixels, at most
TINY = 48  # pixels: smaller images are enlarged without blur
MAX_CARDS = 120  # in a section; the others are only counted
# In each page, so that it may be written anew: a page without it is another program's.
MARK = '<meta name="generator" content="fewmore">'
STYLE = files("fewmore.research.reporting").joinpath("report.css").read_text()


@dataclass(frozen=True)
class Shown:
    """Hold an image of a card and what stands below it."""

    image: Any  # a path, bytes, a Pillow image, an array or a tensor
    caption: str
    is_example: bool = False  # shown smaller


@dataclass(frozen=True)
class Card:
    """Hold a sentence with its images, and a bar a number if there are numbers."""

    text: str
    images: Sequence[Shown] = ()
    title: str = ""
    bars: Sequence[tuple[str, float]] = ()  # names and shares


@dataclass(frozen=True)
class Section:
    """Hold the cards of one subject."""

    title: str
    advice: str
    cards: Sequence[Card]


def examples_of(images: LabeledImages, left_out: Container[int]) -> dict[str, Shown]:
    """Return an image of each class to compare others with, at none of the positions left out."""
    examples: dict[str, Shown] = {}
    for position, label in enumerate(images.labels):
        name = images.names[label]
        if name not in examples and position not in left_out:
            examples[name] = Shown(images.images[position], name, is_example=True)
    return examples


def write_page(path: Path, heading: str, lead: Sequence[str], sections: Sequence[Section]) -> None:
    """Write the page atomically."""
    try:
        text = page(heading, lead, sections)
        # Names of files need not be UTF-8.
        write_bytes(path.expanduser(), text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror or error}): give another place"
        ) from error


def page(heading: str, lead: Sequence[str], sections: Sequence[Section]) -> str:
    """Return the whole page."""
    counts = "".join(
        f'<a href="#s{number}"><b>{len(section.cards):,}</b>{escape(section.title)}</a>'
        for number, section in enumerate(sections)
    )
    parts = [
        f"<h1>{escape(heading)}</h1>",
        *(f'<p class="faint">{escape(line)}</p>' for line in lead),
        f'<nav class="cards">{counts}</nav>' if counts else "",
        *(_section(number, section) for number, section in enumerate(sections)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"{MARK}\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(heading)}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


def image_tag(image: Image.Image, alt: str, size: int = THUMBNAIL) -> str:
    """Return an image as a tag that holds its bytes."""
    tiny = max(image.size) <= TINY
    image.thumbnail((size, size))
    data = io.BytesIO()
    kind, attribute = ("png", ' class="tiny"') if tiny else ("jpeg", "")
    image.save(data, kind)
    source = f"data:image/{kind};base64,{base64.b64encode(data.getvalue()).decode()}"
    return f'<img{attribute} src="{source}" alt="{escape(alt)}">'


def _section(number: int, section: Section) -> str:
    cards = "\n".join(map(_card, section.cards[:MAX_CARDS]))
    more = len(section.cards) - MAX_CARDS
    rest = f'<p class="faint">and {more:,} more</p>' if more > 0 else ""
    return (
        f'<h2 id="s{number}">{escape(section.title)}</h2>\n<p>{escape(section.advice)}</p>\n'
        f'<div class="findings">{cards}</div>{rest}'
    )


def _card(card: Card) -> str:
    images = "".join(map(_figure, card.images))
    bars = "".join(
        f'<span>{100 * share:.0f} %<i style="height:{4 * share:.2f}rem"></i>{escape(name)}</span>'
        for name, share in card.bars
    )
    return (
        "<article>"
        + (f'<div class="shown">{images}</div>' if images else "")
        + (f"<b>{escape(card.title)}</b>" if card.title else "")
        + f"<p>{escape(card.text)}</p>"
        + (f'<div class="bars">{bars}</div>' if bars else "")
        + "</article>"
    )


def _figure(shown: Shown) -> str:
    try:
        side = THUMBNAIL // 2 if shown.is_example else THUMBNAIL
        pixels = decode_image(shown.image, shown.caption, side)
        image = Image.fromarray(pixels.permute(1, 2, 0).numpy())
        tag = image_tag(image, shown.caption)
    except FewmoreError:
        tag = '<span class="missing">no image</span>'
    attribute = ' class="example"' if shown.is_example else ""
    return f"<figure{attribute}>{tag}<figcaption>{escape(shown.caption)}</figcaption></figure>"
