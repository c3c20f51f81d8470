"""Test that the report shows what the run folder holds, escapes names, and works in a browser."""

import dataclasses
import re
import shutil
from html import escape
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from fewmore.research import results, run_folder, runner
from fewmore.research.experiment import Experiment
from fewmore.research.predictions import Predictions, read_run_folder
from fewmore.research.reporting import html as report
from fewmore.research.runner import Plan, RunOptions
from fewmore.training.checkpoint import read_state

NASTY = (
    '<script>alert("x")</script>',
    '" onerror="alert(1)',
    "a & b",
    "$x_1$ <b>",
    "plain",
    "ünï → ✓",
    "</style>",
    "x" * 60,
)


class Tags(HTMLParser):
    """Collect every tag with its attributes, and the visible text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    def of(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def folder(named, tiny_recipe_for, tmp_path_factory):
    """Run two seeds of a method that makes mistakes, and return the run folder."""
    experiment = Experiment("tiny", "finetune", tiny_recipe_for("finetune"), seeds=(0, 1))
    folder = run_folder.create(tmp_path_factory.mktemp("runs"), experiment)
    options = RunOptions(command="fewmore run tiny --seeds 2")
    runner.run_plans([Plan(experiment, folder)], named, options)
    return folder


@pytest.fixture(scope="module")
def named(tiny_task):
    """Return the task with class names that could break a page."""
    train, test = (
        dataclasses.replace(images, class_names=NASTY)
        for images in (tiny_task.train, tiny_task.test)
    )
    return dataclasses.replace(tiny_task, train=train, test=test)


@pytest.fixture(scope="module")
def written(folder, named):
    return report.write(folder, named)


@pytest.fixture(scope="module")
def page(written):
    return written.read_text()


def test_confidences_are_written_for_every_test_image(folder, tiny_task):
    state = read_state(folder / "seed0" / "predictions.safetensors")
    assert state["confidence"].shape == state["labels"].shape
    assert state["confidence"].dtype == torch.float16
    assert bool((state["confidence"] >= 1 / 8).all()), "the largest of eight shares"
    assert bool((state["confidence"] <= 1).all())


def test_every_section_is_there_with_the_folders_numbers(folder, page):
    text = " ".join("".join(Tags(page).words).split())
    for heading in (
        "Session by session",
        "Base against new classes",
        "Worst confusions",
        "Class by class",
        "Calibration",
        "Time and memory",
        "How to repeat it",
    ):
        assert f"<h2>{heading}</h2>" in page
    result = results.read(folder)
    assert f"{np.mean(result.last):.2f} ± {np.std(result.last, ddof=1):.2f}" in text
    assert "fewmore run tiny --seeds 2" in text
    assert "Checked in the run: test images of all sessions in one order, " in text
    assert "MB" in text
    assert '"milestones"' in text, "the config"


def test_a_users_own_files_are_named_with_their_hashes(folder):
    result = results.read(folder)
    source = {"method_source": {"file": "/me/mine.py", "sha256": "12ab"}}
    own = dataclasses.replace(result, machine={**result.machine, **source})
    page = report.page(own, {"config": 1}, read_run_folder(folder, None), None)
    text = " ".join(" ".join(Tags(page).words).split())
    assert "method: /me/mine.py, sha256 12ab" in text
    assert "method_source" not in text


def test_the_page_is_whole_and_well_formed(page):
    tags = Tags(page)
    assert tags.open == [], "every tag is closed"
    assert page.startswith("<!DOCTYPE html>")
    assert tags.of("html") == [{"lang": "en"}]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in tags.of("meta")
    assert len(tags.of("title")) == 1
    assert all(attributes.get("alt") for attributes in tags.of("img")), (
        "images have alternative texts"
    )
    assert all(attributes.get("aria-label") for attributes in tags.of("svg")), "and so have figures"
    assert len(tags.of("svg")) == 4
    assert tags.of("img")


def test_nothing_comes_from_elsewhere(page):
    for _, attributes in Tags(page).tags:
        for name in ("src", "href", "xlink:href", "srcset", "action"):
            assert (attributes.get(name) or "data:").startswith(("data:", "#"))
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


def test_names_are_escaped(page):
    tags = Tags(page)
    assert not tags.of("script")
    assert not any(name.startswith("on") for _, attributes in tags.tags for name in attributes)
    assert '<script>alert("x")' not in page
    seen = "".join(tags.words) + " ".join(attributes["alt"] for attributes in tags.of("img"))
    assert any(name in seen for name in NASTY)


def test_figures_take_the_colors_of_the_page(page):
    svg = page[page.index("<svg") : page.rindex("</svg>")]
    assert "var(--ink)" in svg
    assert "#222222" not in svg.lower()
    assert not re.search(r"<svg[^>]* (width|height)=", svg), "the page decides how large they are"


@pytest.fixture
def make_page(make_result, tiny_images):
    def make_page(sessions=3, right=False, confidence=True):
        result = make_result(benchmark="tiny", base=4, way=2, sessions=sessions)
        classes = 4 + 2 * (sessions - 1)
        labels = np.arange(classes).repeat(3)
        predictions = Predictions(
            labels,
            np.repeat(np.arange(sessions), [4] + [2] * (sessions - 1)),
            (labels if right else np.where(labels == 1, 0, labels))[None],
            np.full(len(labels), 0.5) if confidence else np.empty(0),
            tuple(f"class {number}" for number in range(classes)),
            np.arange(len(labels)),
        )
        return report.page(result, {"config": 1}, [predictions], tiny_images(classes, 3))

    return make_page


def test_the_worst_confusion_comes_with_its_images(make_page):
    page = make_page()
    (pair,) = re.findall(r'<div class="pair">.*?</div></div>', page)
    assert "3 of 3 images, 100 %" in pair
    alts = [attributes["alt"] for attributes in Tags(pair).of("img")]
    assert alts == ["class 1, taken for class 0"] * 3 + ["class 0"] * 2


def test_what_there_is_not_is_not_shown(make_page):
    assert "There was no mistake" in make_page(right=True)
    assert "Calibration" not in make_page(confidence=False)
    single = make_page(sessions=1)
    assert "Base against new" not in single
    assert Tags(single).open == []


def test_every_class_has_its_accuracy_and_what_it_is_taken_for(make_page):
    page = make_page()
    rows = re.findall(r'<tr><th scope="row">(class \d)</th>(.*?)</tr>', page)
    assert [name for name, _ in rows] == [f"class {number}" for number in range(8)]
    cells = [re.findall(r"<td>([^<]*)</td>", row) for _, row in rows]
    assert cells[1] == ["0", "3", "0.00", "class 0, 100 %"]
    assert cells[7] == ["2", "3", "100.00", "–"]
    assert "Lowest accuracy: class 1 0.00, class 0 100.00" in page


def test_a_page_without_images_still_names_the_classes(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "run")
    page = report.write(copy, None).read_text()
    assert "<h2>Class by class</h2>" in page
    assert all(f'<th scope="row">{escape(name)}</th>' in page for name in NASTY)


def test_changed_settings_are_in_the_first_lines(make_result):
    result = make_result(settings={"features": "closer", "pretrain.epochs": "1"})
    header = report._header(result, "cec")
    assert "recipe official, features=closer, pretrain.epochs=1, split official" in header


def test_the_seconds_of_a_shared_stage_1_are_counted(make_result, tiny_images):
    seconds = (("pretrain (shared)", 28.0), ("share of the wall clock", 12.0))
    result = make_result(benchmark="tiny", base=4, way=2, sessions=1, seconds=seconds)
    labels = np.arange(4)
    names = ("a", "b", "c", "d")
    predictions = Predictions(labels, np.zeros(4, int), labels[None], np.empty(0), names, labels)
    page = report.page(result, {"config": 1}, [predictions], tiny_images(4, 1))
    rows = re.findall(r'<th scope="row">([^<]*)</th><td>([^<]*)</td>', page)
    assert ("pretrain (shared)", "28.00 s") in rows
    assert ("share of the wall clock, with the shared stage 1", "40.00 s") in rows
    assert (
        "1 run took over stage 1 from another run; the seconds of training it are included" in page
    )


def test_calibration_is_given_in_numbers(make_page):
    text = make_page(right=True)
    assert (
        "50.0 % confident and 100.0 % right on average; expected calibration error 50.0 points"
        in text
    )


# In a browser


@pytest.fixture
def opened(chromium, written):
    """Return a function that opens the report at a width, in light or dark mode.

    It returns the page, its network requests and its console messages.
    """
    contexts = []

    def opened(width=1100, scheme="light"):
        context = chromium.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme
        )
        contexts.append(context)
        page = context.new_page()
        requests = []
        messages = []
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.goto(written.as_uri())
        foreign = [url for url in requests if not url.startswith(("file:", "data:"))]
        return page, foreign, messages

    yield opened
    for context in contexts:
        context.close()


@pytest.mark.parametrize("width", [320, 375, 768, 1400])
def test_no_width_needs_scrolling_sideways(opened, width):
    page, requests, messages = opened(width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert requests == []
    assert messages == []
    assert page.locator("svg").first.bounding_box()["width"] > 0.8 * min(width, 400)


def test_every_image_is_shown(opened):
    page, _, _ = opened()
    assert page.locator("img").count() > 0
    assert page.evaluate(
        "[...document.images].every(image => image.complete && image.naturalWidth > 0)"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(opened, scheme):
    page, _, _ = opened(scheme=scheme)
    paper = brightness(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert (paper < 0.1) if scheme == "dark" else (paper > 0.9)
    for what, style in (
        ("body", "color"),
        (".faint", "color"),
        ("svg text", "fill"),
        ("td", "color"),
    ):
        ink = brightness(
            page.evaluate(f"getComputedStyle(document.querySelector('{what}')).{style}")
        )
        light, dark = max(ink, paper), min(ink, paper)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, f"the contrast of {what}"


def brightness(color):
    """Return the relative luminance of rgb(r, g, b), by the web's definition."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))
