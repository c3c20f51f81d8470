"""The paper's tables and figures: for each, the experiments behind it and what is drawn from their results.

`fewmore reproduce NAME` runs the experiments that no run folder holds yet, and writes the tables and figures into a folder.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fewmore import methods
from fewmore.data.benchmarks import Task
from fewmore.data.images import ImageSet
from fewmore.errors import ConfigError, UnknownName
from fewmore.io import write_bytes
from fewmore.methods.base import Recipe
from fewmore.methods.cec import CEC
from fewmore.nn import similarity
from fewmore.random import derive_seed
from fewmore.research import metrics, published, recipes, results
from fewmore.research.metrics import Floats, Ints
from fewmore.research.published import AblationRow
from fewmore.research.reporting import figures, tables
from fewmore.research.reporting.tables import Cell, Grid, Table
from fewmore.research.results import RunResult
from fewmore.research.runner import Experiment, run_name
from fewmore.training.checkpoint import read_state
from fewmore.training.runtime import Runtime

SLOW = "joint"  # trains anew at each session: left out of a quick comparison
ANGLES = {
    "180°": "180",
    "±90°": "90,270",
    "±45°": "45,-45",
    "±20°": "20,-20",
    "±10°": "10,-10",
    "±5°": "5,-5",
    "90°, 180°, 270°": None,
}
GRID, QUICK_GRID = (1, 5, 10, 15, 20), (1, 5, 10)  # ways, and shots
CEC_ROW = "CEC"  # what the subject is called among the ablation's rows and the angles
QUERIES = 10  # of an episode of the grid
BASE_CLASSES, NEW_CLASSES, IMAGES = 5, 4, 100  # that t-SNE lays out, and the most images of each

Drawn = Table | Grid  # a study's table, once its figures are drawn


@dataclass(frozen=True)
class Setting:
    """What a study is asked for."""

    benchmark: str
    task: Task
    recipe: str | None = None  # None: the benchmark's own
    quick: bool = False
    seeds: tuple[int, ...] = (0,)

    def experiment(self, method: str, *changes: str) -> Experiment:
        """A method under the recipe with changed settings; episodes that the base session is too small for are made to fit."""
        made = recipes.recipe(self.recipe, self.task.benchmark, method, changes)
        if method in ("cec", "cec-meta"):
            changes = (*changes, *self._fitting(made))
            made = recipes.recipe(self.recipe, self.task.benchmark, method, changes)
        return Experiment(
            self.benchmark,
            method,
            made,
            dict(change.split("=", 1) for change in changes),
            self.seeds,
        )

    def _fitting(self, recipe: Recipe) -> list[str]:
        """Fewer ways or queries where there are fewer base classes, or images of one, than an episode takes."""
        pseudo = recipe.method.pseudo
        if self.fits(
            pseudo.base_way,
            pseudo.base_shot + pseudo.base_query,
            pseudo.same_classes and bool(pseudo.angles),
        ):
            return []
        classes, images = self._base()
        way = min(
            pseudo.base_way, classes if pseudo.same_classes and pseudo.angles else classes // 2
        )
        query = min(pseudo.base_query, images - pseudo.base_shot)
        return [
            f"pseudo.{group}_{name}={max(1, n)}"
            for name, n in (("way", way), ("query", query))
            for group in ("base", "new")
        ]

    def fits(self, way: int, images: int, same_classes: bool = True) -> bool:
        """Whether the base session has enough classes for an episode, and enough images of each."""
        classes, smallest = self._base()
        return way * (1 if same_classes else 2) <= classes and images <= smallest

    def _base(self) -> tuple[int, int]:
        """How many base classes there are, and the images of the smallest."""
        counts = self.task.split.sessions[0].select_from(self.task.train).class_counts()
        return len(counts), int(counts.min())


@dataclass(frozen=True)
class Measured:
    """A finished experiment: its result, and the folder with its runs."""

    experiment: Experiment
    folder: Path
    result: RunResult


@dataclass(frozen=True)
class Study:
    """One table or figure of the paper."""

    name: str
    paper: str  # where it is in the paper
    size: int  # experiments, where none is left out and the base session is large enough
    title: str
    experiments: Callable[[Setting], dict[str, Experiment]]  # by label
    draw: Callable[[Setting, Mapping[str, Measured], Path], Drawn]


# ---- comparison: the tables of the supplement and the line charts


def _comparison(setting: Setting) -> dict[str, Experiment]:
    names = [*published.ROW_OF_METHOD, *([] if setting.quick else [SLOW])]
    return {name: setting.experiment(name) for name in names}


def _draw_comparison(setting: Setting, measured: Mapping[str, Measured], out: Path) -> Drawn:
    found = [one.result for one in measured.values()]
    figures.save_all(figures.sessions_figure(found, tables.published_rows(found)), out / "sessions")
    if len(found[0].sessions) > 1:
        figures.save_all(figures.base_novel_figure(found), out / "base-novel")
    return tables.build(found, improvement_of="cec")


# ---- ablation: the table of parts


def _ablation(setting: Setting) -> dict[str, Experiment]:
    rows = {}
    for row, (method, data_init) in zip(
        published.ablation(), published.METHOD_OF_ABLATION, strict=True
    ):
        untrained = method.startswith("decoupled-") and not data_init
        rows[_short(row)] = setting.experiment(
            method, *(["session.data_init=false"] if untrained else [])
        )
    return {
        **rows,
        f"{CEC_ROW}, no query node": setting.experiment("cec", "adapter.query_node=false"),
    }


def _short(row: AblationRow) -> str:
    """A row of the paper's ablation, by the classifier's name there and what is not plain from it."""
    if row.adapter:
        return CEC_ROW if row.pil else f"{CEC_ROW}, meta-learnt (no PIL)"
    return row.classifier if row.data_init else row.name


def _draw_ablation(setting: Setting, measured: Mapping[str, Measured], out: Path) -> Drawn:
    figures.save_all(
        figures.bars_figure({label: one.result for label, one in measured.items()}, CEC_ROW),
        out / "bars",
    )
    table = tables.build([one.result for one in measured.values()], labels=list(measured))
    note = "in the paper, data init is always decoupled, and CEC is Cosine+Data Init., decoupled, with adapter (AM) and PIL"
    return replace(table, notes=(*table.notes, note))


# ---- rotation: average accuracy and drop by angle


def _rotation(setting: Setting) -> dict[str, Experiment]:
    return {
        label: setting.experiment("cec", *([f"pseudo.angles={angles}"] if angles else []))
        for label, angles in ANGLES.items()
    }


def _draw_rotation(setting: Setting, measured: Mapping[str, Measured], out: Path) -> Drawn:
    shown = {
        label if ANGLES[label] else f"{label} ({CEC_ROW})": one.result
        for label, one in measured.items()
    }
    figures.save_all(
        figures.points_figure(
            shown, subject=next((label for label in shown if label not in ANGLES), "")
        ),
        out / "rotation",
    )
    return tables.build(
        [one.result for one in measured.values()], with_published=False, labels=list(measured)
    )


# ---- ways and shots: the grid of last accuracies


def _ways_shots(setting: Setting) -> dict[str, Experiment]:
    sizes = QUICK_GRID if setting.quick else GRID
    found = {}
    for way in sizes:
        for shot in sizes:
            sized = {"way": way, "shot": shot, "query": QUERIES}
            changes = [
                f"pseudo.{group}_{name}={number}"
                for name, number in sized.items()
                for group in ("base", "new")
            ]
            if setting.fits(way, shot + 1):  # at least one query is left
                found[_cell_name(way, shot)] = setting.experiment("cec", *changes)
    if not found:
        raise ConfigError(
            f"{setting.benchmark} has no base class with two images, and an episode needs one to learn from and one to ask"
        )
    return found


def _cell_name(way: int, shot: int) -> str:
    return f"{way}-way {shot}-shot"


def _draw_ways_shots(setting: Setting, measured: Mapping[str, Measured], out: Path) -> Drawn:
    sizes = QUICK_GRID if setting.quick else GRID
    cells = [
        [
            tables.spread(measured[n].result.last)
            if (n := _cell_name(w, s)) in measured
            else Cell()
            for s in sizes
        ]
        for w in sizes
    ]
    means = np.array(
        [[math.nan if cell.mean is None else cell.mean for cell in row] for row in cells]
    )
    runs = min(one.result.runs for one in measured.values())
    told, error = _noise([one.result.last for one in measured.values()], runs)
    heading = f"{setting.benchmark}: accuracy after the last session (%)"
    figures.save_all(
        figures.grid_figure(means, sizes, sizes, heading, told, error), out / "ways-shots"
    )
    heading = f"{setting.benchmark}: accuracy after the last session by ways (rows) and shots (columns) of an episode"
    notes = [
        f"{QUERIES} queries a class; as many ways and shots of pseudo-base as of pseudo-incremental classes",
        told,
    ]
    missing = [(w, s) for w in sizes for s in sizes if _cell_name(w, s) not in measured]
    for why, fits in (("the base session is too small for", False), ("not run:", True)):
        found = [
            _cell_name(way, shot) for way, shot in missing if setting.fits(way, shot + 1) is fits
        ]
        if found:
            notes.append(f"–: {why} {', '.join(found)}")
    rows = tuple((str(way), tuple(row)) for way, row in zip(sizes, cells, strict=True))
    return Grid(heading, "ways", tuple(f"{shot} shots" for shot in sizes), rows, tuple(notes))


def _noise(cells: Sequence[Sequence[float]], runs: int) -> tuple[str, float]:
    """How far apart runs of one cell are, in words, and the standard error of a cell's mean."""
    if runs < 2:
        return "one run a cell: how far apart two of them would be is not known", math.nan
    apart = np.mean([abs(a - b) for cell in cells for a, b in combinations(cell, 2)])
    deviation = np.sqrt(np.mean([np.var(cell, ddof=1) for cell in cells]))
    return f"{runs} runs a cell, two of which are {apart:.2f} points apart on average", float(
        deviation / np.sqrt(runs)
    )


# ---- confusion: with and without the adapter


def _confusion(setting: Setting) -> dict[str, Experiment]:
    return {name: setting.experiment(name) for name in ("decoupled-cosine", "cec")}


def _draw_confusion(setting: Setting, measured: Mapping[str, Measured], out: Path) -> Drawn:
    sources = {
        "Decoupled-Cosine": ("decoupled-cosine", ""),
        "CEC without its adapter": ("cec", "cosine_after_pil"),
        "CEC": ("cec", ""),
    }
    matrices: dict[str, list[Ints]] = {}
    for heading, (method, scores) in sources.items():
        matrices[heading], session_of_class = _confusion_matrices(measured[method], scores)
    pooled: dict[str, Ints] = {heading: np.sum(own, axis=0) for heading, own in matrices.items()}
    figures.save_all(
        figures.confusions_figure(pooled, session_of_class, ("CEC", "CEC without its adapter")),
        out / "confusion",
    )
    new = session_of_class > 0
    columns = (
        "base right",
        "new right",
        "new taken for base",
        "base taken for new",
        "entropy of base",
        "entropy of new",
    )
    scatter = {
        heading: np.array([_scatter(matrix, new) for matrix in own])
        for heading, own in matrices.items()
    }  # runs × columns
    rows = [(heading, tuple(map(tables.spread, runs.T))) for heading, runs in scatter.items()]
    for without in ("CEC without its adapter", "Decoupled-Cosine"):
        differences = map(tables.spread, (scatter["CEC"] - scatter[without]).T)
        rows.append(
            (f"CEC minus {without}", tuple(replace(cell, signed=True) for cell in differences))
        )
    notes = (
        "after the last session, in percent of the images",
        "entropy: of the answers to one class's images, in bits, mean over classes; 0 where all are the same",
    )
    return Grid(
        f"{setting.benchmark}: how scattered the answers are",
        "classifier",
        columns,
        tuple(rows),
        notes,
    )


def _confusion_matrices(one: Measured, scores: str) -> tuple[list[Ints], Ints]:
    """One for each run of an experiment, after the last session."""
    states = [
        read_state(one.folder / run_name(*run) / "predictions.safetensors")
        for run in one.experiment.runs()
    ]
    session_of_class: Ints = states[0]["session_of_class"].numpy()
    classes = len(session_of_class)
    found = [
        metrics.confusion_matrix(s["labels"].numpy(), s["predictions"][scores][-1].numpy(), classes)
        for s in states
    ]
    return found, session_of_class


def _scatter(confusion: Ints, new: NDArray[np.bool_]) -> list[float]:
    """What a confusion matrix looks like, in numbers."""
    shares: Floats = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    entropy = -(shares * np.log2(np.where(shares > 0, shares, 1))).sum(1)
    right = np.diag(shares)
    values = [right[~new], right[new], shares[new][:, ~new].sum(1), shares[~new][:, new].sum(1)]
    values = [100 * value for value in values] + [entropy[~new], entropy[new]]
    return [float(value.mean()) if len(value) else math.nan for value in values]


# ---- t-SNE: weights before and after adaptation


def _tsne(setting: Setting) -> dict[str, Experiment]:
    return {"cec": setting.experiment("cec")}


def _draw_tsne(setting: Setting, measured: Mapping[str, Measured], out: Path) -> Drawn:
    """A few classes, chosen by chance, and what the adapter does to their weights when there are no others."""
    one, task = measured["cec"], setting.task
    seed, draw = one.experiment.runs()[0]
    method = methods.find("cec").build(one.experiment.recipe, Runtime(), seed)
    if not isinstance(method, CEC):
        raise ConfigError(
            f"weights before and after adaptation are CEC's, and not of {type(method).__name__}"
        )
    method.restore(read_state(one.folder / run_name(seed, draw) / "model.safetensors"))
    base, seen = len(task.split.sessions[0].classes), task.split.seen(len(task.split.sessions))
    generator = torch.Generator().manual_seed(derive_seed("classes of t-SNE"))
    old, new = (
        torch.randperm(base, generator=generator),
        base + torch.randperm(len(seen) - base, generator=generator),
    )
    old = old[:BASE_CLASSES].sort().values
    chosen = torch.cat([old, new[:NEW_CLASSES].sort().values])
    images = _some(task.test.select_classes([seen[c] for c in chosen]), IMAGES)
    with torch.no_grad():
        embeddings = method.embed(images)
        rows = method.network.classifier.prototypes[chosen]
        context = method.adapter.context(rows)
        before, after = method.adapter.layer_norm(rows), method.adapter.adapted_prototypes(context)
        scores = similarity.cosine(embeddings, rows), method.adapter.scores(embeddings, context)
        right = [100 * float((s.argmax(1) == images.labels).double().mean()) for s in scores]
    told = f"{right[0]:.2f} % before, {right[1]:.2f} % after adaptation"
    figure = figures.tsne_figure(
        method.adapter.layer_norm(embeddings).detach().double().numpy(),
        images.labels.numpy(),
        before.double().numpy(),
        after.double().numpy(),
        images.class_names,
        len(old),
        setting.benchmark,
        f"accuracy among these classes: {told}",
    )
    figures.save_all(figure, out / "tsne")
    moved = torch.nn.functional.cosine_similarity(before, after)
    turned = tuple(
        (name, (Cell(float(cosine)),))
        for name, cosine in zip(images.class_names, moved, strict=True)
    )
    notes = (f"accuracy among these classes alone: {told}",)
    heading = f"{setting.benchmark}: how far adaptation turns weights"
    return Grid(heading, "class", ("cosine of before and after",), turned, notes)


def _some(images: ImageSet, most: int) -> ImageSet:
    """The first images of each class."""
    places = [
        (images.labels == label).nonzero().squeeze(1)[:most]
        for label in range(len(images.class_names))
    ]
    return images.select(torch.cat(places)).to("cpu")


# ---- all of them


STUDIES = {
    study.name: study
    for study in (
        Study("comparison", "Fig. 7, Table 2, supplement", 9,
              "All methods session by session, beside the published rows", _comparison, _draw_comparison),
        Study("ablation", "Table 1", 11,
              "Part by part: decoupling, data init, adapter, PIL, query node", _ablation, _draw_ablation),
        Study("rotation", "Fig. 6", 7,
              "Accuracy and drop by the angles of pseudo-incremental classes", _rotation, _draw_rotation),
        Study("ways-shots", "Fig. 5", 25,
              "Last session's accuracy by ways and shots of an episode", _ways_shots, _draw_ways_shots),
        Study("confusion", "Fig. 3", 2,
              "Confusion matrices with and without the adapter", _confusion, _draw_confusion),
        Study("tsne", "Fig. 4", 1,
              "Embeddings and weights before and after adaptation", _tsne, _draw_tsne),
    )
}  # fmt: skip


def find(name: str) -> Study:
    """A study by its name."""
    if name not in STUDIES:
        raise UnknownName("study", name, [*STUDIES, "all", "list"])
    return STUDIES[name]


def measured(
    experiments: Mapping[str, Experiment], folders: Mapping[str, Path]
) -> dict[str, Measured]:
    """Finished experiments, by their labels."""
    return {
        label: Measured(one, folders[label], results.read(folders[label]))
        for label, one in experiments.items()
    }


def write(study: Study, setting: Setting, found: Mapping[str, Measured], out: Path) -> Drawn:
    """Draw a study's figures, write its table in three formats and the results behind it; returns the table."""
    out.mkdir(parents=True, exist_ok=True)
    table = study.draw(setting, found, out)
    if isinstance(table, Table):
        texts = {
            "md": tables.to_markdown(table),
            "csv": tables.to_csv([table]),
            "tex": tables.to_latex(table),
        }
    else:
        texts = {
            "md": tables.grid_to_markdown(table),
            "csv": tables.grid_to_csv(table),
            "tex": tables.grid_to_latex(table),
        }
    for suffix, text in texts.items():
        write_bytes(out / f"table.{suffix}", text.encode())
    for old in out.glob("results/*.json"):
        old.unlink()  # of rows that are no longer in the table
    for one in found.values():
        results.write(out / "results" / f"{results.file_name(one.result)}.json", one.result)
    return table
