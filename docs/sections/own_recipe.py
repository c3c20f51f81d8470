"""Write how the settings of fewmore's own recipe were chosen on the validation split."""

import re
from collections.abc import Iterator
from itertools import product
from statistics import fmean
from typing import Any

from fewmore.research import results
from fewmore.research.reporting import tables
from sections import recorded
from sections.contents import NAMES
from sections.markdown import markdown_table, over_runs, paragraph

MEASURES = ("first", "average", "last", "base", "novel", "harmonic")
CHOSEN = {"shrinkage": 0.2, "correction": 0.6, "alpha": 0.0}
POWER = 0.75  # of the features, as chosen
BEST = "lr2"  # the features that the grid of classifiers is shown on
# Settings of all variants, which the table leaves out.
COMMON = ("pretrain.schedule=cosine", "pretrain.warm_up=5", "pretrain.epochs=100")
# What the recipe had become by the time of a part of the search.
BEGUN = {"cifar100-3": ("pretrain.lr=0.2", "transform.policy_probability=0.25")}

Json = dict[str, Any]


def chosen() -> str:
    """Write the variants of stage 1, and the classifiers on the features of the best of them."""
    folder = recorded.RESULTS / "searches"
    trained = [
        recorded.read_benchmark(path) for path in sorted(folder.glob("cifar100-evolve-[0-9].json"))
    ]
    classified = [
        recorded.read_benchmark(path)
        for path in sorted(folder.glob("cifar100-evolve-classifier-[0-9].json"))
    ]
    grid = recorded.read_benchmark(folder / "cifar100-evolve-classifier-grid.json")
    parts = [
        "\n".join(_variants(trained, classified)),
        paragraph(_about(trained, classified[0])),
        "\n".join(_classifiers(grid)),
    ]
    return "\n\n".join(parts) + "\n"


def tested() -> str:
    """Write all recipes of `evolve` that were run on test images, the replaced ones too."""
    paths = [
        path
        for folder in (recorded.RESULTS / "earlier", recorded.RESULTS)
        for name in NAMES
        for path in (*folder.glob(f"{name}-evolve.json"), *folder.glob(f"{name}-evolve-[0-9].json"))
    ]
    rows = sorted(
        map(results.read, paths), key=lambda row: ([*NAMES].index(row.benchmark), row.date)
    )
    lines = [
        [
            NAMES[row.benchmark],
            row.date[:10],
            (row.commit or "–")[:12],
            str(row.runs),
            f"{max(row.test_views):.0f}",
            *map(over_runs, (row.last, row.average)),
        ]
        for row in rows
    ]
    titles = ("benchmark", "date", "commit", "seeds", "test views", "last", "average")
    return "\n".join(markdown_table(titles, lines, "lllrrrr")) + "\n"


def chosen_on(benchmark: str) -> str:
    """Write a smaller search: few variants of stage 1, and a grid of classifiers on each."""
    folder = recorded.RESULTS / "searches"
    trained = [
        recorded.read_benchmark(path)
        for path in sorted(folder.glob(f"{benchmark}-evolve-[0-9].json"))
    ]
    grids = [
        recorded.read_benchmark(path)
        for path in sorted(folder.glob(f"{benchmark}-evolve-classifier-*.json"))
    ]
    # Those that `evolve` can be set to.
    rows = [
        row
        for grid in grids
        for row in grid["rows"]
        if not row["alpha"] and row["shrinkage"] is not None
    ]
    settings = {row["variant"]: _settings(each, row) for each in trained for row in each["rows"]}
    tops = {  # a later row of the same features replaces a worse one
        row["features"]: row for row in sorted(rows, key=_last_and_average)
    }
    best = max(rows, key=_last_and_average)
    lines = [
        [
            settings[name],
            f"{top['shrinkage']:g}",
            f"{top['correction']:g}",
            *_numbers(top, MEASURES),
        ]
        for name, top in sorted(tops.items(), key=lambda item: -_last_and_average(item[1]))
    ]
    titles = ("stage 1", "best classifier: shrinkage", "correction", *MEASURES)
    parts = [
        "\n".join(markdown_table(titles, lines, "l" + "r" * (len(titles) - 1))),
        paragraph(_about_one(trained, grids[0], best)),
        "\n".join(_matrix([row for row in rows if row["features"] == best["features"]])),
    ]
    return "\n\n".join(parts) + "\n"


def views() -> str:
    """Write what the size of test images and the power of features are worth, by benchmark."""
    files = sorted((recorded.RESULTS / "searches").glob("*-evolve-views.json"))
    records = {path.name.split("-")[0]: recorded.read_benchmark(path) for path in files}
    lines = [
        [name, size, *cells] for name, each in records.items() for size, *cells in _view_rows(each)
    ]
    titles = ("benchmark", "large", "test views", "power", "shrinkage", "correction")
    measures = ("first", "average", "last", "harmonic")
    table = markdown_table((*titles, *measures), lines, "lll" + "r" * 7)
    first = next(iter(records.values()))
    about = (
        f"Means over {first['about']['draws']} draws of {first['about']['shots']} shots, and over "
        "networks where there are two; of shrinkages and corrections those with the largest sum of "
        f"last and average accuracy are shown. {first['date']}, commit {first['commit']}: "
        f"`{_without_folders(first['command'])}` and the like."
    )
    sizes = [_sizes(name, record) for name, record in records.items()]
    text = paragraph(" ".join(filter(None, (about, *sizes))))
    return "\n".join([*table, "", text]) + "\n"


def _sizes(benchmark: str, record: Json) -> str:
    """Say what two sizes of enlarged images reach on the same network, if one has both."""
    rows = [row for row in record["rows"] if row["views"] == "all" and row["power"] == POWER]
    best: dict[str, dict[str, float]] = {}
    for row in sorted(rows, key=_last_and_average):
        network, _, size = row["features"].partition("-large")
        best.setdefault(network, {})[size] = row["last"]
    texts = [
        ", ".join(f"{last:.2f} with × {size}" for size, last in sorted(by_size.items()))
        for by_size in best.values()
        if len(by_size) > 1
    ]
    if not texts:
        return ""
    return f"On the network of {NAMES[benchmark]} with two sizes, all views end at {texts[0]}."


def _view_rows(record: Json) -> Iterator[list[str]]:
    """Yield the best classifier for each size, test views and power, of all networks together."""
    names = {row["features"] for row in record["rows"]}
    sizes = sorted({name.split("-large")[1] for name in names})
    for size, views in product(sizes, ("usual", "large", "all")):
        if views == "usual" and size != sizes[0]:
            continue  # they have no large view: the same for every size
        by_power: dict[float, dict[tuple[float, float], list[Json]]] = {}
        for row in record["rows"]:
            if row["features"].endswith(f"-large{size}") and row["views"] == views:
                settings = (row["shrinkage"], row["correction"])
                by_power.setdefault(row["power"], {}).setdefault(settings, []).append(row)
        for power, rows in by_power.items():
            means = {
                settings: {m: fmean(row[m] for row in of) for m in MEASURES}
                for settings, of in rows.items()
            }
            (shrinkage, correction), best = max(
                means.items(), key=lambda item: _last_and_average(item[1])
            )
            yield [
                f"× {size}" if views != "usual" else "–",
                views,
                *(f"{value:g}" for value in (power, shrinkage, correction)),
                *_numbers(best, ("first", "average", "last", "harmonic")),
            ]


def _matrix(rows: list[Json]) -> list[str]:
    """Return last / average accuracy by shrinkage and correction."""
    corrections = sorted({row["correction"] for row in rows})
    found = {(row["shrinkage"], row["correction"]): row for row in rows}
    lines = [
        [f"{shrinkage:g}"]
        + [" / ".join(_numbers(found[shrinkage, c], ("last", "average"))) for c in corrections]
        for shrinkage in sorted({row["shrinkage"] for row in rows})
    ]
    titles = ("shrinkage", *(f"correction {c:g}" for c in corrections))
    return markdown_table(titles, lines, "r" * len(titles))


def _last_and_average(row: Json) -> float:
    return float(row["last"] + row["average"])


def _about_one(trained: list[Json], grid: Json, best: Json) -> str:
    first = trained[0]
    commits = ", ".join(sorted({each["commit"] for each in trained}))
    return (
        f"One seed each, {first['machine']}, {first['date']}, "
        f"commit{'s' * (', ' in commits)} {commits}: "
        f"`{_without_folders(first['command'])}`; split: {first['about']['split']}. "
        f"Classifiers by `{_without_folders(grid['command'])}`: {grid['about']['draws']} draws of "
        f"{grid['about']['shots']} shots, all test views; the best has the largest sum of last "
        "and average accuracy. Below is last / average accuracy of all classifiers on the "
        f"features of the chosen variant, {best['features']}; a shrinkage of 1 does not whiten."
    )


def _without_folders(command: str) -> str:
    return re.sub(r" /\S+/", " ", command)


def _variants(trained: list[Json], classified: list[Json]) -> list[str]:
    """Return a row for each variant of stage 1, the best first, with two classifiers."""
    settings = {
        row["variant"]: _settings(each, row, COMMON) for each in trained for row in each["rows"]
    }
    rows = [row for each in classified for row in each["rows"]]
    plain = {row["features"]: row for row in rows if row["shrinkage"] is None and not row["alpha"]}
    whitened = {row["features"]: row for row in rows if _is_chosen(row)}
    names = sorted(whitened, key=lambda name: -float(whitened[name]["last"]))
    lines = [
        [
            settings[name],
            *_numbers(plain[name], ("last", "harmonic")),
            *_numbers(whitened[name], MEASURES),
        ]
        for name in names
    ]
    titles = ("stage 1", "means: last", "harmonic", *(f"whitened: {MEASURES[0]}", *MEASURES[1:]))
    return markdown_table(titles, lines, "l" + "r" * (len(titles) - 1))


def _settings(record: Json, row: Json, common: tuple[str, ...] = ()) -> str:
    """Write how a variant differs from the first one, without settings that all have."""
    part = record["command"].split("--part ")[1].split()[0]
    texts = [*BEGUN.get(part, ()), *(text for text in row["settings"] if text not in common)]
    return ", ".join(f"`{text}`" for text in texts) or "the recipe that the search began from"


def _classifiers(grid: Json) -> list[str]:
    """Return a row for each classifier on the features of one variant."""
    rows = [row for row in grid["rows"] if row["features"] == BEST]
    lines = [
        [
            "none" if row["shrinkage"] is None else f"{row['shrinkage']:g}",
            f"{row['correction']:g}",
            f"{row['alpha']:g}",
            *_numbers(row, MEASURES),
        ]
        for row in rows
    ]
    titles = ("whitening: shrinkage", "correction", "TEEN's α", *MEASURES)
    return markdown_table(titles, lines, "r" * len(titles))


def _is_chosen(row: Json) -> bool:
    return all(row[name] == value for name, value in CHOSEN.items())


def _numbers(row: Json, names: tuple[str, ...]) -> list[str]:
    return [tables.number(row[name]) for name in names]


def _about(trained: list[Json], classified: Json) -> str:
    commits = ", ".join(sorted({each["commit"] for each in trained}))
    return (
        f"One seed each, {trained[0]['machine']}, {trained[0]['date']}, commits {commits}: "
        f"`{trained[0]['command']}`; split: {trained[0]['about']['split']}. All variants have "
        f"{', '.join(f'`{text}`' for text in COMMON)}. Their features were then classified by "
        f"`{classified['command']}`: {classified['about']['draws']} draws of "
        f"{classified['about']['shots']} shots, all test views. Below are all classifiers on the "
        "features of the first row."
    )
