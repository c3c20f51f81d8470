"""Add the parts of the method one by one: decoupling, data init, adapter, PIL, query node."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fewmore.research import published
from fewmore.research.experiment import Experiment
from fewmore.research.published import AblationRow
from fewmore.research.reporting import figures, tables
from fewmore.research.reporting.tables import Table
from fewmore.research.studies.base import Finished, Setting, Study

CEC_ROW = "CEC"


def experiments(setting: Setting) -> dict[str, Experiment]:
    """Return an experiment for each row of the paper, and CEC without its query node."""
    rows = {}
    for row, (method, data_init) in zip(
        published.ablation(), published.METHOD_OF_ABLATION, strict=True
    ):
        without_init = method.startswith("decoupled-") and not data_init
        changes = ["session.data_init=false"] if without_init else []
        rows[_label(row)] = setting.experiment(method, *changes)
    rows[f"{CEC_ROW}, no query node"] = setting.experiment("cec", "adapter.query_node=false")
    return rows


def _label(row: AblationRow) -> str:
    """Return the paper's name of the classifier, and the parts that it does not imply."""
    if row.adapter:
        return CEC_ROW if row.pil else f"{CEC_ROW}, meta-learnt (no PIL)"
    return row.classifier if row.data_init else row.name


def draw(setting: Setting, finished: Mapping[str, Finished], out: Path) -> Table:
    """Draw bars of average accuracy and performance drop, and return the table."""
    results = {label: each.result for label, each in finished.items()}
    figures.save_all(figures.bars_figure(results, CEC_ROW), out / "bars")
    rows = list(results.values())
    table = tables.build(rows, labels=list(results), with_nothing_learnt=True)
    note = (
        "in the paper, data init is always decoupled, and CEC is Cosine+Data Init., decoupled, "
        "with adapter (AM) and PIL"
    )
    return replace(table, notes=(*table.notes, note))


STUDY = Study(
    "ablation",
    "Part by part: decoupling, data init, adapter, PIL, query node",
    "Table 1",
    11,
    experiments,
    draw,
)
