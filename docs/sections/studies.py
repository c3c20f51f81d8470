"""Write the paper's studies: their figures and their tables."""

from pathlib import Path

from claims.evidence import MAIN, PAPERS, Evidence
from claims.paper import CLAIMS, command

from sections import commands, recorded
from sections.accuracy import changed_since, earlier_recipes, several_commits
from sections.markdown import paragraph
from sections.verdicts import link_to

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


def study(name: str) -> str:
    """Write a study of the paper: the claims that it decides, its figures and its tables."""
    decided = {number: claim for number, claim in enumerate(CLAIMS, 1) if claim.study == name}
    benchmarks = next((claim.benchmarks for claim in decided.values()), (MAIN,))
    parts = [_measured(name, benchmark) for benchmark in (*benchmarks, PAPERS)]
    if decided:
        links = ", ".join(f"[{number}]({link_to(number, 'claims.md')})" for number in decided)
        text = f"Claims tested by it: claim{'s' if len(decided) > 1 else ''} {links}."
        parts.insert(0, paragraph(text) + "\n")
    return "\n".join(parts)


def _measured(name: str, benchmark: str) -> str:
    """Write a study's figures and table, or the command that measures it."""
    evidence = Evidence(recorded.RESULTS)
    rows = evidence.rows(name, benchmark)
    if not rows:
        return f"On {benchmark} not measured yet: `{command(name, benchmark)}`\n"
    folder = evidence.folder(name, benchmark)
    if not folder.exists():
        text = (
            f"On {benchmark} it was not run as a study. Its claims are judged by the rows of [its "
            f"page]({benchmark}.md), over the seeds that two rows share."
        )
        return paragraph(" ".join(filter(None, (text, earlier_recipes(rows, ""))))) + "\n"
    place = Path("../..") / folder.relative_to(recorded.ROOT)
    figures = [
        f"![{benchmark}: {alt}]({(place / figure).as_posix()}.png)"
        for figure, alt in ALT[name].items()
    ]
    runs = sum(row.runs for row in rows)
    seconds = sum(times["share of the wall clock"] for row in rows for times in row.seconds)
    machines = ", ".join(sorted({str(row.machine["device"]) for row in rows}))
    dates = ", ".join(sorted({row.date[:10] for row in rows}))
    about = paragraph(
        f"{runs} run{'s' if runs > 1 else ''}, {seconds / 60:.1f} minutes in all, "
        f"on {machines}, {dates}: {commands.joined(sorted({row.command for row in rows}))}"
    )
    changed = changed_since(rows, evidence.settings(name, benchmark))
    notes = " ".join(filter(None, (several_commits(rows), changed)))
    if notes:
        about += "\n\n" + paragraph(notes)
    table = recorded.read_text(folder / "table.md")
    details = f"<details><summary>The table</summary>\n\n{table}\n</details>"
    return "\n\n".join([*figures, about, details]) + "\n"
