"""Write the verdicts on the paper's claims, and the comparisons behind each of them."""

import math
import re
from collections.abc import Sequence

from claims.evidence import Evidence
from claims.judge import (
    CERTAINTY,
    DEVIATIONS,
    HOLDS,
    UNMEASURED,
    Comparison,
    Estimate,
    overall,
)
from claims.paper import CLAIMS, Claim, command

from fewmore.research.reporting import tables
from sections import recorded
from sections.accuracy import changed_since
from sections.contents import NAMES
from sections.markdown import bullet, markdown_table, mean_and_std, paragraph

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
    "A claim is summed up by how many of its measured comparisons hold; one that holds in part is "
    "not counted. The claim *holds* when all do, and *holds in part* when some do. Where none "
    "does, it *does not hold* if some comparison is clearly the other way, by more than the "
    "required value; else it is *not shown*: the differences are too small to tell.",
    "At this certainty one comparison in twenty holds by chance where there is no effect.",
    "The rules are in git since commit 0ad28f2, which is some minutes younger than the first "
    "studies of CIFAR100: the history cannot show that they were written before. Changed since, "
    "when results were known: √2 for single seeds, the comparison with plain cosine after stage 2 "
    "in claim 5, claim 13, and the words that sum up a claim, which held in part before wherever "
    "its comparisons were not all alike, even if none of them held.",
)


def verdicts() -> str:
    """Write all claims with their verdicts in one table, for docs/results.md."""
    where = [f"hold on {name}" for name in NAMES.values()]
    titles = ("", "the paper's claim", "verdict", *where)
    rows = [_verdict_cells(number, claim) for number, claim in enumerate(CLAIMS, 1)]
    return "\n".join(markdown_table(titles, rows, "rllrrr")) + "\n"


def _verdict_cells(number: int, claim: Claim) -> list[str]:
    """Format a claim's verdict and, by benchmark, how many of its comparisons hold."""
    comparisons = claim.compare(Evidence(recorded.RESULTS))
    counts = []
    for benchmark in NAMES:
        judged = [
            each.verdict
            for each in comparisons
            if each.where.partition(",")[0] == benchmark and each.verdict != UNMEASURED
        ]
        counts.append(f"{judged.count(HOLDS)} of {len(judged)}" if judged else "not measured")
    link = f"[{claim.title}]({link_to(number, 'results/claims.md')})"
    some_missing = f"; {text}" if (text := _some_missing(comparisons)) else ""
    return [str(number), link, f"**{overall(comparisons)}**{some_missing}", *counts]


def link_to(number: int, page: str) -> str:
    """Return the address that GitHub gives to a claim's heading, from a page beside or above it."""
    heading = f"{number}. {CLAIMS[number - 1].title}".lower()
    anchor = re.sub(r"[^\w -]", "", heading).replace(" ", "-")
    return f"{page}#{anchor}"


def rules() -> str:
    """Write the rules behind the verdicts."""
    return "\n".join(map(bullet, RULES)) + "\n"


def claims() -> str:
    """Write all claims with the comparisons that decide them."""
    return "\n".join(_claim(number, claim) for number, claim in enumerate(CLAIMS, 1))


def _verdict(comparisons: Sequence[Comparison]) -> str:
    """Sum up a claim, and say where it is not measured."""
    verdict = overall(comparisons)
    if verdict == UNMEASURED:
        return f"**{verdict}**"
    measured = _benchmarks(comparisons, measured=True)
    missing = " and ".join(name for key, name in NAMES.items() if key not in measured)
    unmeasured = f"not measured on {missing}" if missing else ""
    return "; ".join(filter(None, (f"**{verdict}**", unmeasured, _some_missing(comparisons))))


def _some_missing(comparisons: Sequence[Comparison]) -> str:
    """Name the benchmarks where some comparisons of a claim are measured and others are not."""
    both = _benchmarks(comparisons, measured=True) & _benchmarks(comparisons, measured=False)
    names = " and ".join(name for key, name in NAMES.items() if key in both)
    return f"some rows are missing on {names}" if names else ""


def _benchmarks(comparisons: Sequence[Comparison], *, measured: bool) -> set[str]:
    """Return the benchmarks of the comparisons that are measured, or of those that are not."""
    return {
        each.where.partition(",")[0]
        for each in comparisons
        if (each.verdict != UNMEASURED) == measured
    }


def _claim(number: int, claim: Claim) -> str:
    """Write a claim: the paper's statement, the criterion, and every comparison."""
    comparisons = claim.compare(Evidence(recorded.RESULTS))
    measured = overall(comparisons) != UNMEASURED
    study = f"[{claim.study}](studies.md#{claim.study})"
    verdict = f"Verdict: {_verdict(comparisons)}. Study: {study}."
    if not measured:
        for benchmark in claim.benchmarks:
            verdict += f" To be measured with `{command(claim.study, benchmark)}`."
    lines = [
        f"## {number}. {claim.title}",
        "",
        verdict,
        "",
        paragraph(f"*The paper:* {claim.statement}"),
        "",
        paragraph(f"*Criterion:* {claim.criterion}"),
    ]
    if measured:
        lines += ["", *_comparison_table(claim, comparisons)]
    evidence = Evidence(recorded.RESULTS)
    for benchmark in NAMES:
        settings = evidence.settings(claim.study, benchmark)
        if not any(_is_measured(each, benchmark) for each in comparisons):
            continue
        changed = ", ".join(f"`{setting}`" for setting in settings)
        rows = evidence.rows(claim.study, benchmark)
        commits = {row.commit for row in rows}
        notes = [
            f"The study was run with {changed}." if settings else "",
            f"The rows are of {len(commits)} commits ({study})." if len(commits) > 1 else "",
            changed_since(rows, settings),
        ]
        text = " ".join(filter(None, notes))
        if text:
            lines += ["", paragraph(f"On {NAMES[benchmark]}: {text[0].lower()}{text[1:]}")]
    return "\n".join(lines) + "\n"


def _is_measured(comparison: Comparison, benchmark: str) -> bool:
    return comparison.where.partition(",")[0] == benchmark and comparison.verdict != UNMEASURED


def _comparison_table(claim: Claim, comparisons: Sequence[Comparison]) -> list[str]:
    on_cub200 = claim.study in ("ablation", "rotation")  # the paper has those studies there
    titles = [
        "row",
        "compared with",
        "by",
        "verdict",
        "gain",
        "required",
        "seeds",
        "measured",
        "published (CUB200)" if on_cub200 else "published",
    ]
    rows = [_comparison_cells(comparison) for comparison in comparisons]
    align = "llllrrrrr"
    if len({comparison.where for comparison in comparisons}) > 1:
        titles.insert(0, "on")
        rows = [[each.where, *cells] for each, cells in zip(comparisons, rows, strict=True)]
        align = "l" + align
    return markdown_table(titles, rows, align)


def _comparison_cells(comparison: Comparison) -> list[str]:
    names = [comparison.better, comparison.worse, comparison.measure, comparison.verdict]
    printed = "–"
    if comparison.published != (None, None):
        printed = " / ".join(map(tables.number, comparison.published))
    if comparison.measured is None or comparison.gain is None:
        return [*names, "–", "–", "–", "–", printed]
    required = None if math.isnan(comparison.required) else comparison.required
    return [
        *names,
        ("+" if comparison.gain.mean > 0 else "") + _estimate(comparison.gain),
        tables.number(required),
        str(comparison.gain.seeds),
        " / ".join(map(_estimate, comparison.measured)),
        printed,
    ]


def _estimate(estimate: Estimate) -> str:
    return mean_and_std(estimate.mean, estimate.std)
