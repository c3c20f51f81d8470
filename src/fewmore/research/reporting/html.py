"""Write report.html: a run folder as one page that needs no other file, no network and no script.

It holds the table, the curves, base against novel classes, the worst confusions with images,
the confusion matrix and the accuracy of each class, calibration, time and memory, the config, and
how to repeat the run. Figures are drawn in colors that the page defines, so that they follow light
and dark mode.
"""

import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from fewmore.classifier.calibration import expected_calibration_error
from fewmore.data.benchmarks import Task
from fewmore.data.images import ImageSet
from fewmore.io import write_bytes
from fewmore.research import results
from fewmore.research.machine import BUSY
from fewmore.research.metrics import mean_std
from fewmore.research.predictions import Predictions, images_tested, read_run_folder
from fewmore.research.reporting import figures, per_class, tables
from fewmore.research.reporting.figures import style
from fewmore.research.reporting.image_page import STYLE, image_tag
from fewmore.research.reporting.notes import exam_notes
from fewmore.research.reporting.per_class import ClassRow
from fewmore.research.results import WALL_CLOCK, RunResult, settings_of

CONFUSIONS = 6  # pairs of classes that are shown
MISTAKEN = 4  # images of a class that were taken for another
EXAMPLES = 2  # images of that other class
LOWEST = 5  # classes of the lowest accuracy that are named
THUMBNAIL = 96  # pixels, at most
SOURCE = "_source"  # how the keys of a machine end that name a user's own files
# Colors of the figures, and the names of their variables on the page.
COLORS = {
    style.INK: "ink",
    style.BLACK: "ink",
    style.FAINT: "faint",
    style.GRID: "grid",
    style.VERMILION: "vermilion",
    style.BLUE: "blue",
    style.GREEN: "green",
    style.GREY: "grey",
}


def write(folder: Path, task: Task | None) -> Path:
    """Write the report of a finished run into its folder; without a task it shows no images."""
    result = results.read(folder)
    config = json.loads((folder / "config.json").read_text())
    predictions = read_run_folder(folder, task)
    test = None if task is None else images_tested(predictions[0], task)
    path = folder / "report.html"
    write_bytes(path, page(result, config, predictions, test).encode())
    return path


def page(
    result: RunResult, config: dict[str, Any], runs: Sequence[Predictions], test: ImageSet | None
) -> str:
    """Return the whole page. `test` has the classes in the order of arrival, if it is there."""
    heading = escape(f"{result.method} on {result.benchmark}")
    sections = [
        _header(result, heading),
        _sessions(result),
        _confusions(runs, test),
        _classes(runs),
        _calibration(runs),
        _costs(result),
        _repeat(result, config),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{heading}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(sections)
        + "\n</main>\n</body>\n</html>\n"
    )


# Sections of the page


def _header(result: RunResult, heading: str) -> str:
    runs = f"{result.runs} runs" if result.runs > 1 else "1 run"
    recipe = result.recipe or "of its own"
    with_settings = "".join(f", {setting}" for setting in settings_of(result))
    about = f"{tables.title(result)}; {runs}, recipe {recipe}{with_settings}, split {result.split}"
    measures: list[tuple[str, Iterable[float | None]]] = [
        ("after the last session", result.last),
        ("average", result.average),
        ("performance drop", result.pd),
    ]
    if len(result.sessions) > 1:
        measures += [
            ("base classes, last", [run[-1] for run in result.base]),
            ("new classes, last", [run[-1] for run in result.novel]),
            ("harmonic mean, last", [run[-1] for run in result.harmonic]),
        ]
    cards = "".join(f"<div><b>{_mean(values)}</b>{escape(name)}</div>" for name, values in measures)
    keeps = ""
    if result.keeps:
        keeps = f'<p class="faint">Keeps of old images: {escape(result.keeps)}.</p>'
    about_method = exam_notes([result])
    if "checks" in result.machine:
        about_method.append(f"Checked in the run: {result.machine['checks']}")
    notes = "".join(f'<p class="faint">{escape(note)}.</p>' for note in about_method)
    return (
        f'<h1>{heading}</h1>\n<p class="faint">{escape(about)}; accuracy in percent.</p>\n'
        f'{keeps}{notes}<div class="cards">{cards}</div>'
    )


def _sessions(result: RunResult) -> str:
    table = tables.build([result])
    published = tables.published_rows([result])
    first, last = (float(np.mean([run[i] for run in result.accuracy])) for i in (0, -1))
    sizes = result.sessions
    parts = ["<h2>Session by session</h2>", _table(table)]
    curve = figures.run_figure(result, {Path(result.method).stem: result.accuracy}, published)
    alt = (
        f"Line chart of accuracy by session: from {first:.1f} % of {sizes[0].classes} classes "
        f"to {last:.1f} % of {sizes[-1].classes}."
    )
    parts.append(_figure(figures.to_svg(curve), alt))
    if len(sizes) > 1:
        base, novel = (_mean([run[-1] for run in rows]) for rows in (result.base, result.novel))
        lines = {"base": result.base, "new": result.novel, "harmonic mean": result.harmonic}
        alt = (
            "Line chart of accuracy on base and on new classes by session: "
            f"{base} and {novel} percent after the last one."
        )
        parts += ["<h2>Base against new classes</h2>", "<p>Both among all classes seen so far.</p>"]
        parts.append(_figure(figures.to_svg(figures.run_figure(result, lines)), alt))
    return "\n".join(parts)


def _table(table: tables.Table) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("method", *table.columns))
    rows = []
    for row in table.rows:
        label = f'<th scope="row">{escape(row.label)}</th>'
        cells = "".join(map(_table_cell, row.cells))
        rows.append(f'<tr class="{row.source}">{label}{cells}</tr>')
    notes = "".join(f'<p class="faint">{escape(note)}</p>' for note in table.notes)
    content = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return _scroll_box(content, "accuracy by session") + notes


def _table_cell(cell: tables.Cell) -> str:
    std = f"<small>±{tables.number(cell.std)}</small>" if cell.std is not None else ""
    return f"<td>{cell.text}{std}</td>"


def _confusions(runs: Sequence[Predictions], test: ImageSet | None) -> str:
    """Show the most frequent confusions of two classes over all runs, with images of the first."""
    if test is None:
        return "<h2>Worst confusions</h2>\n<p>The test images of the run were not there.</p>"
    names = test.class_names
    confusion = per_class.pooled_confusion(runs)
    shares = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    np.fill_diagonal(shares, 0)
    order = np.argsort(-shares, axis=None, kind="stable")
    parts = []
    for place in order[:CONFUSIONS]:
        true, predicted = divmod(int(place), len(names))
        if not shares[true, predicted]:
            break
        count = f"{confusion[true, predicted]} of {confusion[true].sum()} images"
        share = f"{100 * shares[true, predicted]:.0f} %"
        parts.append(_confusion(runs[0], test, true, predicted, f"{count}, {share}"))
    content = "\n".join(parts) or "<p>There was no mistake.</p>"
    note = '<p class="faint">After the last session, among all classes.</p>'
    return f"<h2>Worst confusions</h2>\n{note}\n{content}"


def _confusion(run: Predictions, test: ImageSet, true: int, predicted: int, count: str) -> str:
    """Show images of one class that were taken for another, and images of that one."""
    names = test.class_names
    mistaken = np.flatnonzero((run.labels == true) & (run.by_session[-1] == predicted))[:MISTAKEN]
    examples = np.flatnonzero(run.labels == predicted)[:EXAMPLES]
    alt = f"{names[true]}, taken for {names[predicted]}"
    images = "".join(_image(test, i, alt) for i in mistaken)
    if len(mistaken) and len(examples):
        images += "<span>taken for</span>"
    images += "".join(_image(test, i, names[predicted]) for i in examples)
    one, other = (
        f"<b>{escape(names[c])}</b> {_badge(run.session_of_class[c])}" for c in (true, predicted)
    )
    return (
        f'<div class="pair">{one} taken for {other}: {count}'
        f'<div class="images">{images}</div></div>'
    )


def _classes(runs: Sequence[Predictions]) -> str:
    """Show the confusion matrix over all runs, and the accuracy of each class."""
    names = runs[0].class_names
    confusion = per_class.pooled_confusion(runs)
    matrix = figures.confusion_figure(confusion, runs[0].session_of_class, class_names=names)
    rows = per_class.class_rows(runs)
    lowest = ", ".join(f"{row.name} {row.accuracy.text}" for row in per_class.weakest(rows, LOWEST))
    alt = f"Confusion matrix of {len(names)} classes. Lowest accuracy: {lowest}."
    head = "".join(
        f'<th scope="col">{name}</th>'
        for name in ("class", "session", "images", "accuracy", "most often taken for")
    )
    body = "".join(map(_class_row, rows))
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return (
        "<h2>Class by class</h2>\n"
        f'<p class="faint">After the last session. Lowest accuracy: {escape(lowest)}.</p>\n'
        + _figure(figures.to_svg(matrix), alt)
        + f"\n<details><summary>All {len(rows)} classes</summary>"
        + _scroll_box(table, "accuracy by class")
        + "</details>"
    )


def _class_row(row: ClassRow) -> str:
    taken_for = f"{row.taken_for}, {row.share:.0f} %" if row.taken_for else "–"
    return (
        f'<tr><th scope="row">{escape(row.name)}</th><td>{row.session}</td><td>{row.images}</td>'
        f"{_table_cell(row.accuracy)}<td>{escape(taken_for)}</td></tr>"
    )


def _badge(session: int) -> str:
    return f'<span class="badge">{"base" if session == 0 else f"session {session}"}</span>'


def _calibration(runs: Sequence[Predictions]) -> str:
    with_confidence = [run for run in runs if len(run.confidence)]
    if not with_confidence:
        return ""
    confidence = np.concatenate([run.confidence for run in with_confidence])
    correct = np.concatenate([run.by_session[-1] == run.labels for run in with_confidence])
    error = 100 * expected_calibration_error(
        torch.from_numpy(confidence), torch.from_numpy(correct)
    )
    summary = (
        f"{100 * confidence.mean():.1f} % confident and {100 * correct.mean():.1f} % right "
        f"on average; expected calibration error {error:.1f} points"
    )
    diagram = figures.reliability_figure(confidence, correct.astype(np.float64))
    return (
        f"<h2>Calibration</h2>\n<p>After the last session: {summary}. A confidence is "
        "the largest share of the softmax of the method's scores, as they are.</p>\n"
        + _figure(figures.to_svg(diagram), f"Reliability diagram: {summary}.")
    )


def _costs(result: RunResult) -> str:
    stages = list(dict.fromkeys(stage for run in result.seconds for stage in run))
    rows = [(stage, f"{_mean([run.get(stage) for run in result.seconds])} s") for stage in stages]
    if WALL_CLOCK in stages and any(result.shared_stage1):
        total = f"{_mean(result.total_seconds)} s"
        rows.append((f"{WALL_CLOCK}, with the shared stage 1", total))
    rows.append(("peak memory", f"{max(result.peak_memory_mb):,.0f} MB"))
    cells = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{value}</td></tr>' for name, value in rows
    )
    side_by_side = result.machine.get("side_by_side", 1)
    elsewhere = ("side_by_side", "checks", "source", BUSY)
    facts = {
        key: value
        for key, value in result.machine.items()
        if key not in elsewhere and not key.endswith(SOURCE)
    }
    machine = ", ".join(f"{key} {value}" for key, value in facts.items())
    machine += f"; {side_by_side} runs side by side" if side_by_side > 1 else ""
    machine += f"; {BUSY}" if result.machine.get(BUSY) else ""
    table = f"<table><tbody>{cells}</tbody></table>"
    return f'<h2>Time and memory</h2>\n<p class="faint">{escape(machine)}</p>\n' + _scroll_box(
        table, "seconds by stage and peak memory"
    )


def _repeat(result: RunResult, config: dict[str, Any]) -> str:
    seeds = ", ".join(map(str, dict.fromkeys(result.seeds)))
    commit = result.commit or "unknown"
    if "source" in result.machine:
        commit += f" (source {result.machine['source'][:12]})"
    about = f"seeds {seeds}; split {result.split}; commit {commit}; {result.date}"
    for key, source in result.machine.items():
        if key.endswith(SOURCE):
            about += f"; {key.removesuffix(SOURCE)}: {source['file']}, sha256 {source['sha256']}"
    command = result.command or "started from Python, with the config below"
    settings = escape(json.dumps(config, indent=1, ensure_ascii=False))
    return (
        f"<h2>How to repeat it</h2>\n<pre>{escape(command)}</pre>\n"
        f'<p class="faint">{escape(about)}</p>\n<h2>Config</h2>\n'
        f"<details><summary>All settings</summary><pre>{settings}</pre></details>"
    )


# Parts of the sections


def _mean(values: Iterable[float | None]) -> str:
    mean, std = mean_std([np.nan if value is None else value for value in values])
    if np.isnan(mean):
        return "–"
    deviation = "" if np.isnan(std) else f" ± {tables.number(float(std))}"
    return tables.number(float(mean)) + deviation


def _scroll_box(content: str, label: str) -> str:
    """Wrap what may be wider than a phone in a box that scrolls, by keyboard too."""
    attributes = f'class="scroll" role="region" tabindex="0" aria-label="{escape(label)}"'
    return f"<div {attributes}>{content}</div>"


def _figure(svg: str, alt: str) -> str:
    """Return a figure in the colors of the page."""
    for color, name in COLORS.items():
        svg = re.sub(re.escape(color), f"var(--{name})", svg, flags=re.IGNORECASE)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{escape(alt)}" ', 1)
    return f"<figure>{svg}</figure>"


def _image(images: ImageSet, index: int, alt: str) -> str:
    """Embed one image of a set in the page."""
    image = Image.fromarray(images.image(int(index)).permute(1, 2, 0).cpu().numpy())
    return image_tag(image, alt, THUMBNAIL)
