"""Write what the size and the encoding of the image files cost."""

from collections.abc import Sequence
from statistics import fmean

from fewmore.research import results
from fewmore.research.published import ROW_OF_METHOD, published_row
from fewmore.research.reporting import tables
from fewmore.research.results import RunResult
from sections import recorded
from sections.markdown import italic, markdown_table, over_runs, paragraph

BENCHMARK = "miniimagenet"  # the one that was measured from re-encoded files too
SESSIONS = {"base session": 0, "last session": -1}


def cost() -> str:
    """Write the rows of re-encoded files beside those of the original files, once there are any."""
    pairs = _pairs()
    if not pairs:
        rows = recorded.read_re_encoded(BENCHMARK).values()
        ends = " and ".join(f"{ROW_OF_METHOD[row.method]} at {_mean(row, -1)}" for row in rows)
        text = f"From re-encoded files end {ends}; rows of the original files are not recorded yet."
        return paragraph(text) + "\n"
    titles = ("method", "session", "re-encoded", "original", "difference", "*published*")
    lines = []
    for before, now in pairs:
        printed = published_row(now)
        for name, session in SESSIONS.items():
            difference = _accuracy(now, session) - _accuracy(before, session)
            lines.append(
                (
                    ROW_OF_METHOD[now.method],
                    name,
                    _mean(before, session),
                    _mean(now, session),
                    tables.Cell(difference, signed=True).text,
                    italic(printed.sessions[session] if printed else None),
                )
            )
    return "\n".join([*markdown_table(titles, lines, "llrrrr"), "", paragraph(_text(pairs))]) + "\n"


def _text(pairs: list[tuple[RunResult, RunResult]]) -> str:
    """Say in words what re-encoding costs, and what else differs between the rows."""
    costs = " and ".join(
        f"{_accuracy(now, -1) - _accuracy(before, -1):.2f} ({ROW_OF_METHOD[now.method]})"
        for before, now in pairs
    )
    text = f"Rows of re-encoded files end {costs} points lower."
    before, now = (
        ", ".join(sorted({(row.commit or "unknown")[:12] for row in rows}))
        for rows in zip(*pairs, strict=True)
    )
    if before != now:
        text += f" The code differs too: commit {before} for re-encoded, {now} for original files."
    return text + _first_rows(pairs)


def _first_rows(pairs: list[tuple[RunResult, RunResult]]) -> str:
    """Say the same of the first rows of original files, which newer ones replaced."""
    paths = (recorded.RESULTS / "earlier").glob(f"{BENCHMARK}-*.json")
    earlier = {row.method: row for row in map(results.read, paths)}
    known = [(before, earlier[now.method]) for before, now in pairs if now.method in earlier]
    if not known:
        return ""
    costs = " and ".join(f"{_accuracy(first, -1) - _accuracy(row, -1):.2f}" for row, first in known)
    commits = ", ".join(sorted({(first.commit or "unknown")[:12] for _, first in known}))
    seeds = ", ".join(sorted({str(first.runs) for _, first in known}))
    return (
        f" With the first rows of original files (commit {commits}, {seeds} seeds) it is {costs}."
    )


def files(rows: Sequence[RunResult]) -> str:
    """Say which rows of a table come from re-encoded files; empty where none does."""
    re_encoded = recorded.read_re_encoded(BENCHMARK)
    if rows[0].benchmark != BENCHMARK or not re_encoded:
        return ""
    if not _pairs():
        return "All rows are of re-encoded files."
    last = max(row.date for row in re_encoded.values())
    names = zip(results.names(rows), rows, strict=True)
    older = [name for name, row in names if row.date <= last]
    return f"Of re-encoded files still: {'; '.join(older)}." if older else ""


def resolution() -> str:
    """Say what smaller files and a second lossy encoding cost at half the size."""
    path = recorded.RESULTS / "bench-resolution-gpu.json"
    measured = {
        (row["stage 1 of"], row["seen at"], row["files of"]): row["test accuracy %"]
        for row in recorded.read_benchmark(path)["rows"]
    }
    small, large = "42 pixels", "84 pixels"
    theirs, ours = (measured[name, large, large] for name in ("torchvision", "fewmore"))
    full = measured["torchvision", small, large]
    halved = measured["torchvision", small, small]
    lossy = measured["torchvision", small, f"{small}, lossy once more"]
    text = (
        f"On the same files torchvision's stage 1 ends {theirs - ours:.2f} points above ours, one "
        f"run each. At 42 pixels, crops from files of 42 instead of 84 pixels cost "
        f"{full - halved:.2f} points, and saving those as lossy WebP {halved - lossy:.2f} more: "
        f"together {full - lossy:.2f}."
    )
    gap = _base_gap()
    if gap is not None:
        text += f" In miniImageNet's base session CEC is {gap:.2f} points below the published row."
    return paragraph(text) + "\n"


def _base_gap() -> float | None:
    row = recorded.read_compared(BENCHMARK).get("cec")
    printed = published_row(row) if row else None
    if row is None or printed is None or printed.sessions[0] is None:
        return None
    return printed.sessions[0] - _accuracy(row, 0)


def _pairs() -> list[tuple[RunResult, RunResult]]:
    """Return the rows of re-encoded and of original files; none where only the first are there."""
    compared = recorded.read_compared(BENCHMARK)
    both = [
        (row, compared[method])
        for method, row in recorded.read_re_encoded(BENCHMARK).items()
        if method in compared
    ]
    return [(before, now) for before, now in both if before.accuracy != now.accuracy]


def _accuracy(row: RunResult, session: int) -> float:
    return fmean(run[session] for run in row.accuracy)


def _mean(row: RunResult, session: int) -> str:
    return over_runs([run[session] for run in row.accuracy])
