"""Test the page in a headless browser with a real `fewmore serve` process."""

import base64
import io
import json
import math
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fewmore import IncrementalClassifier

pytest.importorskip("playwright")
from playwright.sync_api import Browser, FilePayload, Locator, Page, Route, expect

Point = tuple[float, float]

expect.set_options(timeout=20_000)  # a loaded machine is slow

TOKEN = "open-sesame-open-sesame"
HOSTILE = '<img src=x onerror="document.title=1">&amp;'
SPIRAL = [
    (0.5 + 0.38 * t * math.cos(11 * t), 0.5 + 0.38 * t * math.sin(11 * t))
    for t in (step / 16 for step in range(1, 17))
]

# Returns every visible piece of text whose contrast with its background is below 4.5 : 1.
LOW_CONTRAST = """() => {
  const parse = (colour) => {
    const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number);
    return [r, g, b, a];
  };
  const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) =>
    0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const background = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour[3] === 1) return colour;
    }
    return [255, 255, 255, 1];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.data.trim();
    if (!text || !element.checkVisibility({ opacityProperty: true })) continue;
    if (element.closest(".visually-hidden, .remove, :disabled, svg")) continue;
    const front = luminance(parse(getComputedStyle(element).color));
    const back = luminance(background(element));
    const contrast = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    if (contrast < 4.5) found.push(`${text}: ${contrast.toFixed(2)}`);
  }
  return found;
}"""

# Returns every visible control without a name for screen readers.
UNNAMED = """() => {
  const controls = document.querySelectorAll("button, input, canvas, summary, [role=img]");
  const nameOf = (one) =>
    one.ariaLabel || one.labels?.[0]?.textContent.trim() || one.textContent.trim();
  return [...controls]
    .filter((one) => one.checkVisibility() && !nameOf(one))
    .map((one) => one.outerHTML);
}"""

# Draws horizontal lines at these heights, as fast as events can come; between two of them it
# begins another drawing.
QUICK_LINES = """([pointerType, heights]) => {
  const pad = document.getElementById("pad");
  const box = pad.getBoundingClientRect();
  pad.setPointerCapture = () => {};
  const stroke = [
    ["pointerdown", 0.2, 0],
    ["pointermove", 0.5, -1],
    ["pointermove", 0.8, -1],
    ["pointerup", 0.8, 0],
  ];
  heights.forEach((height, index) => {
    if (index) document.getElementById("another").click();
    for (const [type, x, button] of stroke) {
      const clientX = box.left + x * box.width;
      const clientY = box.top + height;
      const options = { pointerId: 7, pointerType, button, clientX, clientY, bubbles: true };
      pad.dispatchEvent(new PointerEvent(type, options));
    }
  });
}"""


class Service:
    """Send requests to the service as another client."""

    def __init__(self, url: str) -> None:
        self.url = url

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Any:
        request = urllib.request.Request(f"{self.url}/api/{path}", body, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)

    def reset(self) -> None:
        """Undo everything that was taught."""
        while self.request("GET", "sessions")["undoable"]:
            self.request("POST", "sessions/undo")


@pytest.fixture(scope="module")
def service(
    serving: Callable[..., Any], small_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """Run one process for all tests: starting it takes longer than most of them."""
    with serving(
        Path(shutil.copy(small_model, tmp_path_factory.mktemp("page") / "birds.fewmore"))
    ) as process:
        yield Service(process.url)


@pytest.fixture
def troubles() -> list[str]:
    """Collect the browser's errors and requests to elsewhere; clear it where some are expected."""
    return []


@pytest.fixture
def open_page(
    chromium: Browser, service: Service, troubles: list[str]
) -> Iterator[Callable[..., Page]]:
    """Return a function: open_page() loads the page of `service`, with settings for the context."""
    service.reset()
    contexts = []

    def opened(url: str = f"{service.url}/", wait: bool = True, **settings: object) -> Page:
        context = chromium.new_context(
            **{"viewport": {"width": 1200, "height": 900}, "reduced_motion": "reduce", **settings}
        )  # type: ignore[arg-type]
        context.set_default_timeout(20_000)
        contexts.append(context)
        page = context.new_page()
        own = (url.partition("#")[0], "blob:", "data:")
        page.on(
            "console",
            lambda message: (
                troubles.append(message.text) if message.type in ("error", "warning") else None
            ),
        )
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on(
            "request",
            lambda request: None if request.url.startswith(own) else troubles.append(request.url),
        )
        page.goto(url)
        if wait:
            expect(page.locator(".card").first).to_be_visible()
        return page

    yield opened
    for context in contexts:
        context.close()
    assert troubles == []


def draw(page: Page, *strokes: list[Point]) -> None:
    """Draw with the mouse."""
    pad = page.locator("#pad")
    pad.scroll_into_view_if_needed()
    box = pad.bounding_box()
    assert box is not None
    for stroke in strokes:
        places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in stroke]
        page.mouse.move(*places[0])
        page.mouse.down()
        for place in places[1:]:
            page.mouse.move(*place)
        page.mouse.up()


def files(photos: Callable[..., Path], name: str, count: int) -> list[FilePayload]:
    """Return images of a class; the first ones of a known bird are those it was trained on."""
    folder = photos("photos", {name: count}) / name
    return [
        {"name": path.name, "mimeType": "image/png", "buffer": path.read_bytes()}
        for path in sorted(folder.glob("*.png"))
    ]


def transfer(page: Page, event: str, payloads: list[FilePayload]) -> None:
    """Drop files on the page, or paste them."""
    page.evaluate(
        """([event, files]) => {
            const transfer = new DataTransfer();
            for (const { name, mimeType, data } of files) {
                const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
                transfer.items.add(new File([bytes], name, { type: mimeType }));
            }
            const options = { bubbles: true, cancelable: true };
            document.body.dispatchEvent(
                event === "drop"
                    ? new DragEvent(event, { ...options, dataTransfer: transfer })
                    : new ClipboardEvent(event, { ...options, clipboardData: transfer }),
            );
        }""",
        [
            event,
            [
                {**one, "buffer": None, "data": base64.b64encode(one["buffer"]).decode()}
                for one in payloads
            ],
        ],
    )


def teach(page: Page, name: str) -> None:
    page.get_by_label("Name of the class").fill(name)
    page.get_by_role("button", name="Teach", exact=True).click()
    expect(page.locator("#notice")).to_contain_text(f"Learnt {name} from")


def card(page: Page, name: str) -> Locator:
    return page.locator(".card").filter(has=page.get_by_role("heading", name=name, exact=True))


def test_a_symbol_is_drawn_taught_recognised_reloaded_and_undone(
    open_page: Callable[..., Page],
) -> None:
    page = open_page()
    page.get_by_label("Drawing", exact=True).check()
    for number in range(4):
        draw(page, [(x, y + number / 100) for x, y in SPIRAL])
        page.get_by_role("button", name="Draw another").click()
    draw(page, SPIRAL)
    expect(page.locator("#teach-hint")).to_have_text("5 drawings: good.")
    teach(page, "spiral")
    expect(page.locator("#notice")).to_contain_text("Learnt spiral from ")
    expect(page.locator(".tile:not(.slot)")).to_have_count(0)

    draw(page, SPIRAL)
    expect(page.locator("#verdict")).to_have_text("spiral")
    expect(page.locator(".bars li").first).to_contain_text("spiral")
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#verdict")).to_have_text("Draw, and its name appears here.")

    page.reload()
    expect(page.locator(".card h3").first).to_have_text("spiral")
    expect(page.locator(".card").first.locator("img").first).to_have_js_property("naturalWidth", 96)
    expect(page.locator("#history li").first).to_contain_text("spiral")
    expect(page.locator("#map .label.taught")).to_have_text("spiral")
    page.locator("#undo").click()
    expect(page.locator("#notice")).to_contain_text("Undone: the learning of spiral")
    expect(page.locator(".card h3")).to_have_text(["wren", "robin", "jay"])
    expect(page.locator("#undo")).to_be_disabled()


def test_dropped_images_are_predicted_taught_renamed_and_forgotten(
    open_page: Callable[..., Page], photos: Callable[..., Path]
) -> None:
    page = open_page()
    transfer(page, "drop", files(photos, "wren", 1))
    expect(page.locator("#verdict")).to_have_text("wren")
    expect(page.locator(".bars .name").first).to_have_text("wren")
    expect(page.locator("#shown img")).to_have_attribute("alt", "00.png")
    page.get_by_role("button", name="Clear").click()

    transfer(page, "drop", files(photos, "okapi", 5))
    expect(page.locator(".tray .choose")).to_have_count(5)
    teach(page, "okapi")
    expect(card(page, "okapi")).to_contain_text("5 images · taught")

    page.get_by_role("button", name="Rename okapi").click()
    page.get_by_label("New name of okapi").fill("zebra")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("button", name="Rename zebra")).to_be_focused()
    page.get_by_role("button", name="Forget zebra").click()
    expect(page.locator("#notice")).to_contain_text("zebra is forgotten.")
    expect(card(page, "zebra")).to_have_count(0)
    page.locator("#notice").get_by_role("button", name="Undo").click()
    expect(card(page, "zebra")).to_be_visible()


def test_a_name_is_text_wherever_it_is_shown(
    open_page: Callable[..., Page], photos: Callable[..., Path]
) -> None:
    page = open_page()
    payloads = files(photos, "okapi", 2)
    transfer(page, "drop", payloads)
    teach(page, HOSTILE)
    transfer(page, "drop", payloads[:1])
    for place in (
        "#verdict",
        ".choose span",
        ".bars li:first-child .name",
        ".card:first-child h3",
    ):
        expect(page.locator(place)).to_have_text(HOSTILE)
    for place in ("#history li:first-child", "#map-list li:first-child"):
        expect(page.locator(place)).to_contain_text(HOSTILE)
    page.get_by_role("button", name="Forget <img").click()
    expect(page.locator("#notice-text")).to_have_text(f"{HOSTILE} is forgotten.")
    assert page.title() == "birds · fewmore"
    assert page.locator("img[onerror], [src=x]").count() == 0


def test_everything_can_be_done_with_keys(open_page: Callable[..., Page]) -> None:
    page = open_page()
    keys = page.keyboard

    def tab_to(selector: str) -> None:
        for _ in range(60):
            if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
                return
            keys.press("Tab")
        pytest.fail(f"Tab does not reach {selector}")

    tab_to("[name=mode]")
    keys.press("ArrowRight")
    tab_to("#pad")
    expect(page.locator("#pad-help")).to_be_visible()
    for number in range(2):
        for key in ("Space", *["ArrowRight"] * (6 + number), *["ArrowDown"] * 6, "Space", "Enter"):
            keys.press(key)
    expect(page.locator(".tile:not(.slot)")).to_have_count(2)
    tab_to(".group input")
    keys.type("corner")
    keys.press("Enter")
    expect(card(page, "corner")).to_contain_text("2 images")
    tab_to("[aria-label='Rename corner']")
    keys.press("Enter")
    keys.type("angle")
    keys.press("Enter")
    expect(page.get_by_role("button", name="Rename angle")).to_be_focused()
    tab_to("[aria-label='Forget angle']")
    keys.press("Enter")
    expect(card(page, "angle")).to_have_count(0)
    expect(page.get_by_role("button", name="Forget wren")).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scrolling_and_text_stands_out(
    open_page: Callable[..., Page], scheme: str
) -> None:
    page = open_page(
        viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True, color_scheme=scheme
    )
    expect(page.get_by_text("Take a photo")).to_be_visible()
    assert page.locator("#photo").get_attribute("capture") == "environment"
    for mode in ("Drawing", "Images"):
        page.get_by_label(mode, exact=True).check()
        page.get_by_role(
            "button", name="Teach", exact=True
        ).click()  # its hint says what is missing
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        assert page.evaluate(LOW_CONTRAST) == []
        assert page.evaluate(UNNAMED) == []
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 200) == (scheme == "dark")


def test_fast_drawing_loses_no_stroke(open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.get_by_label("Drawing", exact=True).check()
    page.evaluate(QUICK_LINES, ["mouse", [100, 120, 140]])
    expect(page.locator(".tile:not(.slot)")).to_have_count(3)
    expect(page.locator(".tile.now")).to_be_visible()
    teach(page, "line")
    expect(card(page, "line")).to_be_visible()


# Longer tests


@pytest.mark.soak
def test_a_finger_and_a_pen_draw_as_the_mouse_does(open_page: Callable[..., Page]) -> None:
    page = open_page(has_touch=True)
    page.get_by_label("Drawing", exact=True).check()
    page.locator("#pad").tap(position={"x": 200, "y": 200})  # a dot
    expect(page.locator(".tile.now")).to_be_visible()
    page.evaluate(QUICK_LINES, ["pen", [100]])
    expect(page.locator("#verdict")).not_to_have_class("verdict resting")
    page.get_by_role("button", name="Draw another").click()
    expect(page.locator("#teach-hint")).to_have_text("1 of 5")
    page.get_by_role("button", name="Remove drawing 1").click()
    expect(page.locator(".tile:not(.slot)")).to_have_count(0)


@pytest.mark.soak
def test_a_drawing_is_sent_centred_with_the_expected_line_width(
    open_page: Callable[..., Page],
) -> None:
    page = open_page()
    page.get_by_label("Drawing", exact=True).check()
    draw(page, [(0.05, 0.05), (0.2, 0.05), (0.2, 0.3)])  # small, in a corner
    expect(page.locator(".tile.now canvas")).to_be_visible()
    data = page.evaluate("document.querySelector('.tile.now canvas').toDataURL()")
    ink = (
        np.asarray(Image.open(io.BytesIO(base64.b64decode(data.partition(",")[2]))).convert("L"))
        < 128
    )
    rows, columns = np.flatnonzero(ink.any(1)), np.flatnonzero(ink.any(0))
    assert ink.shape == (128, 128)
    assert abs(len(rows) - 0.7 * 128) < 4
    assert abs(rows.mean() - 63.5) < 2
    assert abs(columns.mean() - 63.5) < 2
    assert abs(ink[64].sum() - 128 / 12) < 3  # the upright stroke, cut across


@pytest.mark.soak
def test_images_can_be_pasted_and_chosen_and_added_to_a_class(
    open_page: Callable[..., Page], photos: Callable[..., Path]
) -> None:
    page = open_page()
    payloads = files(photos, "robin", 8)
    transfer(page, "paste", payloads[:2])
    expect(page.locator(".choose span")).to_have_text(["robin", "robin"])
    page.locator(".choose").nth(1).click()
    expect(page.locator("#shown img")).to_have_attribute("alt", payloads[1]["name"])
    page.get_by_role("button", name="Remove image 1").click()
    expect(page.locator(".choose")).to_have_count(1)
    page.get_by_role("button", name="Clear").click()
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Add images to robin").click()
    chooser.value.set_files(payloads[5:8])
    expect(page.locator(".choose")).to_have_count(3)
    expect(page.get_by_label("Name of the class")).to_have_value("robin")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.locator("#notice")).to_contain_text("robin has 3 images more.")
    expect(card(page, "robin")).to_contain_text("8 images")


@pytest.mark.soak
def test_the_camera_is_predicted_and_taught_from(open_page: Callable[..., Page]) -> None:
    page = open_page(permissions=["camera"])
    page.get_by_role("button", name="Camera", exact=True).click()
    expect(page.locator("#verdict")).not_to_have_class("verdict resting")
    record = page.get_by_role("button", name="Hold to record")
    record.press("Space")  # one
    expect(page.locator(".choose")).to_have_count(1)
    record.hover()
    page.mouse.down()
    expect(page.locator(".choose").nth(3)).to_be_visible()
    page.mouse.up()
    count = page.locator(".choose").count()
    page.wait_for_timeout(600)
    assert page.locator(".choose").count() <= count + 1
    record.dispatch_event("click")  # as a screen reader does
    expect(page.locator(".choose").nth(count)).to_be_visible()
    teach(page, "test card")
    expect(page.locator("#verdict")).to_have_text("test card")
    page.get_by_role("button", name="Camera off").click()
    expect(page.locator("#video")).to_be_hidden()
    expect(page.locator("#verdict")).to_have_text("Show an image, and its name appears here.")


@pytest.mark.soak
def test_errors_are_the_services_own_messages(
    open_page: Callable[..., Page], photos: Callable[..., Path], troubles: list[str]
) -> None:
    page = open_page()
    broken: FilePayload = {"name": "notes.png", "mimeType": "image/png", "buffer": b"no image"}
    transfer(page, "drop", [*files(photos, "wren", 1), broken])
    expect(page.locator("#notice")).to_contain_text("notes.png cannot be read as an image")
    expect(page.locator(".choose span")).to_have_text(["wren", "unreadable"])
    page.get_by_label("Name of the class").fill("n" * 300)
    page.get_by_role("button", name="Teach", exact=True).click()
    expect(page.locator("#notice.error")).to_contain_text("200")
    expect(page.locator(".choose")).to_have_count(2)  # nothing of the person's work is lost
    page.get_by_role("button", name="Rename wren").click()
    page.get_by_label("New name of wren").fill("robin")
    page.keyboard.press("Enter")
    expect(page.locator("#notice.error")).to_contain_text("robin")
    expect(page.get_by_label("New name of wren")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Rename wren")).to_be_focused()
    assert all(trouble.startswith("Failed to load resource") for trouble in troubles)
    troubles.clear()


@pytest.mark.soak
def test_a_busy_service_is_retried_and_a_missing_one_is_reported(
    open_page: Callable[..., Page], photos: Callable[..., Path], troubles: list[str]
) -> None:
    page = open_page()
    keys = []

    def busy_once(route: Route) -> None:
        keys.append(route.request.headers["idempotency-key"])
        if len(keys) == 1:
            route.fulfill(status=503, headers={"Retry-After": "1"}, json={"detail": "busy"})
        else:
            route.continue_()

    page.route(
        "**/api/classes",
        lambda route: busy_once(route) if route.request.method == "POST" else route.continue_(),
    )
    transfer(page, "drop", files(photos, "okapi", 2))
    teach(page, "okapi")
    assert len(keys) == 2
    assert keys[0] == keys[1]
    page.route("**/api/**", lambda route: route.abort())
    page.locator("#undo").click()
    expect(page.locator("#notice.error")).to_contain_text("The service does not answer")
    assert all(trouble.startswith("Failed to load resource") for trouble in troubles)
    troubles.clear()


@pytest.mark.soak
def test_what_another_client_changes_shows_with_the_next_prediction(
    open_page: Callable[..., Page], service: Service, photos: Callable[..., Path]
) -> None:
    page = open_page()
    service.request(
        "PATCH", "classes?name=jay", b'{"name": "magpie"}', **{"Content-Type": "application/json"}
    )
    transfer(page, "drop", files(photos, "jay", 1))
    expect(card(page, "magpie")).to_be_visible()
    expect(page.locator("#verdict")).to_have_text("magpie")


@pytest.mark.soak
def test_without_classes_it_says_what_to_do(
    open_page: Callable[..., Page], photos: Callable[..., Path], troubles: list[str]
) -> None:
    page = open_page()
    for name in ("jay", "robin", "wren"):
        page.get_by_role("button", name=f"Forget {name}").click()
        expect(card(page, name)).to_have_count(0)
    expect(page.locator("#classes-empty")).to_be_visible()
    transfer(page, "drop", files(photos, "okapi", 1))
    expect(page.locator("#verdict")).to_contain_text("no class")
    teach(page, "okapi")
    expect(page.locator(".card h3")).to_have_text(["okapi"])
    troubles.clear()


@pytest.mark.soak
@pytest.mark.parametrize("private", [False, True])
def test_the_token_is_requested_and_remembered(
    open_page: Callable[..., Page],
    serving: Callable[..., Any],
    small_model: Path,
    tmp_path: Path,
    photos: Callable[..., Path],
    troubles: list[str],
    private: bool,
) -> None:
    model = Path(shutil.copy(small_model, tmp_path / "birds.fewmore"))
    with serving(model, "--token", TOKEN, *([] if private else ["--public-reading"])) as process:
        page = open_page(f"{process.url}/", wait=not private)
        if not private:
            page.get_by_role("button", name="Forget jay").click()
        token = page.get_by_label("It was printed when the service started.")
        token.fill("wrong-token")
        page.keyboard.press("Enter")
        expect(page.locator("#token-wrong")).to_contain_text("That is not the token.")
        token.fill(TOKEN)
        page.keyboard.press("Enter")
        expect(page.locator(".card")).to_have_count(3 if private else 2)
        transfer(page, "drop", files(photos, "okapi", 2))
        teach(page, "okapi")
        page.reload()
        expect(card(page, "okapi").locator("img").first).to_have_js_property("naturalWidth", 96)
        assert page.locator("dialog[open]").count() == 0

        page.close()  # or it would log that the service, when killed, ends its events
        page = open_page(f"{process.url}/#token={TOKEN}")
        assert TOKEN not in page.url
        page.get_by_role("button", name="Forget okapi").click()
        expect(card(page, "okapi")).to_have_count(0)
        page.close()
        assert all("401" in trouble for trouble in troubles)
        troubles.clear()


@pytest.mark.soak
def test_the_model_can_be_downloaded(open_page: Callable[..., Page], tmp_path: Path) -> None:
    page = open_page()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download the model").click()
    assert download.value.suggested_filename == "birds.fewmore"
    download.value.save_as(tmp_path / "birds.fewmore")
    assert list(IncrementalClassifier.load(tmp_path / "birds.fewmore").classes_) == [
        "jay",
        "robin",
        "wren",
    ]


@pytest.mark.soak
def test_many_classes_can_be_searched_and_the_map_moves(open_page: Callable[..., Page]) -> None:
    """Use made-up responses: forty classes, with an adapter."""
    names = [f"class {number}" for number in range(40)]
    classes = [
        {"name": name, "images": 5, "taught": number > 30, "thumbnails": []}
        for number, name in enumerate(names)
    ]
    places = [
        {"name": name, "taught": n > 30, "before": [n / 40, 0.5 * (n % 2)], "after": [n / 40, 0.0]}
        for n, name in enumerate(names)
    ]

    page = open_page()
    page.route(
        "**/api/classes?*",
        lambda route: route.fulfill(json={"version": 1, "total": 40, "classes": classes}),
    )
    page.route(
        "**/api/map",
        lambda route: route.fulfill(json={"version": 1, "adapted": True, "classes": places}),
    )
    page.reload()
    expect(page.locator(".card")).to_have_count(12)
    page.get_by_role("button", name="Show more").click()
    expect(page.locator(".card")).to_have_count(24)
    page.get_by_label("Search the classes").fill("class 7")
    expect(page.locator(".card h3")).to_have_text(["class 7"])
    page.get_by_label("Search the classes").fill("okapi")
    expect(page.locator("#classes-empty")).to_have_text("No class has this in its name.")

    circles = page.locator("#map circle")

    def height(number: int) -> float:
        box = circles.nth(number).bounding_box()
        assert box is not None
        return box["y"]

    assert height(0) == height(1)
    page.get_by_label("Before adapting").check()
    assert height(0) > height(1) + 50
    page.get_by_text("The map as a list").click()
    expect(page.locator("#map-list li").first).to_have_text("class 39: closest to class 38")


# Several people


def test_two_tabs_follow_each_other_and_undo_only_their_own(
    open_page: Callable[..., Page], troubles: list[str], photos: Callable[..., Path]
) -> None:
    one, other = open_page(), open_page()
    one.locator("#files").set_input_files(files(photos, "okapi", 3))
    teach(one, "okapi")
    expect(card(other, "okapi")).to_be_visible()  # without a request of its own
    other.locator("#files").set_input_files(files(photos, "zebra", 3))
    teach(other, "zebra")
    expect(card(one, "zebra")).to_be_visible()
    expect(one.locator("#notice")).to_contain_text("Learnt okapi from")
    one.locator("#notice-action").click()
    expect(one.locator("#notice")).to_contain_text(
        "someone else was faster: learning of zebra"
    )
    expect(card(one, "zebra")).to_be_visible()
    expect(card(one, "okapi")).to_be_visible()
    assert len(troubles) == 1  # the browser logs the refusal
    assert "412" in troubles.pop()
    other.locator("#notice-action").click()
    expect(other.locator("#notice")).to_contain_text("Undone: the learning of zebra")
    expect(card(one, "zebra")).to_have_count(0)
    one.locator("#undo").click()  # it names the change that is the last one now
    expect(one.locator("#notice")).to_contain_text("Undone: the learning of okapi")


def test_a_change_without_a_response_keeps_its_key(
    open_page: Callable[..., Page],
    service: Service,
    troubles: list[str],
    photos: Callable[..., Path],
) -> None:
    page = open_page()
    for name in ("okapi", "zebra"):
        page.locator("#files").set_input_files(files(photos, name, 3))
        teach(page, name)
    keys = []

    def lose(route: Route) -> None:
        keys.append(route.request.headers["idempotency-key"])
        if len(keys) == 1:
            route.fetch()  # it arrives, and its response does not
            route.abort()
        else:
            route.continue_()

    page.route("**/api/sessions/undo", lose)
    page.route("**/api/events", lambda route: route.abort())
    undo = page.locator("#notice-action")
    undo.evaluate("(button) => (button.again = button.onclick)")
    undo.click()
    expect(page.locator("#notice")).to_contain_text("does not answer")
    undo.evaluate("(button) => button.again()")
    expect(page.locator("#notice")).to_contain_text("Undone: the learning of zebra")
    assert len(set(keys)) == 1
    assert "okapi" in [row["classes"][0] for row in service.request("GET", "sessions")["sessions"]]
    troubles.clear()  # the lost response
