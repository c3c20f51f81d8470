"""Open the page in a headless browser, with a real `fewmore serve` process behind it."""

import base64
import json
import math
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright")
from playwright.sync_api import Browser, FilePayload, Locator, Page, expect

Point = tuple[float, float]

expect.set_options(timeout=20_000)  # a loaded machine is slow


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


@pytest.fixture(scope="session")
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


class Hand:
    """Do with a page what a person does."""

    SPIRAL = tuple(
        (0.5 + 0.38 * t * math.cos(11 * t), 0.5 + 0.38 * t * math.sin(11 * t))
        for t in (step / 16 for step in range(1, 17))
    )

    @staticmethod
    def draw(page: Page, *strokes: list[Point]) -> None:
        """Draw with the mouse."""
        pad = page.locator("#pad")
        pad.scroll_into_view_if_needed()
        box = pad.bounding_box()
        assert box is not None
        for stroke in strokes:
            places = [
                (box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in stroke
            ]
            page.mouse.move(*places[0])
            page.mouse.down()
            for place in places[1:]:
                page.mouse.move(*place)
            page.mouse.up()

    @staticmethod
    def files(photos: Callable[..., Path], name: str, count: int) -> list[FilePayload]:
        """Return images of a class; the first ones of a known bird are those it was trained on."""
        folder = photos("photos", {name: count}) / name
        return [
            {"name": path.name, "mimeType": "image/png", "buffer": path.read_bytes()}
            for path in sorted(folder.glob("*.png"))
        ]

    @staticmethod
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

    @staticmethod
    def press_slowly(page: Page, button: Locator) -> None:
        """Press the mouse on a button where it is now, wait as people do, and release it."""
        box = button.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.mouse.down()
        page.wait_for_timeout(150)
        page.mouse.up()

    @staticmethod
    def teach(page: Page, name: str) -> None:
        page.get_by_label("Name of the class").fill(name)
        page.get_by_role("button", name="Teach", exact=True).click()
        expect(page.locator("#notice")).to_contain_text(f"Learnt {name} from")

    @staticmethod
    def card(page: Page, name: str) -> Locator:
        return page.locator(".card").filter(has=page.get_by_role("heading", name=name, exact=True))


@pytest.fixture(scope="session")
def hand() -> Hand:
    """Return what draws, drops and teaches."""
    return Hand()
