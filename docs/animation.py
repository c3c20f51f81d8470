"""Record docs/figures/teaching.gif in a browser: python docs/animation.py

A spiral is drawn five times on the page of a real `fewmore serve --demo`, taught, and drawn once
more. It needs Chromium and the extras `service` and `test`. The demo's model stays as it is: a copy
of it is served.
"""

import io
import math
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

from fewmore.cli.demo import NAME, demo_model
from fewmore.service.thumbnails import thumbnail_folder

FILE = Path(__file__).parent / "figures" / "teaching.gif"
VIEWPORT = {"width": 900, "height": 720}
WIDTH = 720  # of the file
COLORS = 48
PARTS = 4  # frames of a drawing while it grows
SHORT, LONG = 160, 1800  # milliseconds that a frame is shown


class Film:
    """Take screenshots of a page, and write them as an animation."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.frames: list[tuple[Image.Image, int]] = []

    def shot(self, milliseconds: int = SHORT) -> None:
        """Add what the page shows now."""
        image = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        height = round(image.height * WIDTH / image.width)
        image = image.resize((WIDTH, height), Image.Resampling.LANCZOS)
        self.frames.append((image, milliseconds))

    def save(self, path: Path) -> None:
        """Write all frames, in colors that they share, so that little changes between them."""
        # Small areas keep their colors, such as the icon's, which few pixels have.
        palette = self.frames[-1][0].quantize(COLORS, Image.Quantize.MAXCOVERAGE)
        images = [
            image.quantize(palette=palette, dither=Image.Dither.NONE) for image, _ in self.frames
        ]
        images[0].save(
            path,
            save_all=True,
            append_images=images[1:],
            duration=[milliseconds for _, milliseconds in self.frames],
            loop=0,
            optimize=False,
        )


def spiral(number: int) -> list[tuple[float, float]]:
    """Return the points of a spiral in the unit square; each is a little different."""
    angle, size = 0.12 * (number - 2), 0.36 + 0.015 * (number % 3)
    steps = [step / 30 for step in range(1, 31)]
    return [
        (0.5 + size * t * math.cos(12 * t + angle), 0.5 + size * t * math.sin(12 * t + angle))
        for t in steps
    ]


def draw(film: Film, points: list[tuple[float, float]]) -> None:
    """Draw with the mouse, and film how it grows."""
    pad = film.page.locator("#pad").bounding_box()
    assert pad is not None
    mouse = film.page.mouse
    for count, (x, y) in enumerate(points):
        mouse.move(pad["x"] + x * pad["width"], pad["y"] + y * pad["height"])
        if count == 0:
            mouse.down()
        elif count % (len(points) // PARTS) == 0:
            film.shot()
    mouse.up()


def teach_a_spiral(film: Film) -> None:
    """Draw, name and teach a class, and show that it is known then."""
    page = film.page
    page.get_by_label("Drawing", exact=True).check()
    film.shot(700)
    for number in range(5):
        if number:
            page.get_by_role("button", name="Draw another").click()
        draw(film, spiral(number))
        film.shot(300)
    page.wait_for_timeout(500)
    name = page.get_by_label("Name of the class")
    for length in (2, 4, 6):
        name.fill("spiral"[:length])
        film.shot()
    film.shot(900)
    page.get_by_role("button", name="Teach", exact=True).click()
    expect(page.locator("#notice")).to_contain_text("Learnt spiral from")
    film.shot(LONG)
    draw(film, spiral(5))
    expect(page.locator("#verdict")).to_have_text("spiral")
    page.wait_for_timeout(600)
    film.shot(2 * LONG)


@contextmanager
def serve_a_copy(folder: Path) -> Iterator[str]:
    """Serve a copy of the demo's model from a folder, and yield the address."""
    demo = demo_model(thumbnails=True)
    model = Path(shutil.copy(demo, folder / f"{NAME}.fewmore"))
    shutil.copytree(thumbnail_folder(demo), thumbnail_folder(model))
    command = [sys.executable, "-m", "fewmore", "serve", str(model), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = (re.search(r"http://\S+", line) for line in process.stdout)
            yield next(found[0] for found in lines if found)
        finally:
            process.terminate()


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Open Chromium."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def main() -> None:
    """Serve, film and write the file."""
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_a_copy(Path(folder)) as address,
        open_browser() as browser,
    ):
        page = browser.new_page(viewport=VIEWPORT, color_scheme="light")
        page.goto(address)
        expect(page.locator(".card").first).to_be_visible()
        film = Film(page)
        teach_a_spiral(film)
    film.save(FILE)
    print(f"{FILE}: {len(film.frames)} frames, {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
