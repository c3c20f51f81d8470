"""Write what single differences to the authors' program are worth, as they were measured."""

import ast
import json
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist, stdev
from statistics import fmean as mean
from typing import Any

from scipy.stats import ttest_ind

from fewmore.research import results
from fewmore.research.published import published_row
from fewmore.research.reporting import tables
from fewmore.research.results import RunResult
from fewmore.research.results.schema import FEATURES_SETTING
from sections import answer, recorded
from sections.contents import NAMES
from sections.markdown import UNMEASURED, italic, markdown_table, mean_and_std, over_runs, paragraph

ENDS = ("base session", "last session")
MEASURES = ("last", "base", "novel", "harmonic")
COSINE = "decoupled-cosine"
STAGE_1 = "stage 1"
STAGE_2 = "stage 2 from best"
SELECTION = recorded.RESULTS / "bench-selection-gpu.json"  # of benchmarks/selection.py
TRIED = (5, 10, 25)  # settings; the paper's grid of ways and shots has 25

Json = dict[str, Any]


def selection() -> str:
    """Write what choosing epoch and round on the test set is worth (benchmarks/selection.py)."""
    record = recorded.read_benchmark(SELECTION)
    official = _official_arm()
    kept = {
        "stage 1, last epoch": f"{STAGE_1} last",
        "stage 1, best epoch on test": f"{STAGE_1} best",
        "stage 2 from that epoch, last round": f"{STAGE_2}, last round",
        "stage 2 from that epoch, best round on test": f"{STAGE_2}, best round",
    }
    rows = [
        [label, *(_mean(official, f"{key}: {part}") for part in ("base", "last session"))]
        for label, key in kept.items()
    ]
    table = markdown_table(("what is kept", *ENDS), rows, "lrr")
    epoch = _gain(official, f"{STAGE_1} {{}}: base")
    last = _gain(official, f"{STAGE_1} {{}}: last session")
    round_ = _gain(official, f"{STAGE_2}, {{}} round: last session")
    seeds = ", ".join(str(row["seed"]) for row in official)
    every = ast.literal_eval(record["about"]["epochs looked at"])
    text = (
        f"Choosing the epoch of stage 1 on the test images of the base classes is worth "
        f"{epoch:+.2f} there and {last:+.2f} after the last session; choosing the round of stage 2 "
        f"on the test images of the last session is worth {round_:+.2f} after it. Seed {seeds}, "
        f"{record['machine']}, {record['date']}, commit {record['commit']}: "
        f"`{record['command']}`, which looks at the test set every {every['pretrain']} epochs of "
        f"stage 1 and every {every['pseudo-incremental']} rounds of stage 2."
    )
    return "\n".join(table) + f"\n\n{paragraph(text)}\n"


def _official_arm() -> list[Json]:
    rows = recorded.read_benchmark(SELECTION)["rows"]
    return [row for row in rows if row["arm"] == "official"]


def choice_on_test() -> str:
    """Write how much the best of several equally good settings gains by chance."""
    gain = answer.cec_gain("cub200", recorded.read_compared("cub200"))
    cec, cosine = gain.published
    if gain.gain is None or gain.gain.std is None or cec is None or cosine is None:
        return UNMEASURED
    ours, deviation = gain.gain.mean, gain.gain.std
    round_ = _gain(_official_arm(), f"{STAGE_2}, {{}} round: last session")
    lucky = {count: deviation * expected_maximum(count) for count in TRIED}
    rows = [
        ["CEC above Decoupled-Cosine, *published*", italic(cec - cosine)],
        [f"the same here, {gain.gain.seeds} seeds", mean_and_std(ours, deviation)],
        ["the best round of stage 2 on test, measured", f"{round_:+.2f}"],
        *(
            [f"the best of {count} equally good settings on test, expected", f"{points:+.2f}"]
            for count, points in lucky.items()
        ),
    ]
    between = cec - cosine - ours
    left = [between - round_ - points for points in lucky.values()]
    text = (
        f"The last rows are {deviation:.2f}, the deviation of the difference over seeds, times the "
        "mean of the largest of so many normal numbers: an estimate, not a measurement. With round "
        f"and setting chosen on test, {min(left):.2f} to {max(left):.2f} of the {between:.2f} "
        f"points between {cec - cosine:.2f} and {ours:.2f} remain."
    )
    table = markdown_table(("after the last session", "points"), rows, "lr")
    return "\n".join(table) + f"\n\n{paragraph(text)}\n"


def expected_maximum(count: int) -> float:
    """Return the mean of the largest of `count` standard normal numbers."""
    steps = 10_000
    quantiles = (((step + 0.5) / steps) ** (1 / count) for step in range(steps))
    return mean(map(NormalDist().inv_cdf, quantiles))


def details() -> str:
    """Write where stage 1 ends on CUB200 with more and more of the authors' details."""
    explained = [row for row in recorded.read_explanations() if row.benchmark == "cub200"]
    on_cpu = [row for row in explained if row.method == COSINE]
    on_features = [row for row in explained if row.method != COSINE]
    before, now = _measured_before(), recorded.read_compared("cub200")[COSINE]
    printed = published_row(now)
    ends = [italic(printed.sessions[place]) for place in (0, -1)] if printed else ["–"] * 2
    named = [
        *((f"on a GPU, {row.date[:10]}", row) for row in before),
        (f"on a GPU, {now.date[:10]}, with the first three details", now),
        *((f"on a CPU, {row.date[:10]}, with all five", row) for row in on_cpu),
        *((f"{row.method} on the last one's features", row) for row in on_features),
    ]
    rows = [
        ["*published*", "–", *ends, *["–"] * 3],
        *([name, str(row.runs), *map(over_runs, _measures(row))] for name, row in named),
    ]
    titles = ("Decoupled-Cosine", "seeds", "base session", *MEASURES)
    table = markdown_table(titles, rows, "l" + "r" * (len(titles) - 1))
    without = [last for row in before for last in row.last]
    p = ttest_ind(now.last, without, equal_var=False).pvalue
    above = (on_cpu[-1].last[0] - mean(now.last)) / stdev(now.last)
    about = on_cpu[-1]
    commands = dict.fromkeys(
        f"`{row.command}` ({row.commit})" for row in (now, *on_cpu, *on_features)
    )
    text = (
        f"The {len(without)} earlier runs on a GPU end at {_spread(without)}, from "
        f"{min(without):.2f} to {max(without):.2f}, and the {now.runs} with three of the details "
        f"at {_spread(now.last)} (Welch's t test: p = {p:.2f}). The seed on the CPU lies "
        f"{above:.1f} of their standard deviations above them. {now.machine['device']}; "
        f"{about.machine['device']}, {about.machine['cores']} cores, "
        f"{about.machine['precision']}: {', '.join(commands)}"
    )
    return "\n".join(table) + f"\n\n{paragraph(text)}\n"


def _spread(values: Sequence[float]) -> str:
    return f"{mean(values):.2f} ± {stdev(values):.2f}"


def _measured_before() -> list[RunResult]:
    """Return all results of Decoupled-Cosine on CUB200 with crops that are not antialiased."""
    ablation = recorded.RESULTS / "studies" / "ablation-cub200" / "results"
    rows = [*_earlier("cub200", COSINE), results.read(ablation / f"cub200-{COSINE}.json")]
    return sorted(rows, key=lambda row: row.date)


def _earlier(benchmark: str, method: str) -> list[RunResult]:
    """Return the rows of a method that newer ones replaced, the oldest first."""
    paths = (recorded.RESULTS / "earlier").glob(f"{benchmark}-*.json")
    rows = (row for row in map(results.read, paths) if row.method == method)
    return sorted(rows, key=lambda row: row.date)


def precision() -> str:
    """Write how far bfloat16 changes what stage 2 learns (benchmarks/precision.py)."""
    record = recorded.read_benchmark(recorded.RESULTS / "bench-precision-cpu.json")
    rows = [
        [row["arm"], row["part"], f"{row['cosine']:.3f}", f"{row['length']:.3f}"]
        for row in record["rows"]
    ]
    table = markdown_table(("compared with float32", "part", "cosine", "length"), rows, "llrr")
    text = (
        f"{record['machine']}, {record['date']}, commit {record['commit']}: `{record['command']}`"
    )
    return "\n".join(table) + f"\n\n{paragraph(text)}\n"


def moved() -> str:
    """Write the main rows that were measured more than once, the oldest first."""
    lines = []
    for benchmark, name in NAMES.items():
        now = recorded.read_compared(benchmark)
        for method in answer.OWN:
            rows = [*_earlier(benchmark, method), now[method]]
            p_values = ["", *(_p_of_base_session(*pair) for pair in pairwise(rows))]
            if len(rows) > 1:
                lines += [
                    [
                        name,
                        method,
                        row.date[:10],
                        (row.commit or "–")[:12],
                        str(row.runs),
                        *map(over_runs, _measures(row)[:2]),
                        p,
                    ]
                    for row, p in zip(rows, p_values, strict=True)
                ]
    titles = ("benchmark", "method", "date", "commit", "seeds", *ENDS, "p of the base session")
    return "\n".join(markdown_table(titles, lines, "llllrrrr")) + "\n"


def _p_of_base_session(*pair: RunResult) -> str:
    """Return the p value of Welch's t test: are the means of two rows' base sessions the same?"""
    return f"{ttest_ind(*(_measures(row)[0] for row in pair), equal_var=False).pvalue:.2f}"


def pretrained() -> str:
    """Write what ImageNet's weights reach on CUB200 without training, beside what is trained."""
    known = {
        (row.method, results.short_features(row.settings)): row
        for row in recorded.read_results("cub200")
        if row.recipe == "official" and not set(row.settings) - {FEATURES_SETTING}
    }
    names = {
        "class means on ImageNet's weights": ("decoupled-cosine", "pretrained"),
        "linear discriminants on ImageNet's weights": ("lda", "pretrained"),
        "evolve's classifier on ImageNet's weights": ("evolve", "pretrained"),
        "Decoupled-Cosine: class means after CEC's stage 1": ("decoupled-cosine", ""),
        "CEC": ("cec", ""),
        "class means after evolve's stage 1": ("decoupled-cosine", "evolve"),
        "evolve": ("evolve", ""),
    }
    rows = [
        [title, str(row.runs), *map(over_runs, _measures(row))]
        for title, key in names.items()
        if (row := known.get(key))
    ]
    titles = ("what is learnt", "seeds", "base session", *MEASURES)
    table = markdown_table(titles, rows, "l" + "r" * (len(titles) - 1))
    bare, cec = known["decoupled-cosine", "pretrained"], known["cec", ""]
    gap = mean(bare.last) - mean(cec.last)
    first = mean(run[0] for run in cec.accuracy) - mean(run[0] for run in bare.accuracy)
    novel = mean(run[-1] for run in cec.novel) - mean(run[-1] for run in bare.novel)
    text = (
        f"Nothing is trained in the first three rows. Class means on ImageNet's weights end "
        f"{abs(gap):.2f} points {'above' if gap > 0 else 'below'} CEC: what CEC trains changes the "
        f"base session by {first:+.2f} points and the new classes by {novel:+.2f}. ImageNet has "
        f"birds among its classes. {bare.machine['device']}, {bare.date[:10]}, commit "
        f"{bare.commit}: `{bare.command}`"
    )
    return "\n".join(table) + f"\n\n{paragraph(text)}\n"


def _measures(row: RunResult) -> list[list[float | None]]:
    """Return the base session, and the last accuracy of all, base and new classes, of each run."""
    ends = ([run[-1] for run in table] for table in (row.base, row.novel, row.harmonic))
    return [[run[0] for run in row.accuracy], list(row.last), *ends]


def _mean(rows: list[Json], key: str) -> str:
    return tables.number(tables.mean_cell([row[key] for row in rows]).mean)


def _gain(rows: list[Json], key: str) -> float:
    """Return how much the best one is above the last one; `{}` in the key is either word."""
    return sum(float(row[key.format("best")] - row[key.format("last")]) for row in rows) / len(rows)


def search(name: str) -> str:
    """Write the trials of a recorded search on a validation split."""
    record: Json = json.loads((recorded.RESULTS / "searches" / f"{name}.json").read_text())
    rows = [
        [
            ", ".join(f"`{key}={value}`" for key, value in trial["settings"].items()),
            *(over_runs(trial["measures"][measure]) for measure in MEASURES),
        ]
        for trial in record["trials"]
    ]
    table = markdown_table(("settings", *MEASURES), rows, "lrrrr")
    text = (
        f"{record['split']}; mean ± standard deviation over {len(record['search']['seeds'])} "
        f"seeds; {record['machine']['device']}, {record['date'][:10]}, commit {record['commit']}: "
        f"`{record['command']}`"
    )
    return "\n".join(table) + f"\n\n{paragraph(text)}\n"
