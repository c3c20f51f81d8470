"""Answer whether fewmore reproduces the paper: a sentence, a table and a figure per benchmark."""

import math
from collections.abc import Sequence
from statistics import stdev

from claims.evidence import Evidence, side
from claims.judge import CERTAINTY, HOLDS, LAST, Comparison

from fewmore.methods import METHODS
from fewmore.research import published
from fewmore.research.published import ROW_OF_METHOD, published_row
from fewmore.research.reporting import nothing_learnt, tables
from fewmore.research.results import RunResult
from sections import encoding, gaps, recorded
from sections.accuracy import earlier_recipes, graph_effect, several_commits, unfused
from sections.contents import NAMES
from sections.markdown import UNMEASURED, bullet, italic, markdown_table, mean_and_std, paragraph

NEAR = 1.5  # points at the last session
OWN = ("cec", "decoupled-cosine")  # the paper's method, and what it is built on
PAPERS = (*OWN, "decoupled-deepemd")  # the rows that the paper measured first
EARLIER = tuple(method for method in reversed(ROW_OF_METHOD) if method not in PAPERS)
ORDER = (*PAPERS, *EARLIER, "joint")
WORDS = {2: "yes", 1: "in part", 0: "no"}  # by the number of conditions that hold
RULE = (
    f"There are two criteria. *Numbers*: CEC and Decoupled-Cosine both end within {NEAR} points of "
    "their published rows. *Order*: CEC is above Decoupled-Cosine, seed by seed, at "
    f"{CERTAINTY:.0%} certainty. *Yes* says that numbers and order are as published, *in part* "
    "that only the numbers or only the order is, *no* that neither is. The bound of "
    f"{NEAR} points was set when CIFAR100 and miniImageNet had been measured."
)
TITLES = (
    "method",
    "seeds",
    "last session",
    "*published*",
    "difference",
    "average, *published*",
    "PD, *published*",
)


def answers() -> str:
    """Write the answer for each benchmark of the paper, and the rule behind it."""
    items = [*map(_answer, NAMES), _graph(), _earlier()]
    return "\n".join([*map(bullet, filter(None, items)), "", paragraph(RULE)]) + "\n"


def _answer(benchmark: str) -> str:
    rows = recorded.read_compared(benchmark)
    name = f"[{NAMES[benchmark]}](results/{benchmark}.md)"
    word = _word(benchmark, rows)
    missing = [ROW_OF_METHOD[method] for method in OWN if method not in rows]
    if missing:
        options = " ".join(f"-m {method}" for method in reversed(OWN))
        return (
            f"**{name}: {word}.** {' and '.join(missing)} would be by "
            f"`fewmore run {benchmark} {options} --seeds 5`."
        )
    own = [rows[method] for method in OWN]
    ends = ", and ".join(map(_end, own))
    gain = _gain_text(cec_gain(benchmark, rows), own)
    return f"**{name}: {word}.** {ends}. {gain}{_uncertain(own)}"


def _word(benchmark: str, rows: dict[str, RunResult]) -> str:
    """Say in a word or two whether a benchmark's main rows are as published."""
    if any(method not in rows for method in OWN):
        return "not measured yet"
    own = [rows[method] for method in OWN]
    near = all(abs(gaps.last_gap(row)) <= NEAR for row in own)
    word = WORDS[near + (cec_gain(benchmark, rows).verdict == HOLDS)]
    return f"{word}, narrowly" if near and _uncertain(own) else word


def short() -> str:
    """Write the answers in a sentence, for README, and what the own recipe was chosen on."""
    words: dict[str, list[str]] = {}
    for benchmark, name in NAMES.items():
        word = _word(benchmark, recorded.read_compared(benchmark))
        words.setdefault(word, []).append(name)
    listed = "; ".join(f"on {' and '.join(names)} {word}" for word, names in words.items())
    earlier = "; the earlier methods: no" if _earlier() else ""
    effects = [effect[0] for benchmark in NAMES if (effect := graph_effect(benchmark))]
    graph = " CEC's graph does not raise the last accuracy." if max(effects, default=1) <= 0 else ""
    text = (
        "`evolve` is fewmore's own recipe, chosen on base classes alone ([how, and how often it "
        "was tested](docs/tuning.md#fewmores-own-recipe)). [Does fewmore reproduce the paper?]"
        f"(docs/results.md) CEC and Decoupled-Cosine: {listed}{earlier}.{graph}"
    )
    return paragraph(text) + "\n"


def _uncertain(rows: Sequence[RunResult]) -> str:
    """Name the rows that are less than their standard error away from the bound."""
    names = [
        ROW_OF_METHOD[row.method]
        for row in rows
        if len(row.last) > 1
        and abs(abs(gaps.last_gap(row)) - NEAR) < stdev(row.last) / math.sqrt(len(row.last))
    ]
    if not names:
        return ""
    return (
        f" {' and '.join(names)} lies at the bound of {NEAR} points within its standard error: "
        "with other seeds the answer could be another."
    )


def _graph() -> str:
    """Say what the graph adds to the accuracy, and what the fine-tuned encoder."""
    effects = {
        name: found for benchmark, name in NAMES.items() if (found := graph_effect(benchmark))
    }
    if not effects:
        return ""
    graph, encoder = (
        ", ".join(f"{effect[part]:+.2f} on {name}" for name, effect in effects.items())
        for part in range(2)
    )
    helps = any(effect[0] > 0 for effect in effects.values())
    word = "in part" if helps else "not by the last accuracy"
    return (
        f"**Does CEC's graph help? {word.capitalize()}.** On the same fine-tuned encoder it adds "
        f"{graph}; fine-tuning the encoder, through the graph, adds {encoder} "
        "([seed by seed](results/studies.md#is-it-the-graph-or-the-encoder))."
    )


def _earlier() -> str:
    """Say how far the rows of earlier methods are from published ones; empty if none is far."""
    places = []
    for benchmark, name in NAMES.items():
        rows = recorded.read_compared(benchmark)
        differences = [gaps.last_gap(rows[method]) for method in EARLIER if method in rows]
        far = sorted(difference for difference in differences if abs(difference) > gaps.GAP)
        if far:
            ends = " to ".join(dict.fromkeys((f"{far[0]:+.2f}", f"{far[-1]:+.2f}")))
            places.append(f"{len(far)} of {len(differences)} on {name} ({ends})")
    if not places:
        return ""
    names = ", ".join(ROW_OF_METHOD[method] for method in EARLIER)
    link = "results/cifar100.md#far-from-the-published-rows"
    return (
        f"**The earlier methods ({names}): no.** Their last accuracies differ by more than "
        f"{gaps.GAP:.0f} points from the published ones for {', '.join(places)}. What was tried to "
        f"explain it is [here]({link})."
    )


def cec_gain(benchmark: str, rows: dict[str, RunResult]) -> Comparison:
    """Compare CEC with Decoupled-Cosine at the last session, seed by seed."""
    printed = published.published(benchmark)
    cec, cosine = (
        side(name, [rows[method]], LAST, method, {}, printed[name])
        for method, name in ((method, ROW_OF_METHOD[method]) for method in OWN)
    )
    return Evidence(recorded.RESULTS).compare(benchmark, cec, cosine, LAST)


def _gain_text(gain: Comparison, rows: Sequence[RunResult]) -> str:
    if gain.gain is None:
        return "The two have no seed in common."
    cec, cosine = (value or 0.0 for value in gain.published)
    # Methods of one command share stage 1.
    shared = len({(row.commit, row.command) for row in rows}) == 1
    by = mean_and_std(abs(gain.gain.mean), gain.gain.std)
    return (
        f"On the same {'stage 1' if shared else 'seeds'} CEC is {by} "
        f"{'above' if gain.gain.mean >= 0 else 'below'} Decoupled-Cosine "
        f"({gain.gain.seeds} seed{'s' if gain.gain.seeds > 1 else ''}; "
        f"published: {_apart(cec - cosine)})."
    )


def _end(row: RunResult) -> str:
    """Say where a row ends: "CEC ends at 48.25 ± 0.28, 0.89 below the published 49.14"."""
    printed = published_row(row)
    last = tables.mean_cell(row.last)
    end = f"{ROW_OF_METHOD[row.method]} ends at {mean_and_std(last.mean, last.std)}"
    if printed is None:
        return end
    return f"{end}, {_apart(gaps.last_gap(row))} the published {printed.sessions[-1]:.2f}"


def _apart(difference: float) -> str:
    return f"{abs(difference):.2f} {'above' if difference >= 0 else 'below'}"


def against_published(benchmark: str) -> str:
    """Write each row beside the published one, and say what is not measured."""
    rows = recorded.read_compared(benchmark)
    measured = [rows[method] for method in METHODS if method in rows and method in ORDER]
    if not measured:
        return UNMEASURED
    table = tables.build(measured, with_published=False, with_nothing_learnt=True)
    computed, rest = table.rows[: -len(measured)], table.rows[-len(measured) :]
    pairs = zip(rest, measured, strict=True)
    ordered = sorted(pairs, key=lambda pair: ORDER.index(pair[1].method))
    cells = [_cells(*pair) for pair in ordered] + [_cells(row, None) for row in computed]
    measured = [result for _, result in ordered]
    bound = f"{nothing_learnt.NOTE[0].upper()}{nothing_learnt.NOTE[1:]}." if computed else ""
    notes = " ".join(filter(None, (bound, *_notes(benchmark, measured))))
    lines = markdown_table(TITLES, cells, "lrrrrrr") + (["", paragraph(notes)] if notes else [])
    return "\n".join(lines) + "\n"


def _cells(row: tables.Row, result: RunResult | None) -> list[str]:
    """Format a row; a computed one has no result, and no published row."""
    printed = published_row(result) if result else None
    last, average, drop = row.cells[-len(tables.SUMMARY) - 1 :][:3]
    difference = tables.Cell(gaps.last_gap(result) if result and printed else None, signed=True)
    method = result.method if result else row.name
    name = ROW_OF_METHOD.get(method, method)
    if result and name.lower() != method:
        name += f" (`{method}`)"
    return [
        name,
        str(row.runs),
        mean_and_std(last.mean, last.std),
        italic(printed.sessions[-1] if printed else None),
        difference.text,
        f"{average.text}, {italic(printed.average if printed else None)}",
        f"{drop.text}, {italic(printed.pd if printed else None)}",
    ]


def _notes(benchmark: str, measured: Sequence[RunResult]) -> list[str]:
    """Say what is missing, what is far from published rows, and where rows differ in origin."""
    known = {row.method for row in measured}
    missing = [ROW_OF_METHOD.get(method, method) for method in ORDER if method not in known]
    far = [ROW_OF_METHOD[row.method] for row in measured if abs(gaps.last_gap(row)) > gaps.GAP]
    link = f"results/{benchmark}.md#far-from-the-published-rows"
    return [
        f"Not measured: {', '.join(missing)}." if missing else "",
        _images_kept(measured),
        f"More than {gaps.GAP:.0f} points from the published row: {', '.join(far)} ([why]({link}))."
        if far
        else "",
        encoding.files(measured),
        earlier_recipes(measured),
        unfused(measured),
        several_commits(measured),
    ]


def _images_kept(measured: Sequence[RunResult]) -> str:
    """Name the methods that keep images of old classes, without which no comparison is fair."""
    kept = {
        ROW_OF_METHOD.get(row.method, row.method): max(count or 0 for count in row.images_kept)
        for row in measured
    }
    keep = [f"{name} {count:,.0f}" for name, count in kept.items() if count]
    return f"Images of old classes that are kept: {', '.join(keep)}." if keep else ""


def figure(benchmark: str) -> str:
    """Show the figure that docs/make.py draws, or say that there is nothing to draw."""
    name = NAMES.get(benchmark, benchmark)
    if not recorded.read_results(benchmark):
        return f"{name} is not measured yet.\n"
    folder = "figures" if benchmark in NAMES else "../figures"  # others have only their own page
    return f"![accuracy by session on {name}]({folder}/{benchmark}.png)\n"
