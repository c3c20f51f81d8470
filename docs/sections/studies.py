"""Write the paper's studies with their figures, and the verdicts on the paper's claims."""

import math
import re
from collections.abc import Sequence
from pathlib import Path

from claims.evidence import MAIN, Evidence
from claims.judge import (
    CERTAINTY,
    DEVIATIONS,
    FAILS,
    HOLDS,
    IN_PART,
    UNMEASURED,
    Comparison,
    Estimate,
    overall,
)
from claims.paper import CLAIMS, Claim, command

from fewmore.research.reporting import tables
from sections import recorded
from sections.markdown import bullet, markdown_table, mean_and_std, paragraph

# The alternative texts of each study's figures.
ALT = {
    "comparison": {
        "sessions": "accuracy by session of all methods; published rows dashed",
        "base-novel": "accuracy on base classes, on new classes and their harmonic mean, "
        "by session",
    },
    "ablation": {
        "bars": "bars of average accuracy and performance drop, one for each row of the ablation"
    },
    "rotation": {"rotation": "points of average accuracy and performance drop by rotation angles"},
    "ways-shots": {"ways-shots": "grid of last accuracies by ways and shots"},
    "confusion": {
        "confusion": "confusion matrices of Decoupled-Cosine, of CEC without its adapter and "
        "of CEC, and the difference of the last two"
    },
    "tsne": {
        "tsne": "features of nine classes, with arrows from the class weights before adaptation "
        "to those after"
    },
}

RULES = (
    "A claim is a list of comparisons: one row is compared with another by some measure. The "
    "*gain* is how much better it is, seed by seed; for PD and entropy, lower is better.",
    f"With several seeds a comparison holds when the mean gain is above 0 at {CERTAINTY:.0%} "
    f"certainty (Student's t, one-sided). With one seed the gain must exceed {DEVIATIONS} standard "
    "deviations of a difference of two rows, each taken as CEC's seeds vary in that measure: "
    f"{DEVIATIONS}·√2 of their standard deviation. Where that is unknown, it holds in part at "
    "most. *Required* is the value that the gain must exceed.",
    "It holds in part when the gain is above 0 but not above the required value. Otherwise it does "
    "not hold.",
    "A claim holds when all its comparisons do. It does not hold when none does, not even in part. "
    "It holds in part otherwise.",
    "At this certainty one comparison in twenty holds by chance where there is no effect.",
    "The rules are in git since commit 0ad28f2, which is some minutes younger than the first "
    "studies of CIFAR100: the history cannot show that they were written before. Changed since, "
    "when results were known: √2 for single seeds, the comparison with plain cosine after stage 2 "
    "in claim 5, and claim 13.",
)


def verdicts() -> str:
    """Write all claims with their verdicts in one table."""
    titles = (
        "",
        "the paper's claim",
        "verdict",
        "comparisons that hold",
        "in part",
        "do not",
    )
    rows = [_verdict_cells(number, claim) for number, claim in enumerate(CLAIMS, 1)]
    lines = [*markdown_table(titles, rows, "rllrrr"), "", *map(bullet, RULES)]
    return "\n".join(lines) + "\n"


def _verdict_cells(number: int, claim: Claim) -> list[str]:
    comparisons = claim.compare(Evidence(recorded.RESULTS))
    verdicts = [comparison.verdict for comparison in comparisons]
    if overall(comparisons) == UNMEASURED:
        counts = ["–"] * 3
    else:
        counts = [str(verdicts.count(verdict)) for verdict in (HOLDS, IN_PART, FAILS)]
    link = f"[{claim.title}](#{_anchor(number, claim)})"
    return [str(number), link, _verdict(comparisons), *counts]


def _anchor(number: int, claim: Claim) -> str:
    """Return the address that GitHub gives to a claim's heading."""
    return re.sub(r"[^\w -]", "", f"{number}. {claim.title}".lower()).replace(" ", "-")


def _verdict(comparisons: Sequence[Comparison]) -> str:
    verdict = overall(comparisons)
    missing = {each.where for each in comparisons if each.verdict == UNMEASURED}
    if verdict == UNMEASURED or not missing:
        return f"**{verdict}**"
    benchmarks = ", ".join(sorted(missing))
    return f"**{verdict}**, as far as measured: rows are missing on {benchmarks}"


def study(name: str) -> str:
    """Write a study of the paper: its figures, its table and the claims that it decides."""
    decided = [(number, claim) for number, claim in enumerate(CLAIMS, 1) if claim.study == name]
    always = decided[0][1].benchmarks if decided else (MAIN,)
    benchmarks = Evidence(recorded.RESULTS).benchmarks(name, always)
    parts = [_measured(name, benchmark) for benchmark in benchmarks]
    parts += [_claim(number, claim) for number, claim in decided]
    return "\n".join(parts)


def _measured(name: str, benchmark: str) -> str:
    """Write a study's figures and table, or the command that measures it."""
    evidence = Evidence(recorded.RESULTS)
    rows = evidence.rows(name, benchmark)
    if not rows:
        return f"On {benchmark} not measured yet: `{command(name, benchmark)}`\n"
    folder = evidence.folder(name, benchmark)
    place = Path("..") / folder.relative_to(recorded.ROOT)
    figures = [
        f"![{benchmark}: {alt}]({(place / figure).as_posix()}.png)"
        for figure, alt in ALT[name].items()
    ]
    runs = sum(row.runs for row in rows)
    seconds = sum(times["share of the wall clock"] for row in rows for times in row.seconds)
    machines = ", ".join(sorted({str(row.machine["device"]) for row in rows}))
    dates = ", ".join(sorted({row.date[:10] for row in rows}))
    commands = ", ".join(sorted({f"`{row.command}`" for row in rows}))
    about = (
        f"{runs} run{'s' if runs > 1 else ''}, {seconds / 60:.1f} minutes in all, "
        f"on {machines}, {dates}: {commands}"
    )
    table = recorded.read_text(folder / "table.md")
    details = f"<details><summary>The table</summary>\n\n{table}\n</details>"
    return "\n\n".join([*figures, about, details]) + "\n"


def _claim(number: int, claim: Claim) -> str:
    """Write a claim: the paper's statement, the criterion, and every comparison."""
    comparisons = claim.compare(Evidence(recorded.RESULTS))
    measured = overall(comparisons) != UNMEASURED
    verdict = f"Verdict: {_verdict(comparisons)}."
    if not measured:
        for benchmark in claim.benchmarks:
            verdict += f" To be measured with `{command(claim.study, benchmark)}`."
    lines = [
        f"### {number}. {claim.title}",
        "",
        verdict,
        "",
        paragraph(f"*The paper:* {claim.statement}"),
        "",
        paragraph(f"*Criterion:* {claim.criterion}"),
    ]
    if measured:
        lines += ["", *_comparison_table(claim, comparisons)]
    return "\n".join(lines) + "\n"


def _comparison_table(claim: Claim, comparisons: Sequence[Comparison]) -> list[str]:
    on_cub200 = claim.study in ("ablation", "rotation")  # the paper has those studies there
    titles = [
        "row",
        "compared with",
        "by",
        "published (CUB200)" if on_cub200 else "published",
        "measured",
        "gain",
        "required",
        "seeds",
        "verdict",
    ]
    rows = [_comparison_cells(comparison) for comparison in comparisons]
    align = "lllrrrrrl"
    if len({comparison.where for comparison in comparisons}) > 1:
        titles.insert(0, "on")
        rows = [[each.where, *cells] for each, cells in zip(comparisons, rows, strict=True)]
        align = "l" + align
    return markdown_table(titles, rows, align)


def _comparison_cells(comparison: Comparison) -> list[str]:
    names = [comparison.better, comparison.worse, comparison.measure]
    if comparison.published == (None, None):
        names.append("–")
    else:
        names.append(" / ".join(map(tables.number, comparison.published)))
    if comparison.measured is None or comparison.gain is None:
        return [*names, "–", "–", "–", "–", comparison.verdict]
    required = None if math.isnan(comparison.required) else comparison.required
    return [
        *names,
        " / ".join(map(_estimate, comparison.measured)),
        ("+" if comparison.gain.mean > 0 else "") + _estimate(comparison.gain),
        tables.number(required),
        str(comparison.gain.seeds),
        comparison.verdict,
    ]


def _estimate(estimate: Estimate) -> str:
    return mean_and_std(estimate.mean, estimate.std)
