"""Write how CEC and Decoupled-Cosine differ from their published rows, session by session."""

from statistics import fmean

from fewmore.classifier.text import count_noun
from fewmore.research.published import ROW_OF_METHOD, published_row
from fewmore.research.results import RunResult
from sections import answer, recorded
from sections.markdown import UNMEASURED, mean_and_std, over_runs, paragraph

HEAD = "cosine"  # tests the trained head in the base session, on the same stage 1
COSINE = "decoupled-cosine"


def gap(benchmark: str) -> str:
    """Say how much of the differences is there in the base session, and what is known of it."""
    rows = recorded.read_compared(benchmark)
    if not {*answer.OWN} <= set(rows):
        return UNMEASURED
    texts = [_sessions(rows), _stage_2(benchmark, rows), _head(benchmark, rows)]
    return paragraph(" ".join(filter(None, texts))) + "\n"


def _sessions(rows: dict[str, RunResult]) -> str:
    """Say how far the rows of the paper are from the published ones, first and last session."""
    compared = [rows[method] for method in answer.PAPERS if method in rows]
    names = [ROW_OF_METHOD[row.method] for row in compared]
    ends = [
        ", ".join(
            f"{name} {_gap(row, session):+.2f}" for row, name in zip(compared, names, strict=True)
        )
        for session in (0, -1)
    ]
    text = (
        f"The base session beside the published one, in points: {ends[0]}; the last session: "
        f"{ends[1]}."
    )
    sessions = range(len(compared[0].sessions))
    if all(_gap(row, session) < 0 for row in compared for session in sessions):
        text += " All three are lower in every session." if len(compared) > 2 else ""
    return text


def _stage_2(benchmark: str, rows: dict[str, RunResult]) -> str:
    """Say what stage 2 gains, here and in the paper."""
    gain = answer.cec_gain(benchmark, rows)
    cec, cosine = gain.published
    if gain.gain is None or cec is None or cosine is None:
        return ""
    less = cec - cosine - gain.gain.mean
    ours = mean_and_std(gain.gain.mean, gain.gain.std)
    return (
        f"After the last session CEC is {ours} above Decoupled-Cosine ({gain.gain.seeds} seeds), "
        f"and {cec - cosine:.2f} in the paper: stage 2 gains {abs(less):.2f} points "
        f"{'less' if less > 0 else 'more'} here."
    )


def _head(benchmark: str, rows: dict[str, RunResult]) -> str:
    """Say what the trained head is worth in the base session, which the authors' program tests."""
    head = next((row for row in recorded.read_results(benchmark) if _is_head(row)), None)
    if head is None:
        return ""
    trained, means = (over_runs([run[0] for run in row.accuracy]) for row in (head, rows[COSINE]))
    seeds = count_noun(head.runs, "seed")
    return (
        "In the base session the authors' program tests the trained head too, and for "
        "Decoupled-Cosine reports the better of head and class means. On the same stage 1 the "
        f"trained head has {trained} here ({seeds}), and class means have {means}."
    )


def _is_head(row: RunResult) -> bool:
    return (row.method, row.recipe) == (HEAD, "official") and not row.settings


def _gap(row: RunResult, session: int) -> float:
    printed = published_row(row)
    assert printed is not None
    return fmean(run[session] for run in row.accuracy) - float(printed.sessions[session] or 0)
