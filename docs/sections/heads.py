"""Write how the classifier compares with what a user would train instead."""

from typing import Any

from sections import recorded
from sections.markdown import markdown_table, paragraph

FILE = recorded.RESULTS / "bench-heads-cpu.json"
COLUMNS = ("old", "new", "all", "ece", "chance ece", "pooled ece")
OURS = ("fewmore", "before")  # every other method is an alternative
KINDS = ("plain", "mirrored")  # of features

Json = dict[str, Any]


def heads() -> str:
    """Write the main setting in full, the others beside the best alternative, and additions."""
    measured = recorded.read_benchmark(FILE)
    rows = [row for row in measured["rows"] if row["what"] == "accuracy"]
    plain, mirrored = ([row for row in rows if row["features"] == kind] for kind in KINDS)
    main = [row for row in rows if _setting(row) == ("birds", "20 × 30", 5)]
    alone = {row["features"]: row["old alone"] for row in main if row["method"] == "fewmore"}
    lines = [
        f"{measured['machine']}, {measured['date']}: `{measured['command']}`",
        "",
        paragraph(
            f"Birds, 20 classes of 30 photos, then 10 of 5: mean of {main[0]['choices']} choices "
            "of classes, in percent. Before the new ones come, the old classes have "
            f"{alone['plain']:.1f} %, mirrored {alone['mirrored']:.1f} %."
        ),
        "",
        *markdown_table(
            ("features", "method", *COLUMNS),
            [
                (row["features"], row["method"], *(_number(row.get(key)) for key in COLUMNS))
                for row in main
            ],
        ),
        "",
        "Every setting beside the best alternative on all classes, plain features:",
        "",
        *_settings(plain),
        "",
        "The same with mirrored features, which the alternatives get as well:",
        "",
        *_settings(mirrored),
        "",
        "Classes of five photos added one by one to 20; ten classes are never shown (plain):",
        "",
        *_additions(rows_of("additions", "plain")),
        "",
        "One class of one photo added to 20, and what these lose, in points:",
        "",
        *_single(rows_of("one image", *KINDS)),
    ]
    return "\n".join(lines) + "\n"


def rows_of(what: str, *kinds: str) -> list[Json]:
    """Return what was recorded of one measurement, on some kinds of features."""
    rows = recorded.read_benchmark(FILE)["rows"]
    return [row for row in rows if row["what"] == what and row["features"] in kinds]


def _settings(rows: list[Json]) -> list[str]:
    table = []
    for setting in dict.fromkeys(_setting(row) for row in rows):
        of_setting = {row["method"]: row for row in rows if _setting(row) == setting}
        ours, before = (of_setting[name] for name in OURS)
        others = [row for name, row in of_setting.items() if name not in OURS]
        best = max(others, key=lambda row: float(row["all"]))
        table.append(
            (
                *map(str, setting),
                _number(ours["all"]),
                _number(best["all"]),
                best["method"],
                _number(ours["new"]),
                _number(best["new"]),
                _number(ours["old alone"] - ours["old"]),
                _number(before["all"]),
                _number(before["old alone"] - before["old"]),
            )
        )
    columns = ("data", "base", "shots", "all", "best", "which", "new", "its new")
    return markdown_table((*columns, "old lose", "before: all", "before: old lose"), table)


def _additions(rows: list[Json]) -> list[str]:
    keys = ("known accepted", "new accepted", "unseen rejected")
    return markdown_table(
        ("added", *(f"{key} %" for key in keys), "AUROC"),
        [
            (str(row["added"]), *(_number(row[key]) for key in keys), f"{row['auroc']:.3f}")
            for row in rows
        ],
    )


def _single(rows: list[Json]) -> list[str]:
    keys = ("mean loss", "90 % below", "worst loss")
    return markdown_table(
        ("features", "head", "cases", *keys),
        [
            (
                row["features"],
                row["method"],
                str(row["cases"]),
                *(_number(row[key]) for key in keys),
            )
            for row in rows
        ],
    )


def _setting(row: Json) -> tuple[str, str, int]:
    return row["data"], row["folder"], row["shots"]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
