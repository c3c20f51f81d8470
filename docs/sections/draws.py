"""Write how much the last session depends on which images the shots are."""

from statistics import fmean, stdev

from fewmore.research import results
from fewmore.research.published import ROW_OF_METHOD
from fewmore.research.reporting import tables
from fewmore.research.results import RunResult, run_keys
from sections import recorded
from sections.markdown import UNMEASURED, markdown_table, over_runs, paragraph


def draws(benchmark: str) -> str:
    """Write the accuracy with shots drawn at random beside that with the official lists."""
    rows = [
        results.read(path)
        for path in sorted((recorded.RESULTS / "draws").glob(f"{benchmark}-*.json"))
    ]
    if not rows:
        return UNMEASURED
    official = recorded.read_compared(benchmark)
    lines = [_line(row, official[row.method]) for row in rows]
    titles = ("method", "draws", "drawn anew", "lowest", "highest", "official lists", "difference")
    table = markdown_table(titles, lines, "lrrrrrr")
    return (
        "\n".join([*table, "", paragraph(_text(rows, [official[row.method] for row in rows]))])
        + "\n"
    )


def _line(drawn: RunResult, official: RunResult) -> tuple[str, ...]:
    """Return the cells of a method: last accuracy over draws, and of the official lists.

    The official lists are those of the same seeds, as seeds differ more than draws do.
    """
    same = [
        last
        for seed, last in zip(official.seeds, official.last, strict=True)
        if seed in drawn.seeds
    ]
    difference = fmean(drawn.last) - fmean(same) if same else None
    return (
        ROW_OF_METHOD[drawn.method],
        str(len(set(drawn.draws))),
        over_runs(drawn.last),
        f"{min(drawn.last):.2f}",
        f"{max(drawn.last):.2f}",
        over_runs(same) if same else "–",
        tables.Cell(difference, signed=True).text,
    )


def _text(rows: list[RunResult], official: list[RunResult]) -> str:
    """Say which runs these are, and how they pair with each other."""
    first = rows[0]
    seeds = ", ".join(str(seed) for seed in sorted(set(first.seeds)))
    again = ", ".join(sorted({(row.commit or "unknown")[:12] for row in official}))
    apart = " and ".join(
        f"{stdev(row.last):.2f} ({ROW_OF_METHOD[row.method]})" for row in official if row.runs > 1
    )
    text = (
        f"Seed {seeds}; shots of the new classes drawn anew from their training images, ± over "
        f"draws. The official lists are of the same seed, with stage 1 trained again (commit "
        f"{again}); seeds have a standard deviation of {apart} there. Commit "
        f"{(first.commit or 'unknown')[:12]}, {first.machine['device']}, {first.date[:10]}: "
        f"`{first.command}`."
    )
    by_method = {row.method: row for row in rows}
    if {"cec", "decoupled-cosine"} <= set(by_method):
        cec, cosine = (
            dict(zip(run_keys(row), row.last, strict=True))
            for row in (by_method["cec"], by_method["decoupled-cosine"])
        )
        gains = [last - cosine[run] for run, last in cec.items() if run in cosine]
        text += (
            f" On the same draws CEC is {fmean(gains):.2f} above Decoupled-Cosine "
            f"({min(gains):.2f} to {max(gains):.2f})."
        )
    return text
