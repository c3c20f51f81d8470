"""Fill in the generated parts of README.md, docs/*.md and docs/results/*.md: `make docs`.

A part stands between `<!-- NAME -->` and `<!-- /NAME -->`. Its text comes from results/ and from
the code; no number is typed by hand. docs/leaderboard.html is the page leaderboard.md with sortable
tables, and docs/figures/architecture.svg draws the packages. `python docs/make.py --check` only
names the stale files.

    results/BENCHMARK-METHOD….json     accuracy, a row each
    results/re-encoded/*.json          the same from re-encoded images, to show what that costs
    results/explain/*.json             runs with other settings, to explain gaps to published rows
    results/earlier/*.json             rows that newer ones replaced, and seeds of other versions of
                                       the code than the row's, for tuning.md and the log
    results/layers/*.json              CUB200's stage 1 with fused layers and without
    results/draws/*.json               the same with shots that were drawn anew
    results/choices/*.json             runs with settings chosen by benchmarks/tuning.py
    results/searches/*.json            searches of `fewmore tune` on validation splits
    results/studies/STUDY-BENCHMARK/   written by `fewmore reproduce`; judged by docs/claims
    results/bench-….json               speed and memory
"""

import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from sections import (
    accuracy,
    answer,
    architecture,
    augmentations,
    checks,
    choices,
    contents,
    differences,
    draws,
    encoding,
    exports,
    formats,
    gaps,
    heads,
    leaderboard,
    listings,
    main_rows,
    own_recipe,
    quality,
    ranking_figure,
    recorded,
    reference,
    speed,
    studies,
    verdicts,
)

from fewmore.data.benchmarks import BENCHMARKS
from fewmore.research.published import ROW_OF_METHOD
from fewmore.research.reporting import figures, tables

PART = re.compile(
    r"(<!-- (?P<name>[a-z0-9-]+(?: [a-z0-9_-]+)*) -->\n).*?(<!-- /(?P=name) -->)", re.DOTALL
)
MEASURED = (
    "train_speed",
    "scoring",
    "acceleration",
    "practice",
    "calibration",
    "serving",
    "transport",
    "resolution",
    "oneseed",
    "stage1",
    "same_bits",
    "check",
    "spread",
    "inference",
    "first_class",
    "image_size",
    "fine_tune",
)

OUTPUTS = ("check", "train", "learn", "predict", "evaluate", "undo")  # of docs/outputs.py

PARTS: dict[str, Callable[[], str]] = {
    **{f"table {name}": partial(accuracy.table, name) for name in BENCHMARKS},
    "overview": lambda: f"{leaderboard.overview()}\n{answer.short()}",
    **{f"provenance {name}": partial(accuracy.provenance, name) for name in BENCHMARKS},
    **{f"figure {name}": partial(answer.figure, name) for name in BENCHMARKS},
    **{f"published {name}": partial(answer.against_published, name) for name in contents.NAMES},
    **{f"ranking {name}": partial(leaderboard.ranking, name) for name in contents.NAMES},
    **{f"paired {name}": partial(leaderboard.paired, name) for name in contents.NAMES},
    **{f"features {name}": partial(leaderboard.features, name) for name in BENCHMARKS},
    **{f"gaps {name}": partial(gaps.gaps, name) for name in BENCHMARKS},
    **{f"study {name}": partial(studies.study, name) for name in studies.ALT},
    **{f"bench {name}": partial(speed.bench, name) for name in MEASURED},
    **{f"contents {name}": partial(contents.accuracies, name) for name in contents.NAMES},
    "contents comparable": contents.comparable,
    "contents selection": contents.selection,
    "contents programs": contents.programs,
    "batch leak": contents.batch_leak,
    "answers": answer.answers,
    **{f"gap {name}": partial(main_rows.gap, name) for name in ("cifar100", "miniimagenet")},
    "encoding": encoding.cost,
    "resolution": encoding.resolution,
    "verdicts": verdicts.verdicts,
    "rules": verdicts.rules,
    "claims": verdicts.claims,
    **{f"draws {name}": partial(draws.draws, name) for name in contents.NAMES},
    "graph or encoder": accuracy.graph_or_encoder,
    "methods": listings.methods,
    "catalogue": listings.catalogue,
    "features": listings.features,
    "example": listings.example,
    "benchmarks": listings.benchmarks,
    "backbones": listings.backbones,
    "extras": listings.extras,
    "tree": listings.tree,
    "format model": formats.model_file,
    "format run": formats.run_folders,
    "format result": formats.result,
    "api": reference.api,
    "commands": reference.commands,
    "settings": reference.settings,
    "http": reference.http,
    "judges": quality.judges,
    "coverage": quality.coverage,
    "versions": quality.versions,
    "soak": quality.long_tests,
    "demo": speed.demo,
    "stream": speed.stream,
    **{f"output {name}": partial(speed.output, name) for name in OUTPUTS},
    "output doctor": speed.doctor,
    "heads": heads.heads,
    "confidences": speed.confidences,
    "check": checks.planted,
    "export": exports.agreement,
    "choices": choices.choices,
    "own recipe": own_recipe.chosen,
    "own recipe cub200": partial(own_recipe.chosen_on, "cub200"),
    "own recipe miniimagenet": partial(own_recipe.chosen_on, "miniimagenet"),
    "own recipe views": own_recipe.views,
    "own recipe tested": own_recipe.tested,
    "one seed": speed.one_seed,
    "stage1 targets": speed.stage1_targets,
    "selection": differences.selection,
    "separation cub200": differences.separation,
    "tested cub200": differences.tested,
    "details": differences.details,
    "precision": differences.precision,
    "moved": differences.moved,
    "layers": differences.layers,
    "pretrained": differences.pretrained,
    "search cub200-ghost": partial(differences.search, "cub200-ghost"),
}


def fill(text: str) -> str:
    """Replace every generated part of a page."""
    return PART.sub(lambda match: f"{match[1]}{PARTS[match['name']]()}{match[3]}", text)


def pages() -> Iterator[Path]:
    """Yield the pages that may have generated parts."""
    yield recorded.ROOT / "README.md"
    for folder in ("docs", "docs/results"):
        yield from sorted((recorded.ROOT / folder).glob("*.md"))


def draw_figures() -> None:
    """Draw accuracy by session for each benchmark, the ranking, and a sheet of augmented images."""
    folder = recorded.ROOT / "docs" / "figures"
    figures.save(augmentations.sheet(), folder / "augmentations.png")
    figures.save(ranking_figure.draw(), folder / "leaderboard.png")
    for name in BENCHMARKS:
        rows = [
            result
            for result in recorded.read_results(name)
            if result.method in (*ROW_OF_METHOD, "joint") and not result.settings
        ]
        # Other recipes are in the table; the figure shows them only where there is no official one.
        rows = [row for row in rows if row.recipe == "official"] or rows
        if rows:
            figure = figures.sessions_figure(rows, tables.published_rows(rows))
            figures.save(figure, folder / f"{name}.png")


def main() -> None:
    """Fill in all pages, or only check them."""
    made = {page: fill(page.read_text(encoding="utf-8")) for page in pages()}
    board = recorded.ROOT / "docs" / "leaderboard.md"
    made[board.with_suffix(".html")] = leaderboard.page(made[board])
    made[recorded.ROOT / "docs" / "figures" / "architecture.svg"] = architecture.drawing()
    stale = {
        page.relative_to(recorded.ROOT): text
        for page, text in made.items()
        if not page.exists() or page.read_text(encoding="utf-8") != text
    }
    if "--check" in sys.argv:
        sys.exit(f"stale: {', '.join(map(str, stale))}; run: make docs" if stale else 0)
    for page, filled in stale.items():
        (recorded.ROOT / page).write_text(filled, encoding="utf-8")
        print(f"filled {page}")
    draw_figures()


if __name__ == "__main__":
    main()
