"""Write what single differences to the authors' program are worth, as they were measured."""

import ast
import json
import math
from collections.abc import Sequence
from statistics import NormalDist, stdev
from statistics import fmean as mean
from typing import Any

from scipy.stats import t as student
from scipy.stats import ttest_ind

from fewmore.research import results
from fewmore.research.published import ROW_OF_METHOD, published_row
from fewmore.research.reporting import tables
from fewmore.research.results import RunResult
from fewmore.research.results.schema import FEATURES_SETTING
from sections import answer, commands, gaps, recorded
from sections.contents import NAMES
from sections.markdown import UNMEASURED, italic, markdown_table, over_runs, paragraph

ENDS = ("base session", "last session")
MEASURES = ("last", "base", "novel", "harmonic")
CUB200 = "cub200"
COSINE = "decoupled-cosine"
HEADS = ("decoupled-cosine-data_init-false", COSINE)  # the trained head, and class means
LARGE_KERNELS = "2026-11-18"  # fused layers have had kernels for large images since then
# Results of stage 1 on CUB200 have had these of the authors' details since then.
DETAILED = "2026-11-19"
DETAILS = ("last batch filled up", "antialiased crops", "original files")
LAYERS = {True: "fused layers", False: "PyTorch's own layers"}
DROPPED = 0.4  # points, below which fused layers are no longer suspected: set before the runs
STAGE_1 = "stage 1"
STAGE_2 = "stage 2 from best"
SELECTION = recorded.RESULTS / "bench-selection-gpu.json"  # of benchmarks/selection.py
PRECISION = recorded.RESULTS / "bench-precision-cpu.json"  # of benchmarks/precision.py
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
    round_ = _gain_of_best_round()
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


def separation() -> str:
    """Write how far CUB200's main rows end from the published ones, and what that consists of."""
    rows = recorded.read_compared(CUB200)
    gain = answer.cec_gain(CUB200, rows)
    printed = {method: published_row(rows[method]) for method in answer.OWN if method in rows}
    cec, cosine = gain.published
    missing = None in (gain.gain, cec, cosine) or None in printed.values()
    if missing or gain.gain is None or gain.gain.std is None or cec is None or cosine is None:
        return UNMEASURED
    below = {method: -gaps.last_gap(rows[method]) for method in answer.OWN}
    ours, deviation, seeds = gain.gain.mean, gain.gain.std, gain.gain.seeds
    between = cec - cosine - ours
    round_, lucky = _gain_of_best_round(), _gains_of_best_setting(deviation)
    choice = [round_ + points for points in lucky]
    left = sorted(between - points for points in choice)
    low, high = _further(ours, deviation, seeds)
    alike = all(map(_is_further_seed, (rows[method] for method in answer.OWN)))
    text = (
        f"{'Both' if alike else 'Not both'} published rows lie within what one further seed of "
        "ours would give (95 % intervals in brackets; the published rows are taken for single "
        "runs). "
        f"Decoupled-Cosine, which has no stage 2, ends {_from_published(rows[COSINE])}. CEC ends "
        f"{_from_published(rows['cec'])}. Stage 2 gains {_spread(ours, deviation)} points "
        f"({low:.2f} to {high:.2f}) here, and {cec - cosine:.2f} in the paper, which also has the "
        "epochs, and for stage 2 the ways, shots and angles, that are best on the test set: that "
        f"is worth about {choice[0]:.2f} to {choice[-1]:.2f} of the {between:.2f} points between "
        f"the two gains (one seed, and an estimate), and {left[0]:.2f} to {left[-1]:.2f} are left. "
        "No other difference is shown to matter."
    )
    counts = ", ".join(map(str, TRIED))
    lines = (
        ("CEC below its published row", f"{below['cec']:.2f}", _seeds(rows["cec"])),
        ("of it before stage 2: Decoupled-Cosine", f"{below[COSINE]:.2f}", "the same seeds"),
        ("of it in stage 2: a smaller gain", f"{between:.2f}", "the same seeds"),
        ("gained by the round of stage 2 that is best on test", f"{round_:.2f}", "one seed"),
        (
            f"gained by the best of {counts} equally good settings on test",
            " / ".join(f"{points:.2f}" for points in lucky),
            "an estimate",
        ),
    )
    about = (
        f"The last row is {deviation:.2f}, the standard deviation of the gain over {seeds} seeds, "
        "times the mean of the largest of so many normal numbers. How many settings were tried, "
        "and how good they really are, is not known."
    )
    table = markdown_table(("after the last session", "points", "measured with"), lines, "lrl")
    return "\n\n".join((paragraph(text), "\n".join(table), paragraph(about), _all_gains())) + "\n"


def _all_gains() -> str:
    """Write what stage 2 has gained in all runs, those that newer ones replaced too."""
    pairs = _pairs()
    gains = [cec[-1] - cosine[-1] for _, cec, cosine in pairs]
    lasts = [cec[-1] for _, cec, _ in pairs]
    printed = published_row(recorded.read_compared(CUB200)["cec"])
    assert printed is not None
    choice = [_gain_of_best_round() + points for points in _gains_of_best_setting(stdev(gains))]
    above = float(printed.sessions[-1] or 0.0) - mean(lasts)
    high, low = ((above - points) / stdev(lasts) for points in (choice[0], choice[-1]))
    return paragraph(
        f"Few seeds say little of a deviation. In all {len(pairs)} pairs of runs, the replaced "
        f"ones too, CEC ends at {_spread(mean(lasts), stdev(lasts))}, from {min(lasts):.2f} to "
        f"{max(lasts):.2f}, and stage 2 gains {_spread(mean(gains), stdev(gains))} points, from "
        f"{min(gains):.2f} to {max(gains):.2f}. By these deviations, choosing on the test set is "
        f"worth {choice[0]:.2f} to {choice[-1]:.2f}, and without it the published row would be "
        f"{low:.1f} to {high:.1f} standard deviations above the mean of these runs."
    )


def _pairs() -> list[tuple[bool, list[float], list[float]]]:
    """Return the sessions of CEC and of Decoupled-Cosine in each run that had both on CUB200.

    The first of the three is whether fused layers with kernels for large images trained it.
    """
    rows = recorded.read_compared(CUB200)
    of_commit: dict[str | None, list[RunResult]] = {}
    for method in answer.OWN:
        for row in (*_earlier(CUB200, method), rows[method]):
            of_commit.setdefault(row.commit, []).append(row)
    return [
        (_has_large_kernels(cec), *(list(map(float, run)) for run in runs))  # type: ignore[arg-type]
        for cec, cosine in of_commit.values()
        for runs in zip(cec.accuracy, cosine.accuracy, strict=True)
    ]


def _is_further_seed(row: RunResult) -> bool:
    """Say whether the published row could be one more seed of a result."""
    printed = published_row(row)
    assert printed is not None
    low, high = _further(mean(row.last), stdev(row.last), row.runs)
    return low <= float(printed.sessions[-1] or 0.0) <= high


def _seeds(row: RunResult) -> str:
    return f"{row.runs} seed{'s' if row.runs > 1 else ''}"


def _from_published(row: RunResult) -> str:
    """Say how far below the published row a result ends, and where a further seed would end."""
    printed = published_row(row)
    assert printed is not None
    deviation = stdev(row.last)
    low, high = _further(mean(row.last), deviation, row.runs)
    return (
        f"at {_spread(mean(row.last), deviation)} over {_seeds(row)} ({low:.1f} to {high:.1f}), "
        f"{-gaps.last_gap(row):.2f} below the published {printed.sessions[-1]:.2f}"
    )


def _further(average: float, deviation: float, count: int) -> tuple[float, float]:
    """Return the interval in which one further value lies with a probability of 95 %."""
    half = float(student.ppf(0.975, count - 1)) * deviation * math.sqrt(1 + 1 / count)
    return average - half, average + half


def tested() -> str:
    """Write each difference to the authors' program, how it was tested, and what came of it."""
    on_cpu = _on_cpu()
    detailed, without = _lasts(_with_details()), _lasts(_measured_before())
    fused, plain = (_base_sessions(_trained_by(which)) for which in (True, False))
    official = _official_arm()
    epoch = [_gain(official, f"{STAGE_1} {{}}: {end}") for end in ("base", "last session")]
    round_ = _gain_of_best_round()
    ghost = [_trial(name) for name in ("pretrain.ghost=0", "pretrain.ghost=32")]
    above = (on_cpu.last[0] - mean(detailed)) / stdev(detailed)
    bf16, episodes = (_encoder_cosine(arm) for arm in ("bfloat16", "float32, other episodes"))
    last_stage, whole = _stage_2_gains()
    heads = [mean(run[0] for run in _ablation(name).accuracy) for name in HEADS]
    rows = [
        (
            "epoch of stage 1 that is best on test",
            "one run, both epochs",
            f"{epoch[0]:+.2f} in the base session, {epoch[1]:+.2f} after the last",
        ),
        ("round of stage 2 that is best on test", "one run, both rounds", f"{round_:+.2f}"),
        (
            f"{', '.join(DETAILS)}: all together",
            f"{len(detailed)} runs beside {len(without)} earlier ones, on a GPU",
            _difference(detailed, without),
        ),
        (
            "PyTorch's own layers instead of fused ones",
            f"{len(plain)} runs beside {len(fused)}, on a GPU",
            f"{_difference(plain, fused)}, in the base session",
        ),
        (
            "batch norm over 32 images, as on four GPUs",
            f"validation split of the base classes, {len(ghost[0])} seeds",
            f"{over_runs(ghost[1])} instead of {over_runs(ghost[0])}",
        ),
        (
            "all of the three rows above",
            "one seed of stage 1, on a CPU",
            f"{on_cpu.last[0]:.2f}: {above:.1f} standard deviations above those {len(detailed)}",
        ),
        (
            "float32 instead of bfloat16 in stage 2",
            "50 episodes, which way the encoder moves",
            f"cosine {bf16:.3f}; other episodes: {episodes:.3f}",
        ),
        (
            "which part of the encoder stage 2 trains",
            f"[ablation](studies.md#ablation) with the last stage alone, {last_stage[1]} seeds",
            f"stage 2 gains {last_stage[0]:.2f} instead of {whole[0]:.2f}",
        ),
        (
            "base session reported of the trained head or of class means, whichever is higher",
            f"[ablation](studies.md#ablation), {_ablation(HEADS[0]).runs} seeds",
            f"{heads[0]:.2f} and {heads[1]:.2f}",
        ),
        (
            "rotated copies of the same crops in the first round of stage 2",
            "not tested",
            "–",
        ),
    ]
    return "\n".join(markdown_table(("the authors' program", "tested by", "result"), rows)) + "\n"


def _now() -> RunResult:
    return recorded.read_compared(CUB200)[COSINE]


def _difference(values: Sequence[float], others: Sequence[float]) -> str:
    """Write the difference of two means, and its 95 % interval (Welch)."""
    found = ttest_ind(values, others, equal_var=False).confidence_interval(0.95)
    points = mean(values) - mean(others)
    return f"{points:+.2f} (95 % interval {found.low:+.2f} to {found.high:+.2f})"


def _trial(setting: str) -> list[float]:
    """Return the last accuracies of a setting on the validation split."""
    record: Json = json.loads((recorded.RESULTS / "searches" / "cub200-ghost.json").read_text())
    for trial in record["trials"]:
        if [f"{key}={value}" for key, value in trial["settings"].items()] == [setting]:
            return list(trial["measures"]["last"])
    raise ValueError(f"no trial of {setting}")


def _encoder_cosine(arm: str) -> float:
    rows = recorded.read_benchmark(PRECISION)["rows"]
    cosines = {(row["arm"], row["part"]): row["cosine"] for row in rows}
    return float(cosines[arm, "encoder"])


def _ablation(name: str) -> RunResult:
    folder = recorded.RESULTS / "studies" / "ablation-cub200" / "results"
    return results.read(folder / f"cub200-{name}.json")


def _stage_2_gains() -> tuple[tuple[float, int], tuple[float, int]]:
    """Return what stage 2 gains with the last stage of the encoder, and with all; the seeds."""
    small = [_ablation(name) for name in ("cec-encoder-last", COSINE)]
    rows = recorded.read_compared(CUB200)
    pairs = (small, [rows[method] for method in answer.OWN])
    first, second = ((mean(cec.last) - mean(cosine.last), cec.runs) for cec, cosine in pairs)
    return first, second


def _gain_of_best_round() -> float:
    """Return what the round of stage 2 that is best on test gains at the last session."""
    return _gain(_official_arm(), f"{STAGE_2}, {{}} round: last session")


def _gains_of_best_setting(deviation: float) -> list[float]:
    """Return what the best of equally good settings gains on test, by how many were tried."""
    return [deviation * expected_maximum(count) for count in TRIED]


def expected_maximum(count: int) -> float:
    """Return the mean of the largest of `count` standard normal numbers."""
    steps = 10_000
    quantiles = (((step + 0.5) / steps) ** (1 / count) for step in range(steps))
    return mean(map(NormalDist().inv_cdf, quantiles))


def details() -> str:
    """Write where stage 1 ends on CUB200 with more and more of the authors' details."""
    now, before, on_cpu = _now(), _measured_before(), _on_cpu()
    explained = [row for row in recorded.read_explanations() if row.benchmark == CUB200]
    on_features = [row for row in explained if row.method != COSINE]
    printed = published_row(now)
    ends = [italic(printed.sessions[place]) for place in (0, -1)] if printed else ["–"] * 2
    detailed = _with_details()
    count = len(DETAILS)
    named = [
        *((f"on a GPU, {row.date[:10]}", row) for row in before),
        *(
            (f"on a GPU, {row.date[:10]}, with {count} details, {LAYERS[_is_fused(row)]}", row)
            for row in detailed
        ),
        (f"on a CPU, {on_cpu.date[:10]}, with these and batch norm over 32 images", on_cpu),
        *((f"{row.method} on the last one's features", row) for row in on_features),
    ]
    rows = [
        ["*published*", "–", *ends, *["–"] * 3],
        *([name, str(row.runs), *map(over_runs, _measures(row))] for name, row in named),
    ]
    titles = ("Decoupled-Cosine", "seeds", "base session", *MEASURES)
    table = markdown_table(titles, rows, "l" + "r" * (len(titles) - 1))
    without, lasts = _lasts(before), _lasts(detailed)
    p = ttest_ind(lasts, without, equal_var=False).pvalue
    sources: dict[str, list[str]] = {}
    for row in (*detailed, on_cpu, *on_features):
        where = f"{row.machine['device']}, commit {row.commit}"
        sources.setdefault(where, []).append(row.command)
    listed = ". ".join(f"{where}: {commands.joined(of)}" for where, of in sources.items())
    text = (
        f"The details: {', '.join(DETAILS)}. The {len(without)} earlier runs on a GPU end at "
        f"{_spread(mean(without), stdev(without))}, from {min(without):.2f} to {max(without):.2f}, "
        f"and the {len(lasts)} with the details at {_spread(mean(lasts), stdev(lasts))} "
        f"(Welch's t test: p = {p:.2f}). {listed}"
    )
    return "\n".join(table) + f"\n\n{paragraph(text)}\n"


def _on_cpu() -> RunResult:
    """Return the result of Decoupled-Cosine on CUB200 with all of the authors' details."""
    explained = recorded.read_explanations()
    return next(row for row in explained if (row.benchmark, row.method) == (CUB200, COSINE))


def _spread(value: float, deviation: float) -> str:
    return f"{value:.2f} ± {deviation:.2f}"


def _measured_before() -> list[RunResult]:
    """Return all results of Decoupled-Cosine on CUB200 with crops that are not antialiased."""
    ablation = recorded.RESULTS / "studies" / "ablation-cub200" / "results"
    rows = [*_earlier(CUB200, COSINE), results.read(ablation / f"cub200-{COSINE}.json")]
    return sorted((row for row in rows if row.date < DETAILED), key=lambda row: row.date)


def _with_details() -> list[RunResult]:
    """Return all results of Decoupled-Cosine on CUB200 with the recipe's later details."""
    beside = [results.read(path) for path in (recorded.RESULTS / "layers").glob("*.json")]
    rows = [*_earlier(CUB200, COSINE), *beside, _now()]
    return sorted((row for row in rows if row.date >= DETAILED), key=lambda row: row.date)


def _trained_by(fused: bool) -> list[RunResult]:
    return [row for row in _with_details() if _is_fused(row) is fused]


def _is_fused(row: RunResult) -> bool:
    """Say whether a result on a GPU was trained by the fused layers."""
    return row.machine.get("accel") == "on"


def _lasts(rows: Sequence[RunResult]) -> list[float]:
    return [last for row in rows for last in row.last]


def _base_sessions(rows: Sequence[RunResult]) -> list[float]:
    return [float(run[0] or 0.0) for row in rows for run in row.accuracy]


def layers() -> str:
    """Write what stage 1 reaches on CUB200 with fused layers, and without them."""
    runs = {which: _trained_by(which) for which in (True, False)}
    lines = [
        [
            LAYERS[which],
            str(sum(row.runs for row in rows)),
            over_runs(_base_sessions(rows)),
            over_runs(_lasts(rows)),
        ]
        for which, rows in runs.items()
    ]
    fused, plain = (_base_sessions(rows) for rows in runs.values())
    p = ttest_ind(fused, plain, equal_var=False).pvalue
    is_dropped = abs(mean(fused) - mean(plain)) < DROPPED
    sources = [
        f"With {LAYERS[which]}: commit {row.commit}, {commands.joined([row.command])}"
        for which, rows in runs.items()
        for row in rows
    ]
    added: dict[bool, list[float]] = {True: [], False: []}
    for which, cec, cosine in _pairs():
        added[which].append(cec[0] - cosine[0])
    p_added = ttest_ind(added[True], added[False], equal_var=False).pvalue
    text = (
        f"The base session with fused layers differs by {_difference(fused, plain)} (Welch's t "
        f"test: p = {p:.2f}). Below {DROPPED} points the suspicion was to be dropped, as [log.md]"
        "(../log.md#2026-11-20-fused-layers-and-the-base-session-before-the-runs) said then: "
        f"it is {'dropped' if is_dropped else 'not dropped'}. Stage 2 "
        f"adds to the base session {over_runs(added[True])} points in {len(added[True])} runs with "
        f"fused layers, of all that were ever measured, and {over_runs(added[False])} in "
        f"{len(added[False])} without (p = {p_added:.2f}). {'. '.join(sources)}"
    )
    table = markdown_table(("Decoupled-Cosine, trained by", "runs", *ENDS), lines, "lrrr")
    return "\n".join(table) + f"\n\n{paragraph(text)}\n"


def _earlier(benchmark: str, method: str) -> list[RunResult]:
    """Return the rows of a method that newer ones replaced, the oldest first."""
    paths = (recorded.RESULTS / "earlier").glob(f"{benchmark}-*.json")
    rows = (row for row in map(results.read, paths) if row.method == method)
    return sorted(rows, key=lambda row: row.date)


def precision() -> str:
    """Write how far bfloat16 changes what stage 2 learns (benchmarks/precision.py)."""
    record = recorded.read_benchmark(PRECISION)
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
    """Write the main rows that were measured more than once, and what their kernels go with."""
    lines, texts = [], []
    for benchmark, name in NAMES.items():
        now = recorded.read_compared(benchmark)
        for method in answer.OWN:
            rows = [*_earlier(benchmark, method), now[method]]
            if len(rows) < 2:
                continue
            if (benchmark, method) == (CUB200, COSINE):
                rows = [*_measured_before(), *_with_details()]
            lines += [
                [
                    name,
                    method,
                    row.date[:10],
                    (row.commit or "–")[:12],
                    "yes" if _has_large_kernels(row) else "no",
                    str(row.runs),
                    *map(over_runs, _measures(row)[:2]),
                ]
                for row in rows
            ]
            texts.append(f"{_with_large_kernels(rows)} for {ROW_OF_METHOD[method]} on {name}")
    titles = ("benchmark", "method", "date", "commit", "kernels", "seeds", *ENDS)
    table = markdown_table(titles, lines, "llrrrrrr")
    text = (
        "Kernels: whether a row was trained by fused layers with kernels for large images. Rows "
        f"with them differ in the base session from all rows without them by {'; '.join(texts)} "
        f"(Welch's t test, {len(texts)} tests, not corrected for their number)."
    )
    return "\n".join(table) + f"\n\n{paragraph(text)}\n"


def _has_large_kernels(row: RunResult) -> bool:
    return row.date[:10] >= LARGE_KERNELS and _is_fused(row)


def _with_large_kernels(rows: Sequence[RunResult]) -> str:
    """Compare the base session of runs with kernels for large images with that of runs without."""
    values: dict[bool, list[float]] = {True: [], False: []}
    for row in rows:
        values[_has_large_kernels(row)] += _base_sessions([row])
    difference = mean(values[True]) - mean(values[False])
    p = ttest_ind(values[True], values[False], equal_var=False).pvalue
    return f"{difference:+.2f} points (p = {p:.2f})"


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
        f"{abs(gap):.2f} points {'above' if gap > 0 else 'below'} CEC, whose seeds have a standard "
        f"deviation of {stdev(cec.last):.2f}: what CEC trains changes the base session by "
        f"{first:+.2f} points and the new classes by {novel:+.2f}. ImageNet has birds among its "
        f"classes. {bare.machine['device']}, {bare.date[:10]}, commit "
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
