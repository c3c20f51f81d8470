"""Write the tables of accuracy on a benchmark."""

from collections.abc import Sequence
from statistics import fmean

from fewmore.classifier.text import count_noun
from fewmore.data.benchmarks import BENCHMARKS
from fewmore.research import results
from fewmore.research.machine import BUSY
from fewmore.research.outdated import recipe_changes
from fewmore.research.published import PROTOCOL
from fewmore.research.reporting import formats, nothing_learnt, tables
from fewmore.research.reporting.notes import layer_failures
from fewmore.research.results import RunResult
from fewmore.research.results.schema import FEATURES_SETTING
from sections import commands, encoding, recorded
from sections.markdown import UNMEASURED, bullet, markdown_table, paragraph

COLUMNS_OF_PROVENANCE = (
    "Seconds are a run's share of the wall clock, with stage 1, also where other runs shared it. "
    "Side by side: so many runs of the command at once. Other work: more ran on the machine, which "
    "made it slower."
)
MOST_NAMED = 15  # rows of a table that are named one by one


def table(benchmark: str) -> str:
    """Write accuracy by session, measured and published.

    Of a benchmark without published rows, methods on features of others are in the table of
    features and classifiers alone.
    """
    rows = recorded.read_results(benchmark)
    if benchmark not in PROTOCOL:
        rows = [row for row in rows if FEATURES_SETTING not in row.settings]
    if not rows:
        return UNMEASURED
    parts = []
    for group in tables.groups(rows):
        parts.append(formats.to_markdown(tables.build(group, with_nothing_learnt=True)))
        parts.append(below_nothing_learnt(group))
    return "\n".join(filter(None, parts))


def below_nothing_learnt(rows: Sequence[RunResult]) -> str:
    """Name the rows that end below a stage 1 that learns no new class; empty if none is known."""
    source = nothing_learnt.source_of(rows)
    if source is None:
        return ""
    bound = fmean(nothing_learnt.nothing_learnt(source).last)
    named = dict(zip(results.names(rows), rows, strict=True))
    origin = next(name for name, row in named.items() if row is source)
    below = {name: fmean(row.last) for name, row in named.items() if fmean(row.last) < bound}
    text = (
        f"A network that learns nothing after stage 1 ends at {bound:.2f}: the base session of "
        f"{origin} times the share of base images among all test images. "
    )
    if below:
        ends = ", ".join(f"{name} ({last:.2f})" for name, last in below.items())
        text += f"Rows below it: {ends}."
    else:
        text += "No row ends below it."
    return paragraph(text) + "\n"


def several_commits(rows: Sequence[RunResult]) -> str:
    """Name the commits of the rows of a table; empty where all rows are of one."""
    named: dict[str, list[str]] = {}
    for name, row in zip(results.names(rows), rows, strict=True):
        named.setdefault((row.commit or "unknown")[:12], []).append(name)
    if len(named) < 2:
        return ""
    named_or_counted = {
        commit: "; ".join(of) if len(rows) <= MOST_NAMED else count_noun(len(of), "row")
        for commit, of in named.items()
    }
    commits = ", ".join(f"{commit} ({of})" for commit, of in named_or_counted.items())
    return f"The rows come from {len(named)} commits: {commits}."


def earlier_recipes(rows: Sequence[RunResult], folder: str = "results/") -> str:
    """Name the rows that have other settings than their recipe has today; empty if none has.

    `folder` is where the page lies that says what changed, from the page that this is for.
    """
    named = zip(results.names(rows), rows, strict=True)
    earlier = [name for name, row in named if recipe_changes(row)]
    if not earlier:
        return ""
    page = f"{folder}{rows[0].benchmark}.md#session-by-session"
    return (
        f"Measured with an earlier recipe, to be measured again: {'; '.join(earlier)} "
        f"([what changed]({page}))."
    )


def unfused(rows: Sequence[RunResult]) -> str:
    """Name the rows that were trained on a GPU whose fused layers failed to load."""
    failures = layer_failures(rows, results.names(rows))
    return " ".join(
        f"Trained with PyTorch's own layers, as the fused ones failed to load (`{failure}`): "
        f"{'; '.join(names)}."
        for failure, names in failures.items()
    )


def changed_since(rows: Sequence[RunResult], on_purpose: Sequence[str] = ()) -> str:
    """Say how many rows of a study have other settings than their recipe has today, and which.

    Settings that the study was run with on purpose ("NAME=VALUE") are not counted.
    """
    known = {setting.partition("=")[0] for setting in on_purpose}
    changes = [
        {change.name for change in recipe_changes(row) if change.name not in known} for row in rows
    ]
    count = sum(map(bool, changes))
    if not count:
        return ""
    names = ", ".join(f"`{name}`" for name in sorted(set().union(*changes)))
    which = "All rows are" if count == len(rows) else f"{count} of {len(rows)} rows are"
    return f"{which} of an earlier recipe ({names})."


def provenance(benchmark: str) -> str:
    """Write command, seeds, machine, date and time of each result."""
    rows = recorded.read_results(benchmark)
    if not rows:
        return UNMEASURED
    titles = {  # and how they are aligned
        "method": "l",
        "seeds": "r",
        "command": "r",
        "seconds a run": "r",
        "stage 1": "r",
        "side by side": "r",
        "other work": "r",
        "peak memory": "r",
        "machine": "r",
        "date": "r",
        "commit": "r",
    }
    numbers, listed = commands.numbered([row.command for row in rows])
    lines = [
        (
            name,
            ", ".join(map(str, dict.fromkeys(result.seeds))),
            number,
            *_seconds(result),
            str(result.machine.get("side_by_side", 1)),
            "yes" if result.machine.get(BUSY) else "no",
            f"{max(result.peak_memory_mb):,.0f} MB",
            str(result.machine["device"]),
            result.date[:10],
            (result.commit or "–")[:12],
        )
        for name, result, number in zip(results.names(rows), rows, numbers, strict=True)
    ]
    table = "\n".join(markdown_table([*titles], lines, "".join(titles.values())))
    notes = (encoding.files(rows), several_commits(rows), unfused(rows), _other_seeds(rows))
    origin = paragraph(" ".join(filter(None, notes)))
    about = paragraph(f"{COLUMNS_OF_PROVENANCE} {_versions(rows)} The commands:")
    return "\n\n".join(filter(None, (origin, table, about, listed))) + "\n"


def _seconds(row: RunResult) -> tuple[str, str]:
    """Return the mean seconds of a run, and whose stage 1 is in them."""
    seconds, _, notes = tables.seconds_text(row).partition(" (")
    if notes.startswith("without"):
        return seconds, "not in them"
    return seconds, "shared" if notes.startswith("stage 1 shared") else "own"


def _versions(rows: Sequence[RunResult]) -> str:
    """Name the versions of PyTorch on each machine."""
    known: dict[str, dict[str, None]] = {}
    for row in rows:
        known.setdefault(str(row.machine["device"]), {})[str(row.machine["torch"])] = None
    return " ".join(f"{device}: torch {', '.join(of)}." for device, of in known.items())


def _other_seeds(rows: Sequence[RunResult]) -> str:
    """Name the rows with seeds that the recorded command does not name."""
    texts = [
        f"Seeds {' and '.join(map(str, seeds))} of {name} were added by another command than the "
        "one below, which the result does not name."
        for name, row in zip(results.names(rows), rows, strict=True)
        if (seeds := commands.unnamed_seeds(row))
    ]
    return " ".join(texts)


def graph_or_encoder() -> str:
    """Write CEC's adapted accuracy beside the plain cosine before and after stage 2."""
    titles = (
        "benchmark",
        "seed",
        "Decoupled-Cosine, stage 1 features",
        "plain cosine after stage 2",
        "CEC, adapted",
        "effect of the graph",
    )
    runs = {benchmark: _graph_runs(benchmark) for benchmark in BENCHMARKS}
    lines = [
        (
            benchmark,
            str(seed),
            tables.number(before),
            f"{plain:.2f}",
            f"{adapted:.2f}",
            f"{adapted - plain:+.2f}",
        )
        for benchmark, of in runs.items()
        for seed, before, plain, adapted in of
    ]
    texts = [_graph_text(benchmark, of) for benchmark, of in runs.items() if of]
    return "\n".join([*markdown_table(titles, lines), "", *map(bullet, texts)]) + "\n"


GraphRun = tuple[int, float | None, float, float]  # seed, stage 1, after stage 2, with the graph


def _graph_text(benchmark: str, runs: Sequence[GraphRun]) -> str:
    """Say what the encoder of stage 2 and what the graph add, in the mean over seeds."""
    graph = _graph_gain(runs)
    text = f"{benchmark}: in the mean the graph adds {tables.Cell(graph, signed=True).text} points"
    encoder = _encoder_gain(runs)
    if encoder is None:
        return f"{text}."
    return f"{text}, the encoder {tables.Cell(encoder, signed=True).text}."


def graph_effect(benchmark: str) -> tuple[float, float] | None:
    """Return what the graph and what the fine-tuned encoder add, in the mean over seeds."""
    runs = _graph_runs(benchmark)
    encoder = _encoder_gain(runs)
    return None if encoder is None else (_graph_gain(runs), encoder)


def _graph_gain(runs: Sequence[GraphRun]) -> float:
    return fmean(adapted - plain for _, _, plain, adapted in runs)


def _encoder_gain(runs: Sequence[GraphRun]) -> float | None:
    gains = [plain - before for _, before, plain, _ in runs if before is not None]
    return fmean(gains) if gains else None


def _graph_runs(benchmark: str) -> list[GraphRun]:
    """Return the last accuracies of CEC by seed: stage 1 alone, stage 2, and with the graph."""
    rows = {
        result.method: result
        for result in recorded.read_results(benchmark)
        if not result.settings and result.recipe in ("official", "quick")
    }
    if "cec" not in rows or "cosine_after_pil" not in rows["cec"].extra:
        return []
    cec = rows["cec"]
    before = rows.get("decoupled-cosine")
    before_by_seed = dict(zip(before.seeds, before.last, strict=True)) if before else {}
    return [
        (seed, before_by_seed.get(seed), float(plain[-1] or 0.0), last)
        for seed, plain, last in zip(
            cec.seeds, cec.extra["cosine_after_pil"], cec.last, strict=True
        )
    ]
