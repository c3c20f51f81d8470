"""Test the leaderboard on made-up results, and its page in a browser."""

import importlib
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from fewmore.data.benchmarks import BENCHMARKS
from fewmore.methods import FEATURES, METHODS
from fewmore.research import published, results
from fewmore.research.published import PROTOCOL
from fewmore.research.results import RunResult, SessionSize

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

ROOT = Path(__file__).resolve().parent.parent
H200 = {"device": "NVIDIA H200", "torch": "2.13"}


def result(
    method: str, last: Sequence[float], benchmark: str = "cifar100", **changed: Any
) -> RunResult:
    """Make a result with a run for each last accuracy."""
    seen, runs = PROTOCOL[benchmark], len(last)
    accuracy = tuple((*[70.0] * (len(seen) - 1), end) for end in last)
    novel = ((None, *[10.0] * (len(seen) - 2), 20.0),) * runs
    harmonic = ((None, *[10.0] * (len(seen) - 2), 30.0),) * runs
    about: dict[str, Any] = {
        "benchmark": benchmark,
        "method": method,
        "recipe": "official",
        "split": "official",
        "command": f"fewmore run {benchmark} -m {method}",
        "seeds": tuple(range(runs)),
        "draws": (None,) * runs,
        "commit": "0123456789ab",
        "date": "2026-01-02T03:04:05+00:00",
        "machine": H200,
        "settings": {},
        "all_settings": {},
        "sessions": tuple(SessionSize(classes, 100 * classes) for classes in seen),
        "accuracy": accuracy,
        "base": ((60.0,) * len(seen),) * runs,
        "novel": novel,
        "harmonic": harmonic,
        "forgetting": ((1.0,) * (len(seen) - 1),) * runs,
        "gacc": tuple(last),
        "seconds": ({"share of the wall clock": 30.0},) * runs,
        "peak_memory_mb": (1.0,) * runs,
        "extra": {},
        "keeps": None,
    }
    return RunResult(**{**about, **changed})


Record = Callable[..., None]


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return docs/sections/leaderboard.py with an empty folder of results."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    module = importlib.import_module("sections.leaderboard")
    monkeypatch.setattr(module.recorded, "RESULTS", tmp_path)
    return module


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """Return a function that writes results."""

    def record(*rows: RunResult) -> None:
        for row in rows:
            results.write(tmp_path / f"{results.file_name(row)}.json", row)

    return record


def read_table(text: str) -> list[dict[str, str]]:
    """Return the rows of the first Markdown table by title, its stars removed."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    titles, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    assert all(len(row) == len(titles) for row in rows)
    return [
        {title.strip("*"): cell.strip("*") for title, cell in zip(titles, row, strict=True)}
        for row in rows
    ]


def rows_by_name(text: str) -> dict[str, dict[str, str]]:
    return {row["method"]: row for row in read_table(text)}


# The ranking


def test_a_new_result_is_a_row_beside_the_published_one(board: ModuleType, record: Record) -> None:
    before = rows_by_name(board.ranking("cifar100"))
    assert before["TEEN"]["last"] == "–"
    assert before["TEEN"]["published last"] == "52.64"
    assert before["TEEN"]["network"] == "ResNet20, 0.27\u00a0M"
    record(result("teen", [52.0, 52.5, 53.0]))
    after = rows_by_name(board.ranking("cifar100"))
    assert "TEEN" not in after
    row = after["teen"]
    assert row["last"] == "52.50 ± 0.50"
    assert (row["base"], row["novel"], row["harmonic"]) == (
        "60.00 ± 0.00",
        "20.00 ± 0.00",
        "30.00 ± 0.00",
    )
    assert (row["published last"], row["published average"]) == ("52.64", "63.10")
    assert row["published epoch"] == "best on test"
    assert (row["seeds"], row["seconds"], row["network"]) == ("3", "30", "ResNet20, 0.27\u00a0M")
    assert (row["images kept"], row["test views"]) == ("none", "1")


def test_rows_are_sorted_by_last_accuracy_measured_or_else_published(
    board: ModuleType, record: Record
) -> None:
    record(result("cec", [54.6]), result("finetune", [3.0]))
    rows = read_table(board.ranking("cifar100"))
    ends = [row["last"] if row["last"] != "–" else row["published last"] for row in rows]
    assert ends == sorted(ends, key=float, reverse=True)
    names = [row["method"] for row in rows]
    assert names.index("WaRP") < names.index("cec") < names.index("MoTiC")
    assert names[-1] == "finetune"


@pytest.mark.parametrize("benchmark", PROTOCOL)
def test_every_method_is_a_row_or_named_as_not_measured(
    board: ModuleType, record: Record, benchmark: str
) -> None:
    record(result("cec", [50.0], benchmark))
    text = board.ranking(benchmark)
    missing = " ".join(text.partition("Not measured yet: ")[2].split(";")[0].split()).split(", ")
    assert missing == [name for name in METHODS if name != "cec"]


def test_features_and_recipes_that_are_not_a_methods_own_are_named(
    board: ModuleType, record: Record
) -> None:
    record(
        result("cec", [55.0], settings={"features": "closer"}),
        result("cec", [50.0], recipe="mild"),
        result("lda", [49.0], settings={"pretrain.epochs": "7"}),
    )
    rows = rows_by_name(board.ranking("cifar100"))
    for name in ("cec on closer's features", "cec, mild", "lda, pretrain.epochs=7"):
        assert rows[name]["published last"] == "–", "published is the method as it was"
    assert "CEC" in rows
    assert "**cec on closer's features** is first with 55.00." in board.ranking("cifar100")


def test_several_views_show_the_accuracy_of_one(board: ModuleType, record: Record) -> None:
    sessions = len(PROTOCOL["cifar100"])
    extra = {
        "test_views": ((2.0,) * sessions,) * 2,
        "one_view": ((*[70.0] * (sessions - 1), 51.0), (*[70.0] * (sessions - 1), 53.0)),
    }
    record(result("closer", [54.0, 55.0], extra=extra), result("cec", [48.0, 49.0]))
    rows = rows_by_name(board.ranking("cifar100"))
    assert rows["closer"]["last"] == "54.50 ± 0.71"
    assert rows["closer"]["one view"] == "52.00 ± 1.41"
    assert rows["closer"]["test views"] == "2"
    assert rows["cec"]["one view"] == rows["cec"]["last"]
    record(result("closer", [54.0, 55.0], extra={"test_views": extra["test_views"]}))
    rows = rows_by_name(board.ranking("cifar100"))
    assert (rows["closer"]["test views"], rows["closer"]["one view"]) == ("2", "–")


def test_a_row_of_few_seeds_is_not_the_first_of_ours(board: ModuleType, record: Record) -> None:
    views = {"test_views": ((2.0,) * 9,) * 3, "one_view": ((50.0,) * 9,) * 3}
    record(result("evolve", [54.0, 55.0, 56.0], extra=views), result("lda", [57.0]))
    text = " ".join(board.ranking("cifar100").split())
    assert (
        "Measured here, **evolve** is first with 55.00 ± 1.00 (2 test views). Higher, but with "
        "fewer than 3 seeds: lda (57.00). With one test view it has 50.00 ± 0.00, and lda is first "
        "with 57.00 (1 seed). Published with ResNet20," in text
    )
    assert "(2 test views; epoch: last epoch), and with one test view MICS with 52.94" in text
    assert "This is no ranking of the field yet (not measured: " in text
    record(result("lda", [49.0]))
    text = " ".join(board.ranking("cifar100").split())
    assert "With one test view it has 50.00 ± 0.00, and is first too. Published" in text


def test_training_on_all_images_is_a_row_but_not_the_first_of_ours(
    board: ModuleType, record: Record
) -> None:
    record(result("joint", [60.0]), result("cec", [49.0]))
    text = board.ranking("cifar100")
    assert rows_by_name(text)["joint"]["last"] == "60.00"
    assert "Measured here, **cec** is first with 49.00." in text


def test_rows_of_other_splits_and_seconds_of_other_machines_are_left_out(
    board: ModuleType, record: Record
) -> None:
    record(
        result("cec", [50.0], split="draw 0: 60 classes, then 8 sessions of 5"),
        result("lda", [49.0], machine={"device": "a laptop", "torch": "2.13"}),
    )
    rows = rows_by_name(board.ranking("cifar100"))
    assert "cec" not in rows
    assert rows["lda"]["seconds"] == "–"


def test_images_kept_are_counted(board: ModuleType, record: Record) -> None:
    extra = {"images_kept": ((1400.0,) * len(PROTOCOL["cifar100"]),)}
    record(result("icarl", [48.0], keeps="a few images a class", extra=extra))
    assert rows_by_name(board.ranking("cifar100"))["icarl"]["images kept"] == "1,400"


def test_the_ablation_of_the_paper_stands_beside_its_rows(
    board: ModuleType, record: Record
) -> None:
    record(result("decoupled-l2", [40.0], "cub200"))
    row = rows_by_name(board.ranking("cub200"))["decoupled-l2"]
    assert (row["published last"], row["published epoch"]) == ("41.62", "best on test")


def test_the_highest_published_row_has_the_same_network_and_does_not_leak(
    board: ModuleType,
) -> None:
    text = board.ranking("cifar100")
    assert "Nothing is measured yet." in text
    assert "the highest is MoTiC with 54.55" in " ".join(text.split())
    assert "FACL (scores depend on the batch)" in text


@pytest.mark.parametrize("benchmark", PROTOCOL)
def test_our_networks_have_as_many_parameters_as_those_of_published_rows(
    board: ModuleType, benchmark: str
) -> None:
    theirs = published.backbones()[published.backbone_of_cec(benchmark)]
    assert board._parameters(BENCHMARKS[benchmark].backbone) == theirs.parameters


def test_a_network_is_named_as_published_rows_name_it(board: ModuleType, record: Record) -> None:
    named = {"resnet12": "ResNet12, 12.4", "resnet18-3x3": "ResNet18, 11.2", "resnet8": "resnet8"}
    for method, backbone in zip(("cec", "lda", "icarl"), named, strict=True):
        record(result(method, [50.0], settings={"backbone": backbone}))
    measured = [line for line in board.ranking("cifar100").splitlines() if line.startswith("| **")]
    assert [sum(f"| {name}" in line for line in measured) for name in named.values()] == [1, 1, 1]


# Neighbours


@pytest.mark.parametrize(
    ("higher", "lower", "expected"),
    [
        ([50.0, 51.0, 52.1], [48.0, 49.0, 50.0], ["3", "+2.03", "+1.89 to +2.18", "higher"]),
        ([50.0, 51.0, 52.0], [50.5, 49.0, 51.0], ["3", "+0.83", "-2.29 to +3.96", "tie"]),
        ([48.0, 49.0, 50.0], [50.0, 51.0, 52.1], ["3", "-2.03", "-2.18 to -1.89", "lower"]),
        ([50.0] * 3, [48.0] * 3, ["3", "+2.00", "–", "the same for each seed"]),
        ([50.0, 51.0], [48.0, 49.0], []),
        ([50.0], [48.0, 49.0, 50.0], []),
    ],
)
def test_neighbours_are_compared_seed_by_seed(
    board: ModuleType, higher: list[float], lower: list[float], expected: list[str]
) -> None:
    assert board.against(result("cec", higher), result("lda", lower)) == expected


def test_neighbours_without_a_common_seed_are_not_tested(board: ModuleType) -> None:
    other = result("lda", [48.0, 48.0, 48.0], seeds=(5, 6, 7))
    assert board.against(result("cec", [50.0, 50.0, 50.0]), other) == []


def test_the_next_is_the_next_row_of_several_seeds(board: ModuleType, record: Record) -> None:
    assert board.paired("cifar100") == "No two rows have 3 seeds in common yet.\n"
    record(
        result("cec", [54.0, 54.2, 53.9]),
        result("teen", [50.0]),
        result("lda", [45.0, 45.0, 45.0]),
    )
    [row] = read_table(board.paired("cifar100"))
    assert (row["method"], row["beside"], row["difference"]) == ("cec", "lda", "+9.03")


def test_seconds_say_whether_stage_1_is_among_them(board: ModuleType, record: Record) -> None:
    times: dict[str, float] = {"share of the wall clock": 30.0, results.SHARED_STAGE1: 0.0}
    record(result("cec", [50.0], seconds=(times,)))
    assert rows_by_name(board.ranking("cifar100"))["cec"]["seconds"] == "30 + stage 1"


# Features × classifier


def test_the_table_of_features_has_every_recipe_and_says_what_is_missing(
    board: ModuleType,
) -> None:
    rows = read_table(board.features("cub200"))
    assert [row.pop("features") for row in rows] == list(FEATURES)
    assert {"decoupled-cosine", "lda", "teen", "cec"} <= set(rows[0])
    assert {cell for row in rows for cell in row.values()} == {"–"}


def test_cells_are_last_and_harmonic_of_the_plain_settings(
    board: ModuleType, record: Record
) -> None:
    record(
        result("cec", [50.0, 52.0]),
        result("cec", [55.0], settings={"features": "closer"}),
        result("cec", [99.0], settings={"features": "closer", "pretrain.epochs": "7"}),
        result("lda", [99.0], recipe="mild"),
        result("closer", [53.0, 54.0, 55.0]),
        result("decoupled-cosine", [50.0], settings={"features": "closer"}),
        result("icarl", [47.0], settings={"features": "teen"}),
    )
    rows = {row["features"]: row for row in read_table(board.features("cifar100"))}
    assert rows["cec"]["cec"] == "51.00 / 30.00"
    assert rows["closer"]["cec"] == "55.00 / 30.00"
    # CLOSER classifies by class means, and the result with more seeds is shown.
    assert rows["closer"]["decoupled-cosine"] == "54.00 / 30.00"
    assert "closer" not in rows["closer"]
    assert rows["teen"]["icarl"] == "47.00 / 30.00", "a column of its own, as it was measured"
    said = " ".join(board.features("cifar100").split())
    assert said.startswith(
        "With cec as the classifier on 2 kinds of features, the last accuracy goes from 51.00 "
        "(cec) to 55.00 (closer). On closer's features with 2 classifiers, the last accuracy goes "
        "from 54.00 (decoupled-cosine) to 55.00 (cec). 2 of 4 cells are one seed. –: not "
        "measured yet"
    )
    assert rows["cec"]["lda"] == "–"


def test_the_best_classifier_is_counted_where_all_were_measured(
    board: ModuleType, record: Record
) -> None:
    names = ("decoupled-cosine", "lda", "teen", "cec", "evolve")
    rows = []
    for features, best in (("fact", "cec"), ("closer", "evolve"), ("s3c", "evolve")):
        settings = {"features": features}
        rows += [
            result(name, [60.0 if name == best else 50.0], settings=settings) for name in names
        ]
    record(*rows, result("lda", [99.0], settings={"features": "savc"}))
    said = " ".join(board.features("cifar100").split())
    assert "Of 3 kinds of features with all classifiers, the best is evolve on 2, cec on 1." in said


# In a browser


@pytest.fixture
def opened(
    board: ModuleType, record: Record, chromium: "Browser", tmp_path: Path
) -> Iterator[Callable[..., "Page"]]:
    """Return a function that opens the page of made-up results; nothing may be said on the console.

    The page is the recorded one with other tables.
    """
    names = ("cec", "lda", "icarl", "closer")
    record(*(result(name, [50.0 + i, 51.0 + i, 52.0]) for i, name in enumerate(names)))
    text = (ROOT / "docs" / "leaderboard.md").read_text()
    text = re.sub(
        r"<!-- (ranking|paired|features) (\w+) -->\n.*?<!-- /",
        lambda match: f"{getattr(board, match[1])(match[2])}\n<!-- /",
        text,
        flags=re.DOTALL,
    )
    file = tmp_path / "leaderboard.html"
    file.write_text(board.page(text))
    (tmp_path / "figures").mkdir()
    shutil.copy(ROOT / "docs" / "figures" / "leaderboard.png", tmp_path / "figures")
    contexts, messages = [], []

    def opened(width: int = 1200, scheme: Any = "light") -> "Page":
        context = chromium.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda asked: messages.append(asked.url) if "http" in asked.url else 0)
        page.goto(file.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert messages == []


def column(table: "Locator", title: str) -> list[str]:
    """Return the cells of a column, from the top."""
    titles = [text.strip(" ▼▲") for text in table.locator("thead th").all_inner_texts()]
    return table.locator(f"tbody td:nth-child({titles.index(title) + 1})").all_inner_texts()


def heading(table: "Locator", title: str) -> "Locator":
    return table.get_by_role("button", name=title, exact=True)


def numbers(cells: Sequence[str]) -> list[float]:
    """Return the numbers that cells begin with, after a check that those without are the last."""
    found = [re.match(r"[+-]?[\d,]+(\.\d+)?", cell) for cell in cells]
    values = [float(match[0].replace(",", "")) for match in found if match]
    assert all(match is None for match in found[len(values) :])
    return values


def test_a_click_sorts_downwards_and_another_one_upwards(opened: Callable[..., "Page"]) -> None:
    table = opened().locator("table").first
    for title in ("last", "published last", "seconds", "average"):
        button = heading(table, title)
        button.click()
        down = numbers(column(table, title))
        assert len(down) > 2
        assert down == sorted(down, reverse=True)
        button.click()
        assert numbers(column(table, title)) == sorted(down)
        assert table.locator("th[aria-sort]").count() == 1
        assert table.locator("th[aria-sort=ascending]").inner_text() == f"{title} ▲"


def test_words_are_sorted_from_a_and_by_the_keyboard(opened: Callable[..., "Page"]) -> None:
    page = opened()
    table = page.locator("table").first
    heading(table, "method").focus()
    page.keyboard.press("Enter")
    names = column(table, "method")
    assert names[0].startswith("ALICE")
    assert names == sorted(names, key=str.lower)
    page.keyboard.press("Space")
    assert column(table, "method") == names[::-1]
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert table.locator("th[aria-sort]").inner_text() == "last ▼"


def test_every_table_can_be_sorted_and_keeps_its_rows(opened: Callable[..., "Page"]) -> None:
    page = opened()
    assert page.locator("table").count() == 2 * len(PROTOCOL) + 1
    assert page.locator("thead th").count() == page.locator("thead th button").count()
    table = page.locator("table").nth(2)
    before = column(table, "features")
    heading(table, "lda").click()
    assert sorted(column(table, "features")) == sorted(before)
    assert column(table, "lda")[-1] == "–"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_any_width_in_light_and_dark(
    opened: Callable[..., "Page"], scheme: str
) -> None:
    for width in (360, 1200):
        page = opened(width, scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (min(map(int, re.findall(r"\d+", paper))) > 200) == (scheme == "light")
