"""Test drawing: by mouse, finger, pen and keys."""

import base64
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("playwright")
from playwright.sync_api import Page, expect

Hand = Any
OpenPage = Callable[..., Page]

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


def test_a_symbol_is_drawn_taught_recognised_reloaded_and_undone(
    open_page: OpenPage,
    hand: Hand,
) -> None:
    page = open_page()
    page.get_by_label("Drawing", exact=True).check()
    for number in range(4):
        hand.draw(page, [(x, y + number / 100) for x, y in hand.SPIRAL])
        page.get_by_role("button", name="Draw another").click()
    hand.draw(page, hand.SPIRAL)
    expect(page.locator("#teach-hint")).to_have_text("5 drawings: good.")
    hand.teach(page, "spiral")
    expect(page.locator("#notice")).to_contain_text("Learnt spiral from ")
    expect(page.locator(".tile:not(.slot)")).to_have_count(0)

    hand.draw(page, hand.SPIRAL)
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
    expect(page.locator(".card h3")).to_have_text(["jay", "robin", "wren"])
    expect(page.locator("#undo")).to_be_disabled()


def test_fast_drawing_loses_no_stroke(open_page: OpenPage, hand: Hand) -> None:
    page = open_page()
    page.get_by_label("Drawing", exact=True).check()
    page.evaluate(QUICK_LINES, ["mouse", [100, 120, 140]])
    expect(page.locator(".tile:not(.slot)")).to_have_count(3)
    expect(page.locator(".tile.now")).to_be_visible()
    hand.teach(page, "line")
    expect(hand.card(page, "line")).to_be_visible()


@pytest.mark.soak
def test_a_finger_and_a_pen_draw_as_the_mouse_does(open_page: OpenPage) -> None:
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
    open_page: OpenPage,
    hand: Hand,
) -> None:
    page = open_page()
    page.get_by_label("Drawing", exact=True).check()
    hand.draw(page, [(0.05, 0.05), (0.2, 0.05), (0.2, 0.3)])  # small, in a corner
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


def test_no_control_moves_while_the_mouse_presses_it(open_page: OpenPage, hand: Hand) -> None:
    page = open_page()
    page.get_by_label("Drawing", exact=True).check()
    page.locator("#pad").press("Shift")  # keys are used, so the focus of the pad is visible
    hand.draw(page, hand.SPIRAL)
    page.get_by_label("Name of the class").fill("spiral")
    page.keyboard.press("Enter")
    expect(page.locator("#notice")).to_contain_text("Learnt spiral from")
    expect(page.locator("#pad")).to_be_focused()
    for number in range(1, 3):
        hand.draw(page, hand.SPIRAL[: -4 * number])
        hand.press_slowly(page, page.get_by_role("button", name="Draw another"))
        expect(page.locator(".tile:not(.slot)")).to_have_count(number)
        expect(page.locator(".tile.now")).to_have_count(0)
        page.keyboard.press("Shift")  # and visible once more
    hand.draw(page, hand.SPIRAL)
    hand.press_slowly(page, page.get_by_role("button", name="Clear"))
    expect(page.locator(".tile.now")).to_have_count(0)
    page.keyboard.press("Shift")
    page.get_by_label("Name of the class").fill("coil")
    page.locator("#pad").focus()
    hand.press_slowly(page, page.get_by_role("button", name="Teach", exact=True))
    expect(page.locator("#notice")).to_contain_text("Learnt coil from 2 images")


def test_buttons_stay_where_they_are_whatever_is_seen(open_page: OpenPage, hand: Hand) -> None:
    """Compare the places of all controls with and without focus, hints and predictions."""
    page = open_page()
    page.get_by_label("Drawing", exact=True).check()
    places = """() => ["another", "clear", "teach-button"].map((id) => {
        const { x, y } = document.getElementById(id).getBoundingClientRect();
        return [id, Math.round(x), Math.round(y + scrollY)];
    })"""
    resting = page.evaluate(places)
    page.locator("#pad").press("Shift")
    expect(page.locator("#pad-help")).to_be_visible()
    assert page.evaluate(places) == resting
    long = {"name": "a very long name " * 8, "confidence": 0.9}
    answer = {"known": True, "familiarity": 1.0, "classes": [long] * 5}
    page.route(
        "**/api/predict*",
        lambda route: route.fulfill(json={"version": 1, "predictions": [answer]}),
    )
    hand.draw(page, hand.SPIRAL)
    expect(page.locator("#verdict")).to_contain_text("a very long name")
    assert page.evaluate(places) == resting


def test_a_lesson_of_somebody_else_waits_until_the_mouse_is_released(
    open_page: OpenPage, hand: Hand, service: Any, troubles: list[str]
) -> None:
    page = open_page()
    button = page.get_by_role("button", name="Forget wren")
    button.scroll_into_view_if_needed()
    button.hover()
    page.clock.set_fixed_time(0)  # or it would wait for three seconds alone
    page.mouse.down()
    body = b'{"name": "aaa"}'
    service.request("PATCH", "classes?name=jay", body, **{"Content-Type": "application/json"})
    service.request("DELETE", "classes?name=robin")
    page.wait_for_timeout(500)
    expect(page.locator(".card h3")).to_have_text(["jay", "robin", "wren"])
    with page.expect_console_message(lambda message: "412" in message.text):
        page.mouse.up()
    expect(page.locator(".card h3").filter(has_text="aaa")).to_be_visible()
    expect(hand.card(page, "wren")).to_be_visible()
    assert "412" in troubles.pop()  # it was pressed for another version
