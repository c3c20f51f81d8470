"""Look up published numbers, which published.json holds as they were printed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from fewmore.research.results.schema import RunResult

# Names in the registry of methods, and rows of the paper's comparison.
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
# Rows of the paper's ablation, in its order: the method's name in the registry, and whether the
# weights of new classes are initialized from their images.
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
# How the authors' program chose the epoch that it tests.
BEST_ON_TEST = "best on test"
LAST_EPOCH = "last epoch"
UNKNOWN = "unknown"
OFFICIAL = "official"  # the split of all published numbers
# Classes seen after each session of it.
PROTOCOL = {
    "cifar100": tuple(range(60, 101, 5)),
    "miniimagenet": tuple(range(60, 101, 5)),
    "cub200": tuple(range(100, 201, 10)),
}


@dataclass(frozen=True)
class PublishedRow:
    """Hold one row of a published table.

    The PD is as printed, even where it was rounded otherwise. The paper prints no average; that is
    computed here.
    """

    name: str
    method: str | None  # its name in the registry of methods
    sessions: tuple[float | None, ...]  # of later methods only the first and the last are known
    average: float
    pd: float
    backbone: str | None = None


@dataclass(frozen=True)
class AblationRow(PublishedRow):
    """Hold a row of the ablation on CUB200, with the parts of the method that it uses."""

    classifier: str = ""
    decoupled: bool = False
    adapter: bool = False
    pil: bool = False
    data_init: bool = False


@dataclass(frozen=True)
class Backbone:
    """Describe a network of a published row; its parameters are without the classifier."""

    name: str
    stem: str
    parameters: int | None


@dataclass(frozen=True)
class Contents:
    """Hold what published numbers contain, as read in the program of their authors.

    None, an empty mapping or "unknown" stands for what is not known.
    """

    methods: tuple[str, ...]  # several where one program and one reading hold for all
    year: int | None
    repository: str | None  # owner/name on GitHub
    commit: str | None  # the state that was read; None if the facts were taken over
    backbones: Mapping[str, str]  # by benchmark, a key of `backbones`
    selection: str  # how the epoch was chosen: BEST_ON_TEST, LAST_EPOCH or UNKNOWN
    views: Mapping[str, int | None]  # of a test image that are averaged, by benchmark
    exemplars: str
    extra_data: str
    problems: str = ""
    taken_over: str = ""  # what was not read again at `commit`
    leak: bool = False  # whether the scores of a test image depend on the others
    accuracy: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)

    def obstacles(self, benchmark: str) -> list[str]:
        """Say why a row cannot be set beside an honest run with CEC's backbone; empty if it can."""
        backbone = self.backbones.get(benchmark, UNKNOWN)
        views = self.views.get(benchmark)
        found = {
            "another backbone": backbone not in (UNKNOWN, backbone_of_cec(benchmark)),
            "backbone unknown": backbone == UNKNOWN,
            f"epoch {self.selection}": self.selection != LAST_EPOCH,
            "views unknown": views is None,
            f"{views} views": views is not None and views > 1,
            "images kept": not self.exemplars.startswith(("none", UNKNOWN)),
            "images kept unknown": self.exemplars.startswith(UNKNOWN),
            "extra data": self.extra_data not in ("none", UNKNOWN),
            "scores depend on the batch": self.leak,
        }
        return [reason for reason, holds in found.items() if holds]


@cache
def _facts() -> dict[str, Any]:
    file = files("fewmore.research").joinpath("published.json")
    facts: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return facts


def source() -> str:
    """Return where the rows of the comparison and of the ablation were printed."""
    return str(_facts()["source"])


def later_note() -> str:
    """Return a caveat on the rows of later methods."""
    return str(_facts()["later_methods"]["note"])


def published(benchmark: str) -> dict[str, PublishedRow]:
    """Return the paper's comparison on a benchmark, by its row names; empty where it has none."""
    methods = {row: method for method, row in ROW_OF_METHOD.items()}
    rows: Mapping[str, Any] = _facts()["comparison"].get(benchmark, {})
    return {
        name: PublishedRow(
            name, methods[name], tuple(row["sessions"]), _average(row["sessions"]), row["pd"]
        )
        for name, row in rows.items()
    }


def ablation() -> tuple[AblationRow, ...]:
    """Return the paper's ablation on CUB200, in its order."""
    rows = zip(_facts()["ablation_cub200"], METHOD_OF_ABLATION, strict=True)
    return tuple(_ablation_row(row, method, data_init) for row, (method, data_init) in rows)


def _ablation_row(row: Mapping[str, Any], method: str, data_init: bool) -> AblationRow:
    words = {"decoupled": "decoupled", "adapter": "adapter", "pil": "PIL"}
    parts = [word for key, word in words.items() if row[key]]
    return AblationRow(
        name=", ".join([row["classifier"], *parts]),
        method=method,
        sessions=tuple(row["sessions"]),
        average=_average(row["sessions"]),
        pd=row["pd"],
        classifier=row["classifier"],
        decoupled=row["decoupled"],
        adapter=row["adapter"],
        pil=row["pil"],
        data_init=data_init,
    )


def later(benchmark: str) -> dict[str, PublishedRow]:
    """Return later methods on a benchmark by name; empty where none are known.

    Of the sessions, only the first and the last are known.
    """
    rows = {}
    for row in _facts()["later_methods"].get(benchmark, ()):
        unknown = [None] * (len(PROTOCOL[benchmark]) - 2)
        sessions = (row["base"], *unknown, row["last"])
        rows[row["method"]] = PublishedRow(
            row["method"], None, sessions, row["average"], row["pd"], row["backbone"]
        )
    return rows


def contents() -> tuple[Contents, ...]:
    """Return what the numbers of each published method contain, in the order of the years."""
    return tuple(
        Contents(**{**row, "methods": tuple(row["methods"])}) for row in _facts()["contents"]
    )


def backbones() -> dict[str, Backbone]:
    """Return the networks of published rows by key."""
    return {key: Backbone(**row) for key, row in _facts()["backbones"].items()}


def backbone_of_cec(benchmark: str) -> str:
    """Return the key of the network that CEC has on a benchmark."""
    return str(_facts()["backbones_of_cec"][benchmark])


def accuracy_of(method: str, about: Contents, benchmark: str) -> tuple[float | None, float | None]:
    """Return the last and the average accuracy of a published row; None where it is unknown."""
    row = published(benchmark).get(method) or later(benchmark).get(method)
    if row is not None:
        return row.sessions[-1], row.average
    printed = about.accuracy.get(benchmark, {})
    return printed.get("last"), printed.get("average")


def row_of_method(benchmark: str, method: str, data_init: bool = True) -> PublishedRow | None:
    """Return the published row of a method, or None.

    A decoupled method without `data_init` is another row than with it.
    """
    from_data = data_init if method.startswith("decoupled-") else method not in ("linear", "cosine")
    if from_data and method in ROW_OF_METHOD:
        return published(benchmark).get(ROW_OF_METHOD[method])
    rows = ablation() if benchmark == "cub200" else ()
    return next((row for row in rows if (row.method, row.data_init) == (method, from_data)), None)


def published_row(result: RunResult) -> PublishedRow | None:
    """Return the published row of what a result measures, or None.

    There is none for another protocol or variant, a user's method of the same name, or if it was
    never published.
    """
    if not follows_protocol(result) or "method_source" in result.machine:
        return None
    changed = {key.rpartition(".")[2]: value for key, value in result.settings.items()}
    data_init = str(changed.get("data_init", True)).lower() not in ("false", "0")
    return row_of_method(result.benchmark, result.method, data_init)


def follows_protocol(result: RunResult) -> bool:
    """Return whether classes, order and shots are those of the published numbers.

    They are in the official split alone: other draws, shots and class orders have other names.
    """
    classes = tuple(size.classes for size in result.sessions)
    return result.split == OFFICIAL and PROTOCOL.get(result.benchmark) == classes


def _average(sessions: list[float]) -> float:
    return round(sum(sessions) / len(sessions), 2)
