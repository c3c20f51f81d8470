"""Test errors, tokens, lost responses and several people at once."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright")
from playwright.sync_api import FilePayload, Page, Route, expect

Hand = Any
OpenPage = Callable[..., Page]

TOKEN = "open-sesame-open-sesame"


@pytest.mark.soak
def test_errors_are_the_services_own_messages(
    open_page: OpenPage, hand: Hand, photos: Callable[..., Path], troubles: list[str]
) -> None:
    page = open_page()
    broken: FilePayload = {"name": "notes.png", "mimeType": "image/png", "buffer": b"no image"}
    hand.transfer(page, "drop", [*hand.files(photos, "wren", 1), broken])
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
    open_page: OpenPage, hand: Hand, photos: Callable[..., Path], troubles: list[str]
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
    hand.transfer(page, "drop", hand.files(photos, "okapi", 2))
    hand.teach(page, "okapi")
    assert len(keys) == 2
    assert keys[0] == keys[1]
    page.route("**/api/**", lambda route: route.abort())
    page.locator("#undo").click()
    expect(page.locator("#notice.error")).to_contain_text("The service does not answer")
    assert all(trouble.startswith("Failed to load resource") for trouble in troubles)
    troubles.clear()


@pytest.mark.soak
def test_what_another_client_changes_shows_with_the_next_prediction(
    open_page: OpenPage, hand: Hand, service: Any, photos: Callable[..., Path]
) -> None:
    page = open_page()
    service.request(
        "PATCH", "classes?name=jay", b'{"name": "magpie"}', **{"Content-Type": "application/json"}
    )
    hand.transfer(page, "drop", hand.files(photos, "jay", 1))
    expect(hand.card(page, "magpie")).to_be_visible()
    expect(page.locator("#verdict")).to_have_text("magpie")


@pytest.mark.soak
def test_without_classes_it_says_what_to_do(
    open_page: OpenPage, hand: Hand, photos: Callable[..., Path], troubles: list[str]
) -> None:
    page = open_page()
    for name in ("jay", "robin", "wren"):
        page.get_by_role("button", name=f"Forget {name}").click()
        expect(hand.card(page, name)).to_have_count(0)
    expect(page.locator("#classes-empty")).to_be_visible()
    hand.transfer(page, "drop", hand.files(photos, "okapi", 1))
    expect(page.locator("#verdict")).to_contain_text("no class")
    hand.teach(page, "okapi")
    expect(page.locator(".card h3")).to_have_text(["okapi"])
    troubles.clear()


@pytest.mark.soak
@pytest.mark.parametrize("private", [False, True])
def test_the_token_is_requested_and_remembered(
    open_page: OpenPage,
    hand: Hand,
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
        hand.transfer(page, "drop", hand.files(photos, "okapi", 2))
        hand.teach(page, "okapi")
        page.reload()
        expect(hand.card(page, "okapi").locator("img").first).to_have_js_property(
            "naturalWidth", 96
        )
        assert page.locator("dialog[open]").count() == 0

        page.close()  # or it would log that the service, when killed, ends its events
        page = open_page(f"{process.url}/#token={TOKEN}")
        assert TOKEN not in page.url
        page.get_by_role("button", name="Forget okapi").click()
        expect(hand.card(page, "okapi")).to_have_count(0)
        page.close()
        assert all("401" in trouble for trouble in troubles)
        troubles.clear()


def test_two_tabs_follow_each_other_and_undo_only_their_own(
    open_page: OpenPage, hand: Hand, troubles: list[str], photos: Callable[..., Path]
) -> None:
    one, other = open_page(), open_page()
    one.locator("#files").set_input_files(hand.files(photos, "okapi", 3))
    hand.teach(one, "okapi")
    one.locator("#notice").hover()  # so that it stays
    expect(hand.card(other, "okapi")).to_be_visible()  # without a request of its own
    other.locator("#files").set_input_files(hand.files(photos, "zebra", 3))
    hand.teach(other, "zebra")
    expect(hand.card(one, "zebra")).to_be_visible()
    expect(one.locator("#notice")).to_contain_text("Learnt okapi from")
    with one.expect_console_message(lambda message: "412" in message.text):
        one.locator("#notice-action").click()
    expect(one.locator("#notice")).to_contain_text("someone else was faster: learning of zebra")
    expect(hand.card(one, "zebra")).to_be_visible()
    expect(hand.card(one, "okapi")).to_be_visible()
    assert len(troubles) == 1  # the browser logs the refusal
    assert "412" in troubles.pop()
    other.locator("#notice-action").click()
    expect(other.locator("#notice")).to_contain_text("Undone: the learning of zebra")
    expect(hand.card(one, "zebra")).to_have_count(0)
    one.locator("#undo").click()  # it names the change that is the last one now
    expect(one.locator("#notice")).to_contain_text("Undone: the learning of okapi")


def test_undo_can_be_pressed_twice_at_once(
    open_page: OpenPage, hand: Hand, photos: Callable[..., Path]
) -> None:
    page = open_page()
    for name in ("okapi", "zebra"):
        page.locator("#files").set_input_files(hand.files(photos, name, 3))
        hand.teach(page, name)
    page.locator("#undo").evaluate("(button) => [button.click(), button.click()]")
    expect(page.locator(".card h3")).to_have_text(["jay", "robin", "wren"])


def test_a_change_without_a_response_keeps_its_key(
    open_page: OpenPage,
    hand: Hand,
    service: Any,
    troubles: list[str],
    photos: Callable[..., Path],
) -> None:
    page = open_page()
    for name in ("okapi", "zebra"):
        page.locator("#files").set_input_files(hand.files(photos, name, 3))
        hand.teach(page, name)
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


def test_a_change_after_an_undo_is_a_new_one(
    open_page: OpenPage, hand: Hand, troubles: list[str]
) -> None:
    page = open_page()
    lost: list[Route] = []

    def lose(route: Route) -> None:
        if lost:
            route.continue_()
            return
        lost.append(route)
        route.fetch()  # it arrives, and its response does not
        route.abort()

    page.route(re.compile(r"/api/classes\?name=jay$"), lose)
    forget = page.get_by_role("button", name="Forget jay")
    forget.click()
    expect(hand.card(page, "jay")).to_have_count(0)  # as the service's events say
    assert len(lost) == 1
    page.locator("#undo").click()
    expect(hand.card(page, "jay")).to_be_visible()
    forget.click()
    expect(page.locator("#notice-text")).to_have_text("jay is forgotten.")
    expect(hand.card(page, "jay")).to_have_count(0)
    troubles.clear()  # the lost response


def test_predictions_come_back_by_themselves_after_a_break(
    open_page: OpenPage, hand: Hand, troubles: list[str]
) -> None:
    page = open_page()
    page.get_by_label("Drawing", exact=True).check()
    page.route("**/api/predict*", lambda route: route.abort())
    hand.draw(page, hand.SPIRAL)
    expect(page.locator("#verdict")).to_contain_text("does not answer")
    page.unroute("**/api/predict*")
    expect(page.locator("#verdict")).not_to_have_class("verdict resting")
    troubles.clear()


@pytest.mark.soak
def test_an_address_with_the_token_closes_the_dialog(
    open_page: OpenPage,
    serving: Callable[..., Any],
    small_model: Path,
    tmp_path: Path,
    troubles: list[str],
) -> None:
    model = Path(shutil.copy(small_model, tmp_path / "birds.fewmore"))
    with serving(model, "--token", TOKEN) as process:
        page = open_page(f"{process.url}/", wait=False)
        expect(page.locator("dialog[open]")).to_be_visible()
        page.evaluate("(token) => (location.hash = `#token=${token}`)", TOKEN)
        expect(page.locator(".card")).to_have_count(3)
        expect(page.locator("dialog[open]")).to_have_count(0)
        page.close()
        troubles.clear()
