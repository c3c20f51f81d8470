"""Write the ranking of all methods on a benchmark, paired tests, and features × classifier.

docs/leaderboard.md is the one source; leaderboard.html is that page, with leaderboard.js.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from markdown_it import MarkdownIt

from fewmore.classifier.text import count_noun
from fewmore.data.benchmarks import BENCHMARKS
from fewmore.methods import FEATURES, METHODS
from fewmore.methods.features import PLAIN, PRETRAINED
from fewmore.methods.registry import CLASSIFIERS, classifier_of
from fewmore.nn.backbones import BACKBONES
from fewmore.research import published, results
from fewmore.research.outdated import recipe_changes
from fewmore.research.published import (
    PROTOCOL,
    ROW_OF_METHOD,
    Contents,
    follows_protocol,
    published_row,
)
from fewmore.research.reporting import nothing_learnt, tables
from fewmore.research.results import RunResult, run_keys
from fewmore.research.results.schema import FEATURES_SETTING, default_recipe
from fewmore.research.statistics import common_runs, paired_difference
from sections import encoding, recorded
from sections.accuracy import earlier_recipes, several_commits, unfused
from sections.contents import NAMES, millions
from sections.markdown import italic, markdown_table, over_runs, paragraph

PUBLISHED = ("*published last*", "*published average*", "*published epoch*")
COLUMNS = {  # titles, and how they are aligned
    "method": "l",
    "last": "r",
    "one view": "r",
    "test views": "r",
    "seeds": "r",
    "average": "r",
    "base": "r",
    "novel": "r",
    "harmonic": "r",
    PUBLISHED[0]: "r",
    PUBLISHED[1]: "r",
    PUBLISHED[2]: "l",
    "images kept": "r",
    "network": "l",
    "seconds": "r",
}
MIN_PAIRS = 3  # common seeds that a difference is tested from
DEVICE = "NVIDIA H200"  # of the column of seconds
REFERENCE = "joint"  # trains on all images, and so competes with no other
UNMEASURED = "–"
MISSING = "–"
UNKNOWN = "?"  # of published rows
PUBLISHED_BEST = (
    "*best published row with the same network, no extra data, no images kept, and scores that do "
    "not depend on the batch*"
)
EARLIER = "†"  # marks rows of an earlier recipe
PUBLISHED_ONE_VIEW = "*best such row with one test view*"
LEAK = " (scores depend on the batch)"


def ranking(benchmark: str) -> str:
    """Write all methods by last accuracy, by the published one where nothing is measured."""
    rows = ranked(benchmark)
    lines = [(fmean(row.last), _measured_cells(row)) for row in rows]
    beside = {name for row in rows if (name := published_name(row))}
    lines += _published_only(benchmark, beside)
    lines.sort(key=lambda line: line[0], reverse=True)
    cells = [[cells.get(column, MISSING) for column in COLUMNS] for _, cells in lines]
    table = markdown_table([*COLUMNS], cells, "".join(COLUMNS.values()))
    notes = " ".join(filter(None, _notes(benchmark, rows)))
    first = paragraph(_first(benchmark, rows))
    return "\n".join([first, "", *table, *(["", paragraph(notes)] if notes else [])]) + "\n"


def overview() -> str:
    """Write last accuracies of the paper's and later methods on all benchmarks, for README."""
    rows = {
        (row.method, name): row
        for name in NAMES
        for row in ranked(name)
        if not row.settings and row.recipe == "official" and _is_compared(row.method)
    }
    methods = list(dict.fromkeys(method for method, _ in rows))
    titles = ["method", *(each for title in NAMES.values() for each in (title, "*published*"))]
    lines = [[PUBLISHED_BEST, *_best_cells()], [PUBLISHED_ONE_VIEW, *_best_cells(1)]]
    for method in methods:
        own = [rows.get((method, name)) for name in NAMES]
        pairs = (
            _last_and_published(row) if row else (MISSING, _published_of(method, name))
            for row, name in zip(own, NAMES, strict=True)
        )
        cells = [cell for pair in pairs for cell in pair]
        lines.append([f"**{method}**{_remark(own)}", *cells])
        if any(row and row.one_view for row in own):
            one = (_mean(row.one_view) + mark(row) if row else MISSING for row in own)
            cells = [cell for last in one for cell in (last, MISSING)]
            lines.append([f"**{method}**, one test view", *cells])
    lines.append(_nothing_learnt())
    table = markdown_table(titles, lines, "l" + "r" * (len(titles) - 1))
    devices = ", ".join(sorted({str(row.machine["device"]) for row in rows.values()}))
    dates = sorted({row.date[:10] for row in rows.values()})
    about = (
        f"{devices}, {dates[0]} to {dates[-1]}; seeds, commands and all measures of every row: "
        "[results](docs/results.md) and [leaderboard](docs/leaderboard.md)."
    )
    about += " Without ±: one seed. Test views: test-time augmentation."
    if any(map(mark, rows.values())):
        about += f" {EARLIER} Measured with an earlier recipe, to be measured again."
    return "\n".join([*table, "", paragraph(about)]) + "\n"


def _best_cells(views: int | None = None) -> list[str]:
    """Return the highest published row of each benchmark, of those with so many test views."""
    cells = []
    for name in NAMES:
        last, method, about = _best_published(name, views)
        shown = "" if views else f", {_views_text([about.views.get(name)])}"
        cells += [MISSING, f"*{last:.2f} ({method}{shown})*"]
    return cells


def _nothing_learnt() -> list[str]:
    """Return the row of a network that learns no new class, which any method should exceed."""
    cells = []
    for name in NAMES:
        source = nothing_learnt.source_of(ranked(name))
        bound = nothing_learnt.nothing_learnt(source).last if source else ()
        cells += [_mean(bound), MISSING]
    return [f"*{nothing_learnt.NAME}*", *cells]


def _remark(rows: Sequence[RunResult | None]) -> str:
    """Say what a method has that others have not: several test views, or images of old classes."""
    known = [row for row in rows if row is not None]
    views = [test_views(row) for row in known]
    remarks = [_views_text(views)] if max(views) > 1 else []
    remarks += ["keeps images"] if any(row.keeps for row in known) else []
    return f", {', '.join(remarks)}" if remarks else ""


def _views_text(counts: Sequence[int | None]) -> str:
    numbers = " or ".join(str(count or "?") for count in dict.fromkeys(counts))
    return f"{numbers} test view{'' if numbers == '1' else 's'}"


def _last_and_published(row: RunResult) -> tuple[str, str]:
    """Return the last accuracy of a result, and the published one."""
    return _mean(row.last) + mark(row), _published_cells(row).get(PUBLISHED[0], MISSING)


def _published_of(method: str, benchmark: str) -> str:
    """Return the published last accuracy of a method that is not measured on a benchmark."""
    known = ROW_OF_METHOD.get(method, method).lower()
    found = (
        published.accuracy_of(name, about, benchmark)[0]
        for about in published.contents()
        for name in about.methods
        if name.lower() == known
    )
    return italic(next(found, None))


def mark(row: RunResult | None) -> str:
    """Mark a row of an earlier recipe."""
    return EARLIER if row and recipe_changes(row) else ""


def _is_compared(method: str) -> bool:
    """Say whether a method is a row of the paper's comparison, or a later one."""
    return method in ROW_OF_METHOD or method in FEATURES


def _best_published(benchmark: str, views: int | None = None) -> tuple[float, str, Contents]:
    """Return the highest published row with CEC's network and data, and no leak.

    With `views`, of those with so many test views.
    """
    network = published.backbone_of_cec(benchmark)
    alike = [
        (published.accuracy_of(name, about, benchmark)[0] or 0.0, name, about)
        for about in published.contents()
        for name in about.methods
        if about.backbones.get(benchmark) == network and not about.leak
        if about.exemplars.startswith("none") and about.extra_data == "none"
        if views is None or about.views.get(benchmark) == views
    ]
    return max(alike, key=lambda row: row[0])


def _first(benchmark: str, rows: Sequence[RunResult]) -> str:
    """Name the first of our rows, and the highest published ones that have the same network.

    A row of few seeds is first only where there is no other.
    """
    network = published.backbones()[published.backbone_of_cec(benchmark)].name
    own = [row for row in rows if row.method != REFERENCE]
    best = next((row for row in own if row.runs >= MIN_PAIRS), own[0] if own else None)
    ours = _best_of_ours(own, best) if best else "Nothing is measured yet."
    last, name, about = _best_published(benchmark)
    views = _views_text([about.views.get(benchmark)])
    with_one, name_of_one, about_one = _best_published(benchmark, 1)
    return (
        f"{ours} Published with {network}, no extra data, no images kept and scores that do not "
        f"depend on the batch, the highest is {name} with {last:.2f} ({views}; epoch: "
        f"{about.selection}), and with one test view {name_of_one} with {with_one:.2f} (epoch: "
        f"{about_one.selection}).{_unmeasured_rivals(own)}"
    )


def _best_of_ours(own: Sequence[RunResult], best: RunResult) -> str:
    """Name the first row of several seeds, those of fewer above it, and the first with one view."""
    text = f"Measured here, **{_name(best)}** is first with {_mean(best.last)}"
    views = test_views(best)
    text += f" ({_views_text([views])})." if views > 1 else "."
    above = own[: own.index(best)]
    if above:
        ends = ", ".join(f"{_name(row)} ({_mean(row.last)})" for row in above)
        text += f" Higher, but with fewer than {MIN_PAIRS} seeds: {ends}."
    ones = {_name(row): one for row in own if (one := _one_view(row))}
    if views > 1 and ones:
        first = max(ones, key=lambda name: fmean(ones[name]))
        if first == _name(best):
            text += f" With one test view it has {_mean(ones[first])}, and is first too."
        else:
            own_one = f" it has {_mean(ones[_name(best)])}, and" if _name(best) in ones else ""
            seeds = count_noun(len(ones[first]), "seed")
            text += (
                f" With one test view{own_one} {first} is first with {_mean(ones[first])} "
                f"({seeds})."
            )
    return text


def test_views(row: RunResult) -> int:
    """Return how many views of a test image a row averages."""
    return int(max(count or 1 for count in row.test_views))


def _one_view(row: RunResult) -> list[float]:
    """Return the last accuracies with one test view."""
    values = row.one_view if test_views(row) > 1 else row.last
    return [value for value in values if value is not None]


def _unmeasured_rivals(own: Sequence[RunResult]) -> str:
    """Name the later methods that have not been measured with three seeds."""
    seeds = {row.method: row.runs for row in own if not row.settings}
    rivals = [name for name in FEATURES if name not in (PLAIN, PRETRAINED)]
    none = [name for name in rivals if name not in seeds]
    few = [name for name in rivals if 0 < seeds.get(name, 0) < MIN_PAIRS]
    parts = [f"not measured: {', '.join(none)}"] if none else []
    parts += [f"with fewer than {MIN_PAIRS} seeds: {', '.join(few)}"] if few else []
    return f" This is no ranking of the field yet ({'; '.join(parts)})." if parts else ""


def ranked(benchmark: str) -> list[RunResult]:
    """Return the results under the published protocol, the highest last accuracy first."""
    rows = filter(follows_protocol, recorded.read_results(benchmark))
    return sorted(rows, key=lambda row: fmean(row.last), reverse=True)


def _name(row: RunResult) -> str:
    """Name a method, the features that are not its own, another recipe and other settings."""
    features = results.short_features(row.settings)
    parts = [f"{row.method} on {features}'s features" if features else row.method]
    parts += [str(row.recipe)] if row.recipe != "official" else []
    parts += [f"{key}={value}" for key, value in row.settings.items() if key != FEATURES_SETTING]
    return ", ".join(parts)


def _measured_cells(row: RunResult) -> dict[str, str]:
    """Return the cells of a result by column."""
    base, novel, harmonic = (
        _mean([run[-1] for run in table]) for table in (row.base, row.novel, row.harmonic)
    )
    views = test_views(row)
    kept = max((count for count in row.images_kept if count is not None), default=None)
    backbone = str(row.settings.get("backbone", BENCHMARKS[row.benchmark].backbone))
    return {
        "method": f"**{_name(row)}**",
        "last": _mean(row.last),
        "average": _mean(row.average),
        "base": base,
        "novel": novel,
        "harmonic": harmonic,
        "one view": _mean(row.one_view if views > 1 else row.last),
        "seeds": str(len(set(row.seeds))),
        "test views": str(views),
        "images kept": str(row.keeps) if kept is None else f"{kept:,.0f}" if kept else "none",
        "network": _network(row.benchmark, backbone),
        "seconds": _seconds(row),
        **_published_cells(row),
    }


def _mean(values: Sequence[float | None]) -> str:
    return over_runs(values) if values else MISSING


def _network(benchmark: str, backbone: str) -> str:
    """Name a backbone as published rows do, if one of them has it."""
    is_own = backbone == BENCHMARKS[benchmark].backbone
    key = published.backbone_of_cec(benchmark) if is_own else backbone
    known = published.backbones().get(key)
    if known is None:
        return _network_cell(backbone, _parameters(backbone))
    return _with_stem(benchmark, known)


@cache
def _parameters(backbone: str) -> int | None:
    """Count the parameters of a backbone, without any classifier; None for those of timm."""
    if backbone not in BACKBONES:
        return None
    return sum(parameter.numel() for parameter in BACKBONES[backbone].build().parameters())


def paired(benchmark: str) -> str:
    """Test each measured row of several seeds against the next one, over common seeds."""
    rows = [row for row in ranked(benchmark) if row.runs >= MIN_PAIRS]
    lines = [
        [_name(row), _name(below), *cells]
        for row, below in pairwise(rows)
        if (cells := against(row, below))
    ]
    if not lines:
        return f"No two rows have {MIN_PAIRS} seeds in common yet.\n"
    titles = ("method", "beside", "common seeds", "difference", "95 % interval", "")
    table = markdown_table(titles, lines, "llrrll")
    note = (
        f"Methods that were measured with at least {MIN_PAIRS} seeds, each beside the next one in "
        "the ranking: the mean difference of the last accuracy over common seeds, and its "
        "interval by Student's t, not corrected for several comparisons. Where the interval "
        "includes 0 it is a tie."
    )
    return "\n".join([*table, "", paragraph(note)]) + "\n"


def against(row: RunResult, other: RunResult) -> list[str]:
    """Test the difference of two last accuracies over common seeds; empty where these are few."""
    theirs = dict(zip(run_keys(other), other.last, strict=True))
    own = dict(zip(run_keys(row), row.last, strict=True))
    values, reference = common_runs(own, theirs)
    if len(values) < MIN_PAIRS:
        return []
    found = paired_difference(values, reference)
    cells = [str(len(values)), _signed(found.mean)]
    if found.low is None or found.high is None:
        return [*cells, MISSING, "the same for each seed"]
    word = "tie" if found.low <= 0 <= found.high else "higher" if found.low > 0 else "lower"
    return [*cells, f"{_signed(found.low)} to {_signed(found.high)}", word]


def _signed(value: float) -> str:
    return tables.Cell(value, signed=True).text


def _seconds(row: RunResult) -> str:
    """Return the mean seconds of a run, on the device of the column."""
    if row.machine.get("device") != DEVICE:
        return MISSING
    seconds, _, notes = tables.seconds_text(row).partition(" (")
    return f"{seconds} + stage 1" if notes.startswith("without") else seconds


def published_name(row: RunResult) -> str | None:
    """Return the name of the published row of what a result measures, or None."""
    if row.settings or row.recipe != "official" or "method_source" in row.machine:
        return None
    printed = published_row(row)
    if printed is not None:
        return printed.name
    later = (name for about in published.contents() for name in about.methods)
    return next((name for name in later if name.lower() == row.method), None)


def _published_cells(row: RunResult) -> dict[str, str]:
    """Return the published last and average of a result's method, and its choice of the epoch."""
    name, printed = published_name(row), published_row(row)
    if name is None:
        return {}
    # Rows of CEC's ablation are of CEC's program.
    about = _contents(name) or _contents("CEC")
    assert about is not None
    last, average = published.accuracy_of(name, about, row.benchmark)
    if printed is not None:
        last, average = printed.sessions[-1], printed.average
    if last is None and average is None:
        return {}
    return dict(zip(PUBLISHED, (italic(last), italic(average), about.selection), strict=True))


def _contents(name: str) -> Contents | None:
    return next((about for about in published.contents() if name in about.methods), None)


def _published_only(benchmark: str, beside: set[str]) -> Iterator[tuple[float, dict[str, str]]]:
    """Yield the last accuracy and the cells of published rows that no result stands beside."""
    for about in published.contents():
        for name in about.methods:
            last, average = published.accuracy_of(name, about, benchmark)
            if last is None or name in beside:
                continue
            backbone = published.backbones()[about.backbones.get(benchmark, published.UNKNOWN)]
            epoch = about.selection.replace(published.UNKNOWN, UNKNOWN)
            cells = (italic(last), italic(average), epoch)
            yield (
                last,
                {
                    "method": f"*{name}{LEAK if about.leak else ''}*",
                    **dict(zip(PUBLISHED, cells, strict=True)),
                    "test views": str(about.views.get(benchmark) or UNKNOWN),
                    "images kept": _kept(about.exemplars),
                    "network": _with_stem(benchmark, backbone),
                },
            )


def _with_stem(benchmark: str, backbone: published.Backbone) -> str:
    """Name a backbone, and its stem where only that differs from CEC's."""
    cec = published.backbones()[published.backbone_of_cec(benchmark)]
    differs = backbone.name == cec.name and backbone.stem != cec.stem
    stem = f", stem {backbone.stem}" if differs else ""
    return _network_cell(f"{backbone.name}{stem}", backbone.parameters)


def _network_cell(name: str, parameters: int | None) -> str:
    """Name a network and its parameters; all rows of a benchmark have the same first weights."""
    size = "" if parameters is None else f", {millions(parameters)}".replace(" M", "\u00a0M")
    return f"{name.removesuffix(' (ImageNet)')}{size}".replace(published.UNKNOWN, UNKNOWN)


def _kept(exemplars: str) -> str:
    """Say in a word or two which images of old classes a published row keeps."""
    first = re.split("[;,]", exemplars)[0].removesuffix(" images")
    return re.sub(r" images? of every old class$", " a class", first).replace(
        published.UNKNOWN, UNKNOWN
    )


def _notes(benchmark: str, rows: Sequence[RunResult]) -> list[str]:
    """Say what is not measured, and where rows differ in origin."""
    known = {row.method for row in rows}
    missing = [method for method in METHODS if method not in known]
    command = f"`fewmore run {benchmark} -m {missing[0]} --seeds 3`" if missing else ""
    origins = (encoding.files, earlier_recipes, unfused, several_commits)
    return [
        f"Not measured yet: {', '.join(missing)}; {command} measures one." if missing else "",
        *(origin(rows) for origin in origins if rows),
    ]


def features(benchmark: str) -> str:
    """Write last accuracy / harmonic mean of every classifier on every features."""
    entry = BENCHMARKS[benchmark]
    measured: dict[tuple[str, str], RunResult] = {}
    for row in ranked(benchmark) if benchmark in PROTOCOL else recorded.read_results(benchmark):
        settings = {key: value for key, value in row.settings.items() if key != FEATURES_SETTING}
        if row.method not in METHODS or settings or row.recipe != default_recipe(benchmark):
            continue
        own = METHODS[row.method].features
        key = results.short_features(row.settings) or own, classifier_of(row.method, entry)
        if key not in measured or measured[key].runs < row.runs:
            measured[key] = row
    # Beside those for any features: of methods with features of their own, and what was measured.
    more = (name for of, name in measured if of != METHODS[name].features)
    with_own = [name for name, info in METHODS.items() if info.features != PLAIN]
    own = (classifier_of(name, entry) for name in with_own)
    classifiers = list(dict.fromkeys((*CLASSIFIERS, *own, *more)))
    known = (name for name in FEATURES if name != PRETRAINED or entry.pretrained)
    rows = dict.fromkeys((*known, *(of for of, _ in measured)))
    lines = [
        [
            f"**{of}**{_features_views(row for (its, _), row in measured.items() if its == of)}",
            *(_last_and_harmonic(measured.get((of, name))) for name in classifiers),
        ]
        for of in rows
    ]
    answer = _features_or_classifier(
        {key: fmean(row.last) for key, row in measured.items() if key[1] in CLASSIFIERS}
    )
    runs = [row.runs for (_, name), row in measured.items() if name in classifiers]
    seeds = f"{runs.count(1)} of {len(runs)} cells are one seed. " if 1 in runs else ""
    note = (
        f"{seeds}–: not measured yet; `fewmore run {benchmark} --features closer -m cec`, for one, "
        "measures CEC's stage 2 on CLOSER's features."
    )
    table = markdown_table(["features", *classifiers], lines)
    return "\n".join([paragraph(f"{answer}{note}"), "", *table]) + "\n"


def _features_views(rows: Iterable[RunResult]) -> str:
    """Say how many test views the rows of some features average, if several."""
    views = max(map(test_views, rows), default=1)
    return f", {_views_text([views])}" if views > 1 else ""


def _features_or_classifier(last: Mapping[tuple[str, str], float]) -> str:
    """Say how far the last accuracy moves with the features, and how far with the classifier.

    Each is said where most was measured: of the classifier, or of the features, with most cells.
    """

    def said(place: int, template: str) -> str:
        common = Counter(key[place] for key in last).most_common(1)
        if not common or common[0][1] < 2:
            return ""
        [(name, count)] = common
        cells = sorted((value, key[1 - place]) for key, value in last.items() if key[place] == name)
        (low, worst), (high, best) = cells[0], cells[-1]
        return template.format(name=name, count=count) + (
            f"the last accuracy goes from {low:.2f} ({worst}) to {high:.2f} ({best}). "
        )

    of_features = said(1, "With {name} as the classifier on {count} kinds of features, ")
    of_classifier = said(0, "On {name}'s features with {count} classifiers, ")
    return of_features + of_classifier + _best_classifier(last)


def _best_classifier(last: Mapping[tuple[str, str], float]) -> str:
    """Say on how many features each classifier is the best, where all of them were measured."""
    complete = [
        of
        for of in dict.fromkeys(of for of, _ in last)
        if all((of, name) in last for name in CLASSIFIERS)
    ]
    if len(complete) < 2:
        return ""
    best = Counter(max(CLASSIFIERS, key=lambda name: last[of, name]) for of in complete)
    wins = ", ".join(f"{name} on {count}" for name, count in best.most_common())
    return f"Of {len(complete)} kinds of features with all classifiers, the best is {wins}. "


def _last_and_harmonic(row: RunResult | None) -> str:
    if row is None:
        return UNMEASURED
    harmonic = tables.mean_cell([run[-1] for run in row.harmonic]).mean
    return f"{fmean(row.last):.2f} / {tables.number(harmonic)}"


def page(markdown: str) -> str:
    """Return docs/leaderboard.md as a page with sortable tables that needs no other file."""
    folder = Path(__file__).resolve().parent.parent
    style, script = (
        (folder / f"leaderboard.{suffix}").read_text(encoding="utf-8") for suffix in ("css", "js")
    )
    body = MarkdownIt("commonmark").enable("table").render(markdown)
    # A table that is wider than the page scrolls by itself, by the arrow keys too.
    body = body.replace("<table>", '<div class="scroll" tabindex="0"><table>')
    body = body.replace("</table>", "</table></div>")
    return f"""\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>fewmore: leaderboard</title>
<style>
{style}</style>
<main>
{body}</main>
<script>
{script}</script>
</html>
"""
