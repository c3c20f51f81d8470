"""Test that the page can be used by keys, on a phone, and with a screen reader."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright")
import axe_playwright_python
from playwright.sync_api import Page, expect

AXE = Path(axe_playwright_python.__file__).parent / "axe.min.js"
Hand = Any
OpenPage = Callable[..., Page]

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


def test_everything_can_be_done_with_keys(open_page: OpenPage, hand: Hand) -> None:
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
    expect(hand.card(page, "corner")).to_contain_text("2 images")
    tab_to("[aria-label='Rename corner']")
    keys.press("Enter")
    keys.type("angle")
    keys.press("Enter")
    expect(page.get_by_role("button", name="Rename angle")).to_be_focused()
    tab_to("[aria-label='Forget angle']")
    keys.press("Enter")
    expect(hand.card(page, "angle")).to_have_count(0)
    expect(page.get_by_role("button", name="Forget jay")).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scrolling_and_text_stands_out(
    open_page: OpenPage, scheme: str
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


def test_on_a_phone_the_buttons_below_several_classes_have_room_for_their_text(
    open_page: OpenPage, photos: Callable[..., Path]
) -> None:
    page = open_page(viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    page.locator("#folder").set_input_files(photos("lessons", {"okapi": 1, "zebra": 1}))
    expect(page.locator("#teach-button")).to_have_text("Teach 2 classes")
    for name in ("#teach-button", "#another-class"):
        room = page.locator(name).evaluate(
            """button => {
                const text = document.createRange();
                text.selectNodeContents(button);
                const { paddingLeft, width } = getComputedStyle(button);
                const most = parseFloat(width) - 2 * parseFloat(paddingLeft);
                return most - text.getBoundingClientRect().width;
            }"""
        )
        assert room >= 0, name
    assert page.evaluate("document.documentElement.scrollWidth") == 360


# axe-core looks for violations of WCAG A and AA, and of good practice


def drawn(page: Page, hand: Hand, photos: Callable[..., Path]) -> None:
    page.get_by_label("Drawing", exact=True).check()
    hand.draw(page, hand.SPIRAL)
    expect(page.locator("#verdict")).not_to_have_class("verdict resting")
    page.get_by_role("button", name="Draw another").click()
    page.keyboard.press("Shift")


def taught(page: Page, hand: Hand, photos: Callable[..., Path]) -> None:
    page.locator("#files").set_input_files(hand.files(photos, "okapi", 6))
    hand.teach(page, "okapi")
    page.get_by_role("button", name="Images of okapi").click()
    expect(hand.card(page, "okapi").locator(".remove")).to_have_count(6)


def prepared(page: Page, hand: Hand, photos: Callable[..., Path]) -> None:
    page.locator("#folder").set_input_files(photos("lessons", {"okapi": 30, "zebra": 2}))
    expect(page.locator(".choose span").first).to_have_text(re.compile("[a-z]"))
    page.get_by_role("button", name="Rename wren").click()


def examined(page: Page, hand: Hand, photos: Callable[..., Path]) -> None:
    page.locator("#test-folder").set_input_files(photos("exam", {"okapi": 3, "wren": 2}))
    expect(page.locator("#test-sum")).to_be_visible()
    page.get_by_text("By class").click()
    page.get_by_text("The map as a list").click()


def long_history(page: Page, hand: Hand, photos: Callable[..., Path]) -> None:
    change = {"kind": "learn", "more": 0, "images": 5, "text": "", "when": "2026-11-15T12:00Z"}
    sessions = [{**change, "number": n + 5, "classes": [f"class {n}"]} for n in range(50)]
    answer = {"version": 1, "undoable": True, "total": 55, "sessions": sessions}
    page.route("**/api/sessions?*", lambda route: route.fulfill(json=answer))
    page.reload()
    expect(page.locator("#history li")).to_have_count(50)


def failed(page: Page, hand: Hand, photos: Callable[..., Path]) -> None:
    page.get_by_role("button", name="Teach", exact=True).click()
    page.route("**/api/classes?*", lambda route: route.fulfill(status=409, json={"detail": "no"}))
    page.get_by_role("button", name="Forget wren").click()
    expect(page.locator("#notice.error")).to_be_visible()


def asked(page: Page, hand: Hand, photos: Callable[..., Path]) -> None:
    page.route("**/api/classes?*", lambda route: route.fulfill(status=401, json={"detail": "no"}))
    page.get_by_role("button", name="Forget wren").click()
    page.locator("#token").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#token-wrong")).to_be_visible()


def opened(page: Page, hand: Hand, photos: Callable[..., Path]) -> None:
    """Look at the page as it comes."""


STATES = (opened, drawn, taught, prepared, examined, long_history, failed, asked)
LIGHT_DESK: dict[str, object] = {}
DARK_PHONE: dict[str, object] = {
    "viewport": {"width": 390, "height": 780},
    "has_touch": True,
    "is_mobile": True,
    "color_scheme": "dark",
}
# A window of 1280 × 900 at 400 % has the room of a quarter of it.
ZOOMED: dict[str, object] = {
    "viewport": {"width": 320, "height": 225},
    "device_scale_factor": 4,
}
SETTINGS = {"light desk": LIGHT_DESK, "dark phone": DARK_PHONE, "zoomed": ZOOMED}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("state", STATES, ids=[state.__name__ for state in STATES])
def test_axe_finds_no_violation(
    open_page: OpenPage,
    hand: Hand,
    photos: Callable[..., Path],
    troubles: list[str],
    state: Callable[..., None],
    settings: dict[str, object],
) -> None:
    page = open_page(**settings)
    state(page, hand, photos)
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("async () => (await axe.run()).violations")
    short = [(one["id"], one["impact"], [n["target"] for n in one["nodes"]]) for one in found]
    assert short == [], json.dumps(short, indent=1)
    troubles.clear()  # refusals that a state provokes
