"""Write what single differences to the authors' program are worth, as they were measured."""

import json
from typing import Any

from fewmore.research.reporting import tables
from sections import recorded
from sections.markdown import markdown_table, mean_and_std, paragraph

MEASURES = ("last", "base", "novel", "harmonic")
STAGE_1 = "stage 1"
STAGE_2 = "stage 2 from best"

Json = dict[str, Any]


def selection() -> str:
    """Write what choosing epoch and round on the test set is worth (benchmarks/selection.py)."""
    path = recorded.RESULTS / "bench-selection-gpu.json"
    if not path.exists():
        return "Not measured yet.\n"
    record = recorded.read_benchmark(path)
    official = [row for row in record["rows"] if row["arm"] == "official"]
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
    table = markdown_table(("what is kept", "base session", "last session"), rows, "lrr")
    epoch = _gain(official, f"{STAGE_1} {{}}: base")
    last = _gain(official, f"{STAGE_1} {{}}: last session")
    round_ = _gain(official, f"{STAGE_2}, {{}} round: last session")
    seeds = ", ".join(str(row["seed"]) for row in official)
    text = (
        f"Choosing the epoch of stage 1 on the test images of the base classes is worth "
        f"{epoch:+.2f} there and {last:+.2f} after the last session; choosing the round of stage 2 "
        f"on the test images of the last session is worth {round_:+.2f} after it. Seed {seeds}, "
        f"{record['machine']}, {record['date']}, commit {record['commit']}: "
        f"`{record['command']}`. Epochs between two looks at the test set: "
        f"{record['about']['epochs looked at']}."
    )
    return "\n".join(table) + f"\n\n{paragraph(text)}\n"


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
            *(_spread(trial["measures"][measure]) for measure in MEASURES),
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


def _spread(values: list[float]) -> str:
    cell = tables.mean_cell(values)
    return mean_and_std(cell.mean, cell.std)
