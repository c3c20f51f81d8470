"""Test what lies below: classes and their images, test, map, history, model file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fewmore import IncrementalClassifier

pytest.importorskip("playwright")
from playwright.sync_api import Page, Route, expect

Hand = Any
OpenPage = Callable[..., Page]


@pytest.mark.soak
def test_the_model_can_be_downloaded(open_page: OpenPage, tmp_path: Path) -> None:
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
def test_many_classes_can_be_searched_and_the_map_moves(open_page: OpenPage) -> None:
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


def test_an_image_of_a_class_is_seen_and_removed_alone(
    open_page: OpenPage, hand: Hand, photos: Callable[..., Path]
) -> None:
    page = open_page()
    page.locator("#files").set_input_files(hand.files(photos, "okapi", 8))
    hand.teach(page, "okapi")
    page.get_by_role("button", name="Images of okapi").click()
    card = hand.card(page, "okapi")
    expect(card.locator(".strip .remove")).to_have_count(8)
    card.locator(".strip .remove").nth(2).click()
    expect(page.locator("#notice")).to_contain_text("One image of okapi is removed.")
    expect(card).to_contain_text("7 images")
    expect(card.locator(".strip .remove")).to_have_count(7)
    expect(card.locator(".strip .remove").nth(2)).to_be_focused()
    expect(page.locator("#history li").first).to_contain_text("Removed 1 image from okapi")
    page.keyboard.press("Control+z")
    expect(page.locator("#notice")).to_contain_text("Undone: the removal of 1 image of okapi.")
    expect(card.locator(".strip .remove")).to_have_count(8)
    page.get_by_role("button", name="Images of okapi").click()
    expect(card.locator(".strip .remove")).to_have_count(0)
    page.get_by_role("button", name="Images of jay").click()
    expect(hand.card(page, "jay").locator(".strip .tile")).to_have_count(4)
    expect(hand.card(page, "jay").locator(".strip .remove")).to_have_count(0)


def test_a_folder_is_tested_with_a_table_of_mistakes(
    open_page: OpenPage, photos: Callable[..., Path], troubles: list[str]
) -> None:
    page = open_page()
    folder = photos("exam", {"robin": 5, "wren": 5, "okapi": 4})
    (folder / "okapi").rename(folder / "jay")  # four that are not what the folder says
    (folder / "wren" / "broken.png").write_bytes(b"no image")
    page.locator("#test-folder").set_input_files(folder)
    expect(page.locator("#test-sum")).to_contain_text("of 14 images right")
    right = int(page.locator("#test-sum").inner_text().split()[0])
    expect(page.locator("#test-mistakes tbody tr")).to_have_count(14 - right)
    assert right == 10
    expect(page.locator("#test-mistakes tbody tr td:nth-child(2)")).to_have_text(["jay"] * 4)
    expect(page.locator("#test-notes")).to_have_text("1 image could not be read.")
    page.get_by_text("By class").click()
    expect(page.locator("#test-classes tbody tr").first).to_contain_text("jay")
    expect(page.locator("#history li")).to_have_count(1)  # nothing was learnt
    assert all("422" in trouble for trouble in troubles)
    troubles.clear()


def test_a_test_that_fails_leaves_the_next_one_alone(
    open_page: OpenPage, photos: Callable[..., Path], troubles: list[str]
) -> None:
    page = open_page()
    held: list[Route] = []
    page.route("**/api/predict*", lambda route: held.append(route))
    for number, name in enumerate(("robin", "wren"), 1):
        page.locator("#test-folder").set_input_files(photos(f"exam-{number}", {name: number}))
        while len(held) < number:
            page.wait_for_timeout(10)
    held[0].abort()
    expect(page.locator("#notice.error")).to_contain_text("does not answer")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    held[1].continue_()
    expect(page.locator("#test-sum")).to_have_text("2 of 2 images right (100 %).")
    troubles.clear()  # the lost request


@pytest.mark.soak
def test_the_model_is_exported_to_onnx_and_a_link_is_offered(open_page: OpenPage) -> None:
    page = open_page()
    with page.expect_download(timeout=120_000) as download:
        page.get_by_role("button", name="Export to ONNX").click()
        expect(page.locator("#notice")).to_contain_text("takes some seconds")
    assert download.value.suggested_filename == "birds.onnx"
    page.get_by_role("button", name="Share a link to it").click()
    expect(page.locator("#notice")).to_contain_text("works on this machine alone")


def test_ten_thousand_classes_are_shown_at_once(open_page: OpenPage) -> None:
    """Use made-up responses. Count what is drawn, because a time would depend on the machine."""
    names = [f"class {number}" for number in range(10_000)]
    cards = [{"name": name, "images": 5, "taught": True, "thumbnails": []} for name in names]
    places = [
        {"name": name, "taught": True, "before": [n % 100, n // 100], "after": [n % 100, n // 100]}
        for n, name in enumerate(names)
    ]
    page = open_page()
    page.route(
        "**/api/classes?*",
        lambda route: route.fulfill(json={"version": 1, "total": 10_000, "classes": cards}),
    )
    page.route(
        "**/api/map",
        lambda route: route.fulfill(json={"version": 1, "adapted": False, "classes": places}),
    )
    page.reload()
    expect(page.locator(".card h3").first).to_have_text("class 9999")
    expect(page.locator("#map circle")).to_have_count(10_000)
    assert 1 <= page.locator("#map text").count() <= 100
    for _ in range(5):
        page.get_by_role("button", name="Larger").click()
    visible = "[...document.querySelectorAll('#map circle')].filter((c) => !c.style.display).length"
    part = page.evaluate(visible)
    assert 1 <= part < 1000
    box = page.locator("#map").bounding_box()
    assert box is not None
    first = page.locator("#map text").first.text_content()
    page.mouse.move(box["x"] + 50, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 450, box["y"] + 350)
    page.mouse.up()
    expect(page.locator("#map text").first).not_to_have_text(first or "")


def test_every_kind_of_change_looks_alike_in_the_history(
    open_page: OpenPage, hand: Hand, photos: Callable[..., Path]
) -> None:
    page = open_page()
    page.locator("#files").set_input_files(hand.files(photos, "okapi", 3))
    hand.teach(page, "okapi")
    page.get_by_role("button", name="Images of okapi").click()
    hand.card(page, "okapi").locator(".strip .remove").first.click()
    expect(page.locator("#history li")).to_have_count(3)
    page.get_by_role("button", name="Rename okapi").click()
    page.keyboard.type("giraffe")
    page.keyboard.press("Enter")
    expect(page.locator("#history li")).to_have_count(4)
    page.get_by_role("button", name="Forget giraffe").click()
    expect(page.locator("#history li")).to_have_count(5)
    looks = page.locator("#history li").evaluate_all(
        """rows => rows.map((row) => {
            const { position, display, color, backgroundColor } = getComputedStyle(row);
            const [text, time] = row.children;
            const isBelow = time.getBoundingClientRect().top >= text.getBoundingClientRect().bottom;
            const { width } = row.getBoundingClientRect();
            return [position, display, color, backgroundColor, isBelow, width].join();
        })"""
    )
    assert len(looks) == 5
    assert len(set(looks)) == 1, looks
    assert "true" in looks[0]


def test_a_long_history_comes_in_parts(open_page: OpenPage) -> None:
    page = open_page()

    def sessions(first: int, last: int) -> list[dict[str, object]]:
        change = {"kind": "learn", "more": 0, "images": 5, "text": "", "when": "2026-11-15T12:00Z"}
        return [{**change, "number": n, "classes": [f"c{n}"]} for n in range(first, last)]

    head = {"version": 1, "undoable": True, "total": 120}
    page.route(
        "**/api/sessions?limit=50",
        lambda route: route.fulfill(json={**head, "sessions": sessions(70, 120)}),
    )
    page.route(
        "**/api/sessions?*before=*",
        lambda route: route.fulfill(json={**head, "sessions": sessions(0, 70)}),
    )
    page.reload()
    expect(page.locator("#history li")).to_have_count(50)
    page.get_by_role("button", name="Show earlier ones").click()
    expect(page.locator("#history li")).to_have_count(120)
    expect(page.locator("#history li").last).to_contain_text("Learnt c0 from 5 images")
    expect(page.get_by_role("button", name="Show earlier ones")).to_have_count(0)
