"""Take the screenshots of docs/service.md in a browser: python docs/screenshots.py

All of them show a real `fewmore serve --demo`, or rather a copy of its model, to which a spiral, a
star and a house are taught. It needs Chromium and the extras `service` and `test`.
"""

import io
import random
import tempfile
from pathlib import Path

from animation import open_browser, serve_a_copy, spiral
from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFont
from playwright.sync_api import Browser, Page, expect

FIGURES = Path(__file__).parent / "figures"
COLORS = 128
DESK = {"viewport": {"width": 1100, "height": 820}}
PHONE = {"viewport": {"width": 360, "height": 780}, "device_scale_factor": 1.5, "is_mobile": True}
SANS = ["DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique"]
ITALIC = ["DejaVuSerif-Italic", "STIXGeneralItalic", "STIXGeneralBolIta", "cmmi10"]
Stroke = list[tuple[float, float]]
STAR: Stroke = [(0.5, 0.12), (0.76, 0.85), (0.12, 0.4), (0.88, 0.38), (0.26, 0.87), (0.49, 0.13)]
WALLS: Stroke = [(0.2, 0.9), (0.2, 0.45), (0.5, 0.12), (0.8, 0.44), (0.81, 0.88), (0.2, 0.9)]
DOOR: Stroke = [(0.42, 0.88), (0.43, 0.62), (0.57, 0.62), (0.58, 0.88)]


def tilt(strokes: list[Stroke], number: int) -> list[Stroke]:
    """Move every point a little, as a hand does; the number decides how."""
    shake = random.Random(number)
    return [
        [(x + shake.uniform(-0.02, 0.02), y + shake.uniform(-0.02, 0.02)) for x, y in stroke]
        for stroke in strokes
    ]


def draw(page: Page, strokes: list[Stroke]) -> None:
    """Draw with the mouse, with points between those of each stroke."""
    page.locator("#pad").scroll_into_view_if_needed()
    pad = page.locator("#pad").bounding_box()
    assert pad is not None
    for stroke in strokes:
        for count, (x, y) in enumerate(stroke):
            at = pad["x"] + x * pad["width"], pad["y"] + y * pad["height"]
            page.mouse.move(*at, steps=1 if count == 0 else 8)
            if count == 0:
                page.mouse.down()
        page.mouse.up()


def draw_five(page: Page, strokes: list[list[Stroke]], name: str) -> None:
    """Draw one class five times, and type its name."""
    for number, drawing in enumerate(strokes):
        if number:
            page.get_by_role("button", name="Draw another").click()
        draw(page, drawing)
    page.get_by_label("Name of the class").fill(name)
    page.wait_for_timeout(800)


def write_images(folder: Path, classes: dict[str, str], count: int, fonts: list[str]) -> Path:
    """Write a folder of a sub-folder a class: its character, in several sizes and colors."""
    for name, character in classes.items():
        place = folder / name
        place.mkdir(parents=True)
        for number in range(count):
            chance = random.Random(f"{name} {number}")
            font = Path(get_data_path(), "fonts", "ttf", f"{chance.choice(fonts)}.ttf")
            light = tuple(chance.randint(170, 255) for _ in range(3))
            dark = tuple(chance.randint(0, 110) for _ in range(3))
            image = Image.new("RGB", (160, 160), light)
            ImageDraw.Draw(image).text(
                (80, 80),
                character,
                fill=dark,
                font=ImageFont.truetype(font, chance.randint(100, 135)),
                anchor="mm",
            )
            angle = chance.uniform(-20, 20)
            image = image.rotate(angle, Image.Resampling.BICUBIC, fillcolor=light)
            image.save(place / f"{number}.png")
    return folder


def open_page(browser: Browser, address: str, **settings: object) -> Page:
    """Open the teach page for drawings."""
    page = browser.new_context(**{"reduced_motion": "reduce", **settings}).new_page()  # type: ignore[arg-type]
    page.goto(address)
    expect(page.locator(".card").first).to_be_visible()
    page.get_by_label("Drawing", exact=True).check()
    return page


def save(page: Page, name: str, part: str | None = None) -> None:
    """Write what the window shows, or one part of the page."""
    page.wait_for_timeout(600)
    shown = (page.locator(part) if part else page).screenshot()
    image = Image.open(io.BytesIO(shown)).convert("RGB").quantize(COLORS)
    image.save(FIGURES / f"service-{name}.png", optimize=True)


def teach(page: Page) -> None:
    """Teach three classes; show the first one before it is taught, and the last one known."""
    drawings = {
        "spiral": [[spiral(number)] for number in range(5)],
        "star": [tilt([STAR], number) for number in range(5)],
        "house": [tilt([WALLS, DOOR], number) for number in range(5)],
    }
    for name, strokes in drawings.items():
        draw_five(page, strokes, name)
        if name == "spiral":
            save(page, "teaching")
        page.get_by_role("button", name="Teach", exact=True).click()
        expect(page.locator("#notice")).to_contain_text(f"Learnt {name} from")
        page.get_by_role("button", name="Close this message").click()


def show_classes(page: Page) -> None:
    """Show the images of a class, the map, and the result of a test."""
    star = page.locator(".card").filter(has=page.get_by_role("heading", name="star", exact=True))
    star.get_by_role("button", name="Images of star").click()
    page.locator("#classes-title").scroll_into_view_if_needed()
    page.evaluate("document.querySelector('#classes-title').scrollIntoView()")
    save(page, "classes")
    with tempfile.TemporaryDirectory() as folder:
        classes = {name: name for name in "ABCDEGKMOQRSWXYZ0468"}
        images = write_images(Path(folder), classes, 5, ITALIC)
        page.locator("#test-folder").set_input_files(images)
        expect(page.locator("#test-sum")).to_contain_text("right", timeout=60_000)
        save(page, "test", "#test")


def show_images(browser: Browser, address: str) -> None:
    """Show two classes from a folder, not taught yet."""
    page = open_page(browser, address, viewport={"width": 1100, "height": 1000})
    page.get_by_label("Images", exact=True).check()
    with tempfile.TemporaryDirectory() as folder:
        images = write_images(Path(folder), {"heart": "♥", "music": "♫"}, 5, SANS)
        page.locator("#folder").set_input_files(images)
        expect(page.locator(".tile:not(.slot)")).to_have_count(10, timeout=60_000)
        page.wait_for_timeout(2000)
        save(page, "images")


def main() -> None:
    """Teach, and take all screenshots."""
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_a_copy(Path(folder)) as address,
        open_browser() as browser,
    ):
        page = open_page(browser, address, **DESK, color_scheme="light")
        teach(page)
        show_classes(page)
        save(page, "map", ".pair")
        show_images(browser, address)
        for name, device, scheme, strokes in (
            ("phone", PHONE, "light", [STAR]),
            ("phone-dark", PHONE, "dark", [STAR]),
            ("dark", DESK, "dark", tilt([WALLS, DOOR], 7)),
        ):
            page = open_page(browser, address, **device, color_scheme=scheme)
            draw(page, strokes)
            save(page, name)


if __name__ == "__main__":
    main()
