"""The numbers that others published, to lay beside ours. They are kept as printed, in published.json."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

# The registry's names, and the rows of the paper's comparison.
ROW_OF_METHOD = {
    "finetune": "Ft-CNN",
    "icarl": "iCaRL",
    "eeil": "EEIL",
    "lucir": "NCM",
    "topic": "TOPIC",
    "decoupled-cosine": "Decoupled-Cosine",
    "decoupled-deepemd": "Decoupled-DeepEMD",
    "cec": "CEC",
}
# The rows of the paper's ablation, in its order: the registry's names, and whether new rows start from the data.
METHOD_OF_ABLATION = (
    ("linear", False),
    ("decoupled-linear", False),
    ("cosine", False),
    ("decoupled-cosine", False),
    ("decoupled-linear", True),
    ("decoupled-l2", True),
    ("decoupled-deepemd", True),
    ("decoupled-cosine", True),
    ("cec-meta", True),
    ("cec", True),
)
# How many classes have been seen after each session.
PROTOCOL = {
    "cifar100": tuple(range(60, 101, 5)),
    "miniimagenet": tuple(range(60, 101, 5)),
    "cub200": tuple(range(100, 201, 10)),
}


@dataclass(frozen=True)
class PublishedRow:
    """One row of someone's table. The PD is as printed, be it rounded otherwise; the paper prints no average, so that is ours."""

    name: str
    method: str | None  # the registry's name for it
    sessions: tuple[float | None, ...]  # of later methods only the first and the last are known
    average: float
    pd: float
    backbone: str | None = None


@dataclass(frozen=True)
class AblationRow(PublishedRow):
    """A row of the ablation on CUB200: which parts of the method are in."""

    classifier: str = ""
    decoupled: bool = False
    adapter: bool = False
    pil: bool = False
    data_init: bool = False


@cache
def _facts() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(
        files("fewmore.research").joinpath("published.json").read_text(encoding="utf-8")
    )
    return facts


def source() -> str:
    """Where the rows of the comparison and of the ablation were printed."""
    return str(_facts()["source"])


def later_note() -> str:
    """What to know about the rows of later methods."""
    return str(_facts()["later_methods"]["note"])


def published(benchmark: str) -> dict[str, PublishedRow]:
    """The paper's comparison on a benchmark, by the paper's names for the rows; empty where it has none."""
    methods = {row: method for method, row in ROW_OF_METHOD.items()}
    rows: Mapping[str, Any] = _facts()["comparison"].get(benchmark, {})
    return {
        name: PublishedRow(
            name, methods[name], tuple(row["sessions"]), _average(row["sessions"]), row["pd"]
        )
        for name, row in rows.items()
    }


def ablation() -> tuple[AblationRow, ...]:
    """The paper's ablation on CUB200, in its order."""
    rows = []
    for row, (method, data_init) in zip(
        _facts()["ablation_cub200"], METHOD_OF_ABLATION, strict=True
    ):
        parts = {key: row[key] for key in ("classifier", "decoupled", "adapter", "pil")}
        added = [
            word
            for key, word in (("decoupled", "decoupled"), ("adapter", "adapter"), ("pil", "PIL"))
            if row[key]
        ]
        name = ", ".join([row["classifier"], *added])
        rows.append(
            AblationRow(
                name,
                method,
                tuple(row["sessions"]),
                _average(row["sessions"]),
                row["pd"],
                data_init=data_init,
                **parts,
            )
        )
    return tuple(rows)


def later(benchmark: str) -> dict[str, PublishedRow]:
    """Later methods on a benchmark by name: base and last session, average and PD; empty where none are known."""
    rows = {}
    for row in _facts()["later_methods"].get(benchmark, ()):
        unknown = [None] * (len(PROTOCOL[benchmark]) - 2)
        sessions = (row["base"], *unknown, row["last"])
        rows[row["method"]] = PublishedRow(
            row["method"], None, sessions, row["average"], row["pd"], row["backbone"]
        )
    return rows


def row_of_method(benchmark: str, method: str, data_init: bool = True) -> PublishedRow | None:
    """The published row of a method, if there is one; without `data_init` a decoupled method is another row."""
    from_data = data_init if method.startswith("decoupled-") else method not in ("linear", "cosine")
    if from_data and method in ROW_OF_METHOD:
        return published(benchmark).get(ROW_OF_METHOD[method])
    rows = ablation() if benchmark == "cub200" else ()
    return next((row for row in rows if (row.method, row.data_init) == (method, from_data)), None)


def _average(sessions: list[float]) -> float:
    return round(sum(sessions) / len(sessions), 2)
