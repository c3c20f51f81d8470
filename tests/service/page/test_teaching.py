"""Test teaching with images, and what becomes of unfinished work."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright")
from playwright.sync_api import Page, Route, expect

Hand = Any
OpenPage = Callable[..., Page]

# Returns whether the browser has stored the drawing that is on the pad, and the two before it.
KEPT = """() => new Promise((resolve) => {
  indexedDB.open("fewmore", 1).onsuccess = ({ target: { result: database } }) => {
    const request = database.transaction("trays").objectStore("trays").getAll();
    request.onsuccess = () => {
      database.close();
      const isAll = ({ strokes, tray }) =>
        strokes.length === 1 && tray?.groups.at(-1).items.length === 2;
      resolve(request.result.some(({ work }) => isAll(work)));
    };
  };
})"""
HOSTILE = '<img src=x onerror="document.title=1">&amp;'


def test_dropped_images_are_predicted_taught_renamed_and_forgotten(
    open_page: OpenPage, hand: Hand, photos: Callable[..., Path]
) -> None:
    page = open_page()
    hand.transfer(page, "drop", hand.files(photos, "wren", 1))
    expect(page.locator("#verdict")).to_have_text("wren")
    expect(page.locator(".bars .name").first).to_have_text("wren")
    expect(page.locator("#shown img")).to_have_attribute("alt", "00.png")
    page.get_by_role("button", name="Clear").click()

    hand.transfer(page, "drop", hand.files(photos, "okapi", 5))
    expect(page.locator(".tray .choose")).to_have_count(5)
    hand.teach(page, "okapi")
    expect(hand.card(page, "okapi")).to_contain_text("5 images · taught")

    page.get_by_role("button", name="Rename okapi").click()
    page.get_by_label("New name of okapi").fill("zebra")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("button", name="Rename zebra")).to_be_focused()
    page.get_by_role("button", name="Forget zebra").click()
    expect(page.locator("#notice")).to_contain_text("zebra is forgotten.")
    expect(hand.card(page, "zebra")).to_have_count(0)
    page.locator("#notice").get_by_role("button", name="Undo").click()
    expect(hand.card(page, "zebra")).to_be_visible()


def test_a_name_is_text_wherever_it_is_shown(
    open_page: OpenPage, hand: Hand, photos: Callable[..., Path]
) -> None:
    page = open_page()
    payloads = hand.files(photos, "okapi", 2)
    hand.transfer(page, "drop", payloads)
    hand.teach(page, HOSTILE)
    hand.transfer(page, "drop", payloads[:1])
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


@pytest.mark.soak
def test_images_can_be_pasted_and_chosen_and_added_to_a_class(
    open_page: OpenPage, hand: Hand, photos: Callable[..., Path]
) -> None:
    page = open_page()
    payloads = hand.files(photos, "robin", 8)
    hand.transfer(page, "paste", payloads[:2])
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
    expect(hand.card(page, "robin")).to_contain_text("8 images")


@pytest.mark.soak
def test_the_camera_is_predicted_and_taught_from(open_page: OpenPage, hand: Hand) -> None:
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
    hand.teach(page, "test card")
    expect(page.locator("#verdict")).to_have_text("test card")
    page.get_by_role("button", name="Camera off").click()
    expect(page.locator("#video")).to_be_hidden()
    expect(page.locator("#verdict")).to_have_text("Show an image, and its name appears here.")


def folder_of(photos: Callable[..., Path], counts: dict[str, int]) -> Path:
    folder = photos("lessons", counts)
    (folder / ".hidden").write_bytes(b"")
    (folder / "notes.txt").write_text("no image")
    return folder


def test_folders_become_classes_side_by_side_taught_and_undone_together(
    open_page: OpenPage, hand: Hand, photos: Callable[..., Path]
) -> None:
    page = open_page()
    page.locator("#folder").set_input_files(folder_of(photos, {"okapi": 4, "zebra": 3, "jay": 6}))
    names = page.locator(".group input")
    expect(names).to_have_count(3)
    values = [names.nth(index).input_value() for index in range(3)]
    assert values == ["jay", "okapi", "zebra"]
    expect(page.locator(".group").nth(1).locator(".choose")).to_have_count(4)
    page.get_by_role("button", name="Teach 3 classes").click()
    notice = page.locator("#notice")
    expect(notice).to_contain_text("Learnt okapi from 4 images.")
    expect(notice).to_contain_text("Learnt zebra from 3 images.")
    expect(notice).to_contain_text("jay has ")
    expect(page.locator(".group")).to_have_count(1)
    expect(hand.card(page, "zebra")).to_be_visible()
    notice.get_by_role("button", name="Undo").click()
    expect(page.locator(".card h3")).to_have_text(["jay", "robin", "wren"])
    expect(hand.card(page, "jay")).to_contain_text("4 images")


def test_folders_within_a_class_belong_to_it(
    open_page: OpenPage, photos: Callable[..., Path]
) -> None:
    """As for `fewmore train`: the folders of one level are the classes."""
    page = open_page()
    folder = photos("lessons", {"okapi": 4, "zebra": 2})
    days = [folder / "okapi" / day for day in ("monday", "tuesday")]
    for number, path in enumerate(sorted((folder / "okapi").glob("*.png"))):
        days[number % 2].mkdir(exist_ok=True)
        path.rename(days[number % 2] / path.name)
    page.locator("#folder").set_input_files(folder)
    names = page.locator(".group input")
    expect(names).to_have_count(2)
    assert [names.nth(index).input_value() for index in range(2)] == ["okapi", "zebra"]
    expect(page.locator(".group").first.locator(".choose")).to_have_count(4)


def test_warnings_name_the_files(
    open_page: OpenPage, photos: Callable[..., Path], troubles: list[str]
) -> None:
    page = open_page()
    folder = photos("lessons", {"okapi": 3}) / "okapi"
    (folder / "00.png").write_bytes(b"no image")
    (folder / "twin.png").write_bytes((folder / "01.png").read_bytes())
    page.locator("#folder").set_input_files(folder.parent)
    expect(page.locator(".tray .bad")).to_have_count(1)
    page.get_by_role("button", name="Teach", exact=True).click()
    notice = page.locator("#notice")
    expect(notice).to_contain_text(".png is a duplicate: okapi has that image already")
    expect(notice).to_contain_text("Learnt okapi from 2 images.")
    troubles.clear()  # the broken file was refused


def test_an_unreadable_image_of_many_is_named_and_left_out(
    open_page: OpenPage, hand: Hand, photos: Callable[..., Path], troubles: list[str]
) -> None:
    """Break the first image of the second request, which the page does not show."""
    page = open_page()
    payloads = hand.files(photos, "okapi", 66)
    payloads[64]["buffer"] = b"no image"
    hand.transfer(page, "drop", payloads)
    page.get_by_label("Name of the class").fill("okapi")
    page.get_by_role("button", name="Teach", exact=True).click()
    notice = page.locator("#notice.error")
    expect(notice).to_contain_text("Learnt okapi from 64 images.")
    expect(notice).to_contain_text("64.png cannot be read as an image")
    expect(notice.get_by_role("button", name="Undo")).to_be_visible()
    expect(page.locator(".tray .choose")).to_have_count(2)
    expect(page.locator(".tray .bad")).to_have_count(1)
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.locator("#notice")).to_contain_text("okapi has 1 image more.")
    expect(page.locator(".tray .choose")).to_have_count(0)
    assert all("422" in trouble for trouble in troubles)
    troubles.clear()


def test_images_of_several_requests_are_counted_together(
    open_page: OpenPage, hand: Hand, photos: Callable[..., Path]
) -> None:
    page = open_page()
    hand.transfer(page, "drop", hand.files(photos, "okapi", 66))
    hand.teach(page, "okapi")
    expect(page.locator("#notice")).to_contain_text("Learnt okapi from 66 images.")
    expect(page.locator("#notice")).not_to_contain_text("images more")
    page.locator("#notice").get_by_role("button", name="Undo").click()
    expect(page.locator("#notice")).to_contain_text("Undone: ")
    expect(hand.card(page, "okapi")).to_have_count(0)


def test_several_classes_are_prepared_before_teaching(
    open_page: OpenPage, hand: Hand, photos: Callable[..., Path]
) -> None:
    page = open_page()
    okapis = hand.files(photos, "okapi", 3)
    hand.transfer(page, "drop", okapis[:2])
    page.get_by_label("Name of the class").fill("okapi")
    page.get_by_role("button", name="+ Another class").click()
    expect(page.get_by_label("Name of class 2")).to_be_focused()
    hand.transfer(page, "drop", hand.files(photos, "zebra", 3))
    expect(page.locator(".group").nth(1).locator(".choose")).to_have_count(3)
    page.get_by_role("button", name="Teach 2 classes").click()
    expect(page.locator("#teach-hint")).to_have_text("Give it a name first.")
    expect(page.get_by_label("Name of class 2")).to_be_focused()
    page.keyboard.type("zebra")
    page.get_by_label("Name of class 1").click()  # what comes now is for the first
    hand.transfer(page, "drop", okapis[2:])
    expect(page.locator(".group").nth(0).locator(".choose")).to_have_count(3)
    page.get_by_role("button", name="Teach 2 classes").click()
    expect(hand.card(page, "okapi")).to_contain_text("3 images")
    expect(hand.card(page, "zebra")).to_contain_text("3 images")


def test_what_is_shown_while_it_learns_stays(
    open_page: OpenPage, hand: Hand, photos: Callable[..., Path]
) -> None:
    page = open_page()
    held: list[Route] = []

    def teach() -> None:
        page.get_by_role("button", name=re.compile("^(Teach|Add)$")).click()
        while not held:
            page.wait_for_timeout(10)

    page.route(re.compile(r"/api/classes(/images)?$"), lambda route: held.append(route))
    okapis = hand.files(photos, "okapi", 3)
    hand.transfer(page, "drop", okapis[:2])
    page.get_by_label("Name of the class").fill("okapi")
    teach()
    hand.transfer(page, "drop", okapis[2:])
    expect(page.locator(".tray .choose")).to_have_count(3)
    held.pop().continue_()
    expect(hand.card(page, "okapi")).to_contain_text("2 images")
    expect(page.locator(".tray .choose")).to_have_count(1)
    expect(page.get_by_label("Name of the class")).to_have_value("okapi")

    page.get_by_label("Drawing", exact=True).check()
    hand.draw(page, hand.SPIRAL)
    teach()
    hand.draw(page, [(0.1, 0.1), (0.9, 0.1)])
    held.pop().continue_()
    expect(hand.card(page, "okapi")).to_contain_text("4 images")
    expect(page.locator(".tray .choose")).to_have_count(0)
    expect(page.locator(".tile.now")).to_be_visible()


def test_unfinished_work_survives_a_reload(
    open_page: OpenPage, hand: Hand, photos: Callable[..., Path]
) -> None:
    page = open_page()
    hand.transfer(page, "drop", hand.files(photos, "okapi", 2))
    page.get_by_label("Name of the class").fill("okapi")
    page.get_by_label("Drawing", exact=True).check()
    page.get_by_role("button", name="+ Another class").click()
    page.keyboard.type("spiral")
    for _ in range(2):
        hand.draw(page, hand.SPIRAL)
        page.get_by_role("button", name="Draw another").click()
    hand.draw(page, hand.SPIRAL)
    page.wait_for_function(KEPT)
    page.reload()
    expect(page.get_by_label("Drawing", exact=True)).to_be_checked()
    expect(page.get_by_label("Name of class 1")).to_have_value("okapi")
    expect(page.get_by_label("Name of class 2")).to_have_value("spiral")
    expect(page.locator(".group").nth(1).locator(".tile:not(.slot)")).to_have_count(3)
    page.get_by_role("button", name="Teach 2 classes").click()
    expect(page.locator("#notice")).to_contain_text("Learnt okapi from 2 images.")
    page.reload()
    expect(page.locator(".card h3").first).to_be_visible()
    expect(page.locator(".tile:not(.slot)")).to_have_count(0)


def test_what_is_shown_before_the_page_has_loaded_joins_the_unfinished_work(
    open_page: OpenPage, hand: Hand, photos: Callable[..., Path]
) -> None:
    page = open_page()
    page.get_by_label("Drawing", exact=True).check()
    for _ in range(2):
        hand.draw(page, hand.SPIRAL)
        page.get_by_role("button", name="Draw another").click()
    hand.draw(page, hand.SPIRAL)
    page.wait_for_function(KEPT)
    held: list[Route] = []
    page.route("**/api/model", lambda route: held.append(route))
    page.reload()
    hand.transfer(page, "drop", hand.files(photos, "okapi", 1))
    expect(page.locator(".choose span")).not_to_have_text("")
    held.pop().continue_()
    expect(page.locator(".card").first).to_be_visible()
    expect(page.locator(".tile:not(.slot)")).to_have_count(3)
    page.wait_for_function(KEPT)  # the drawing on the pad, and two more
